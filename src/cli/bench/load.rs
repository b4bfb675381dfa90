//! A load and the window in which it is measured.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep},
};

use super::{
    BenchError, Rpc,
    client::{Client, Stage},
    process::{Spent, Usage},
    tally::{Tally, Totals},
};
use crate::{cli::access::Access, proto::Job, task::spawn_thread};

#[cfg(test)]
mod tests;

/// What to load, how, and how long.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Where the server listens.
    pub(super) server: SocketAddr,
    /// Its name, which its certificate must bear.
    pub(super) host: String,
    /// What it is shown, and what is wanted of it.
    pub(super) access: Access,
    /// The process to read CPU time of, where it is known.
    pub(super) server_pid: Option<u32>,
    /// The method.
    pub(super) rpc: Rpc,
    /// The job that every call submits.
    pub(super) job: Job,
    /// Connections, dealt over the client threads.
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

/// What a load measured in its window.
#[derive(Debug, Clone)]
pub(super) struct Measurement {
    /// The window as it came out.
    pub(super) elapsed: Duration,
    /// Replies in the window, failures included.
    pub(super) replies: u64,
    /// Latencies and errors.
    pub(super) totals: Totals,
    /// What the server used.
    pub(super) server: Option<Spent>,
    /// What this process used.
    pub(super) client: Option<Spent>,
}

/// Runs the load of `plan` and returns what its window measured.
///
/// Dropping the future stops the load.
///
/// # Errors
/// See [`BenchError`]. Failed calls are no error; the measurement counts them.
pub(super) async fn run(plan: &Plan) -> Result<Measurement, BenchError> {
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
        spawn_thread(format!("bench-{index}"), move || client.run(&connected, done)).map_err(BenchError::Thread)?;
    }
    drop(connected);
    for _ in 0..threads {
        all_connected.recv().await.ok_or(BenchError::ThreadLost)??;
    }
    stages.0.send_replace(Stage::WarmUp);
    sleep(plan.warm_up).await;
    stages.0.send_replace(Stage::Measured);
    let before = Reading::take(plan, &replies)?;
    sleep(plan.window).await;
    let after = Reading::take(plan, &replies)?;
    drop(stages);
    let totals = future::try_join_all(totals).await.map_err(|_| BenchError::ThreadLost)?;
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
        self.per_reply(self.server?.cpu.as_secs_f64() * 1e6)
    }

    /// Microseconds of CPU that this process used per reply.
    pub(super) fn client_cpu_us(&self) -> Option<f64> {
        self.per_reply(self.client?.cpu.as_secs_f64() * 1e6)
    }

    /// Write system calls of the server per reply.
    pub(super) fn write_syscalls_per_reply(&self) -> Option<f64> {
        self.per_reply(self.server?.write_syscalls? as f64)
    }

    fn per_reply(&self, amount: f64) -> Option<f64> {
        (self.replies > 0).then(|| amount / self.replies as f64)
    }
}

/// Tells the client threads where the load is; dropped, it stops them.
struct Stages(watch::Sender<Stage>);

impl Drop for Stages {
    fn drop(&mut self) {
        self.0.send_replace(Stage::Stopped);
    }
}

/// Everything that a window takes the difference of.
struct Reading {
    at: Instant,
    replies: u64,
    server: Option<Usage>,
    client: Option<Usage>,
}

impl Reading {
    fn take(plan: &Plan, replies: &[Arc<AtomicU64>]) -> Result<Self, BenchError> {
        let at = Instant::now();
        let replies = replies.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        let read = |pid: u32| Usage::of(pid).map_err(|cause| BenchError::Usage { pid, cause });
        let server = plan.server_pid.map(read).transpose()?;
        Ok(Self { at, replies, server, client: Usage::of(std::process::id()).ok() })
    }

    fn since(&self, earlier: &Self, totals: Totals) -> Measurement {
        let spent = |later: &Option<Usage>, earlier: &Option<Usage>| Some(later.as_ref()?.since(earlier.as_ref()?));
        Measurement {
            elapsed: self.at - earlier.at,
            replies: self.replies - earlier.replies,
            totals,
            server: spent(&self.server, &earlier.server),
            client: spent(&self.client, &earlier.client),
        }
    }
}
