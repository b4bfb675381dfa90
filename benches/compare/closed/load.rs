//! A load, its measured window, and the tally of its calls.

use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use futures_util::future;
use hdrhistogram::Histogram;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep},
};
use waterwheel::proto::Job;

use super::{
    Rpc,
    client::{Client, Stage},
};
use crate::{
    Failure,
    process::{Spent, Usage},
};

/// The server, kind and duration of a load.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Address of the server.
    pub(super) server: SocketAddr,
    /// Process id of the server, to read its CPU time.
    pub(super) server_pid: u32,
    /// The method.
    pub(super) rpc: Rpc,
    /// The job that every call submits.
    pub(super) job: Job,
    /// Number of connections, distributed over the client threads.
    pub(super) connections: usize,
    /// Calls in flight on each connection; jobs in flight for `SubmitMany`.
    pub(super) in_flight: usize,
    /// Threads of the load generator.
    pub(super) client_threads: usize,
    /// Deadline of each call. A `SubmitMany` call lasts as long as the load; its deadline is this much later.
    pub(super) deadline: Duration,
    /// Load before the measured window.
    pub(super) warm_up: Duration,
    /// The measured window.
    pub(super) window: Duration,
}

/// The measurements of a window.
#[derive(Debug, Clone)]
pub(super) struct Measurement {
    /// Real length of the window.
    pub(super) elapsed: Duration,
    /// Replies in the window, including failures.
    pub(super) replies: u64,
    /// Latencies and errors.
    pub(super) totals: Totals,
    /// Resources that the server used.
    pub(super) server: Spent,
}

/// Runs the load of `plan` and returns the measurements of its window.
///
/// Dropping the future stops the load.
///
/// # Errors
/// If the load cannot start. Failed calls are not an error: the measurement counts them.
pub(super) async fn run(plan: &Plan) -> Result<Measurement, Failure> {
    let stages = Stages(watch::channel(Stage::Connecting).0);
    let threads = plan.client_threads.clamp(1, plan.connections);
    let (connected, mut all_connected) = mpsc::channel(threads);
    let mut replies = Vec::new();
    let mut totals = Vec::new();
    for index in 0..threads {
        let share = plan.connections / threads + usize::from(index < plan.connections % threads);
        let plan = Plan { connections: share, ..plan.clone() };
        let counter = Arc::<AtomicU64>::default();
        replies.push(Arc::clone(&counter));
        let client = Client::new(plan, Tally::new(counter), stages.0.subscribe())?;
        let (done, outcome) = oneshot::channel();
        totals.push(outcome);
        let connected = connected.clone();
        thread::Builder::new().name(format!("load-{index}")).spawn(move || client.run(&connected, done))?;
    }
    drop(connected);
    for _ in 0..threads {
        all_connected.recv().await.ok_or("a client thread ended early")??;
    }
    stages.0.send_replace(Stage::WarmUp);
    sleep(plan.warm_up).await;
    stages.0.send_replace(Stage::Measured);
    let before = Reading::take(plan, &replies)?;
    sleep(plan.window).await;
    let after = Reading::take(plan, &replies)?;
    drop(stages);
    let totals = future::try_join_all(totals).await.map_err(|_| "a client thread ended early")?;
    Ok(after.since(&before, Totals::sum(totals)))
}

impl Measurement {
    /// Completed jobs per second.
    pub(super) fn throughput(&self) -> f64 {
        let completed = self.totals.latencies.len() as f64;
        let answered = completed + self.totals.failed() as f64;
        let share = if answered > 0.0 { completed / answered } else { 0.0 };
        self.replies as f64 * share / self.elapsed.as_secs_f64()
    }

    /// Microseconds of CPU that the server used per reply.
    pub(super) fn server_cpu_us(&self) -> Option<f64> {
        self.per_reply(self.server.cpu.as_secs_f64() * 1e6)
    }

    /// Write system calls of the server per reply.
    pub(super) fn write_syscalls_per_reply(&self) -> Option<f64> {
        self.per_reply(self.server.write_syscalls? as f64)
    }

    fn per_reply(&self, amount: f64) -> Option<f64> {
        (self.replies > 0).then(|| amount / self.replies as f64)
    }
}

/// Sends the stage of the load to the client threads. Dropping it stops them.
struct Stages(watch::Sender<Stage>);

impl Drop for Stages {
    fn drop(&mut self) {
        self.0.send_replace(Stage::Stopped);
    }
}

/// Counters that are read at both ends of a window.
struct Reading {
    at: Instant,
    replies: u64,
    server: Usage,
}

impl Reading {
    fn take(plan: &Plan, replies: &[Arc<AtomicU64>]) -> Result<Self, Failure> {
        let at = Instant::now();
        let replies = replies.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        Ok(Self { at, replies, server: Usage::of(plan.server_pid)? })
    }

    fn since(&self, earlier: &Self, totals: Totals) -> Measurement {
        Measurement {
            elapsed: self.at - earlier.at,
            replies: self.replies - earlier.replies,
            totals,
            server: self.server.since(&earlier.server),
        }
    }
}

/// Shortest distinguishable latency, in nanoseconds.
const SHORTEST: u64 = 1_000;
/// Longest distinguishable latency, in nanoseconds: ten minutes.
const LONGEST: u64 = 600_000_000_000;
/// Significant decimal digits of a latency.
const DIGITS: u8 = 3;

/// Why a call failed: the server's `ErrorInfo.reason`, else the status code, else the error of the connection.
pub(super) type Reason = Cow<'static, str>;

/// Replies, latencies and errors of one client thread, while the load is measured.
#[derive(Debug)]
pub(super) struct Tally {
    replies: Arc<AtomicU64>,
    unanswered: Cell<u64>,
    latencies: RefCell<Histogram<u64>>,
    errors: RefCell<BTreeMap<Reason, u64>>,
}

/// Counts of all client threads.
#[derive(Debug, Clone)]
pub(super) struct Totals {
    /// Latencies of the calls that completed, in nanoseconds.
    pub(super) latencies: Histogram<u64>,
    /// Number of failed calls, by reason.
    pub(super) errors: BTreeMap<Reason, u64>,
    /// Number of calls that never got an answer.
    pub(super) unanswered: u64,
}

impl Tally {
    /// An empty tally. Every reply is also counted in `replies`, measured or not.
    pub(super) fn new(replies: Arc<AtomicU64>) -> Self {
        Self {
            replies,
            unanswered: Cell::new(0),
            latencies: RefCell::new(empty_histogram()),
            errors: RefCell::default(),
        }
    }

    /// Counts one reply. Its latency or error is counted only if it is `measured`.
    pub(super) fn count(&self, measured: Measured, latency: Duration, ended: Result<(), Reason>) {
        self.replies.fetch_add(1, Ordering::Relaxed);
        if measured == Measured::No {
            return;
        }
        match ended {
            Ok(()) => {
                let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
                self.latencies.borrow_mut().saturating_record(nanos);
            }
            Err(reason) => *self.errors.borrow_mut().entry(reason).or_default() += 1,
        }
    }

    /// Counts `calls` as never answered.
    pub(super) fn give_up(&self, calls: u64) {
        self.unanswered.set(self.unanswered.get() + calls);
    }

    /// The totals.
    pub(super) fn into_totals(self) -> Totals {
        Totals {
            latencies: self.latencies.into_inner(),
            errors: self.errors.into_inner(),
            unanswered: self.unanswered.get(),
        }
    }
}

/// Whether a reply belongs to the measured window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measured {
    /// It belongs to the window.
    Yes,
    /// It arrived during the warm-up or the wind-down.
    No,
}

impl Totals {
    /// The sum of `parts`.
    pub(super) fn sum(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut sum = Self { latencies: empty_histogram(), errors: BTreeMap::new(), unanswered: 0 };
        for part in parts {
            sum.latencies += part.latencies;
            for (reason, count) in part.errors {
                *sum.errors.entry(reason).or_default() += count;
            }
            sum.unanswered += part.unanswered;
        }
        sum
    }

    /// Number of calls that failed.
    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }
}

fn empty_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(SHORTEST, LONGEST, DIGITS).expect("the bounds are ordered and the digits at most five")
}
