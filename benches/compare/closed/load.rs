//! A load and its measured window.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use futures_util::future;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep},
};

use super::{
    Rpc,
    client::{Client, Stage},
    tally::{Tally, Totals},
};
use waterwheel::proto::Job;

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
