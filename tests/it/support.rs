//! Shared by the tests: kinds made of closures, signals that block handlers, and checks of an idle pool.

#[path = "../../src/store/tests/cluster.rs"]
mod cluster;
mod faulty_store;
mod pki;

use std::{
    io::{Write as _, stderr},
    num::NonZeroUsize,
    sync::Arc,
    time::Duration,
};

use futures_util::future::try_join_all;
use parking_lot::{Condvar, Mutex};
use tokio::{
    process::Command,
    sync::{Barrier, Semaphore, watch},
    time::Instant,
};
use waterwheel::{
    Job, Output, Pool,
    handler::{Context, Kind},
    model::HandlerError,
    pool::{PoolBuilder, PoolStats, WorkerState},
};

pub(crate) use cluster::Cluster;
pub(crate) use faulty_store::{Fault, FaultyStore, Operation};
pub(crate) use pki::{Authority, Files, KEYS, Leaf, Name, TlsClient, toml_string};

/// The size of a test. An environment variable overrides it for longer runs.
pub(crate) fn size(variable: &str, default: usize) -> usize {
    let text = std::env::var(variable);
    text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text:?} is not a number")))
}

/// Prints why a test was skipped. The test harness does not capture the line.
pub(crate) fn skipped(why: &str) {
    let line = format!("SKIPPED: {why}\n");
    stderr().write_all(line.as_bytes()).expect("stderr is writable");
}

/// Counts events from any thread. Tasks can wait for a count.
#[derive(Clone)]
pub(crate) struct Counter(Arc<watch::Sender<usize>>);

/// Blocks tasks until a test lets them pass.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Semaphore>);

/// Blocks threads until a test lets them pass.
#[derive(Clone, Default)]
pub(crate) struct BlockingGate(Arc<(Mutex<usize>, Condvar)>);

impl Counter {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    pub(crate) fn add(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    pub(crate) fn get(&self) -> usize {
        *self.0.borrow()
    }

    pub(crate) async fn reached(&self, count: usize) {
        self.0.subscribe().wait_for(|reached| *reached >= count).await.expect("the sender lives in self");
    }
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Waits until one more task may pass, or the gate is open.
    pub(crate) async fn pass(&self) {
        if let Ok(permit) = self.0.acquire().await {
            permit.forget();
        }
    }

    pub(crate) fn let_pass(&self, count: usize) {
        self.0.add_permits(count);
    }

    pub(crate) fn open(&self) {
        self.0.close();
    }
}

impl BlockingGate {
    pub(crate) fn pass(&self) {
        let (free, changed) = &*self.0;
        let mut free = free.lock();
        changed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
    }

    pub(crate) fn let_pass(&self, count: usize) {
        let (free, changed) = &*self.0;
        *free.lock() += count;
        changed.notify_all();
    }
}

/// Runs `future` while the paused clock stands still.
///
/// Otherwise tokio would advance the clock to the next timer while tasks wait for a blocking handler.
pub(crate) async fn holding_clock<F: Future>(future: F) -> F::Output {
    let gate = BlockingGate::default();
    let held = gate.clone();
    // Tokio does not advance a paused clock while a blocking task runs.
    let holder = tokio::task::spawn_blocking(move || held.pass());
    let output = future.await;
    gate.let_pass(1);
    holder.await.expect("the holder only waits");
    output
}

/// Lets other tasks and threads run until `reached` is true. The paused clock stands still.
pub(crate) async fn until(reached: impl Fn() -> bool) {
    holding_clock(async {
        while !reached() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Advances the paused clock by `duration`, and runs every timer in between.
pub(crate) async fn pass_time(duration: Duration) {
    let _ = tokio::time::timeout(duration, std::future::pending::<()>()).await;
}

/// An asynchronous kind made of a function.
pub(crate) fn kind<F, R>(name: &str, run: F) -> Kind
where
    F: Fn(Job, Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Output, HandlerError>> + Send + 'static,
{
    Kind::from_fn(name, move |job: Box<Job>, cx| run(*job, cx))
}

/// A blocking kind made of a function.
pub(crate) fn blocking_kind<F>(name: &str, run: F) -> Kind
where
    F: Fn(Job, Context) -> Result<Output, HandlerError> + Send + Sync + 'static,
{
    Kind::blocking_fn(name, move |job: Box<Job>, cx| run(*job, cx))
}

/// A kind that returns its payload.
pub(crate) fn echo() -> Kind {
    kind("echo", |job, _| async move { Ok(Output::new(job.payload)) })
}

/// A kind that ignores its cancel token and runs until it is aborted.
pub(crate) fn slow() -> Kind {
    kind("slow", |_, _| std::future::pending())
}

/// A kind that waits for its gate, and returns its payload. It ignores cancellation.
pub(crate) fn gated(name: &str, gate: &Gate) -> Kind {
    gated_counting(name, gate, &Counter::new())
}

/// [`gated`], which counts the jobs that start.
pub(crate) fn gated_counting(name: &str, gate: &Gate, begun: &Counter) -> Kind {
    let (gate, begun) = (gate.clone(), begun.clone());
    kind(name, move |job, _| {
        let (gate, begun) = (gate.clone(), begun.clone());
        async move {
            begun.add();
            gate.pass().await;
            Ok(Output::new(job.payload))
        }
    })
}

/// A blocking kind that counts the jobs that start, and waits for its gate. It ignores cancellation.
pub(crate) fn deaf(begun: &Counter, gate: &BlockingGate) -> Kind {
    let (begun, gate) = (begun.clone(), gate.clone());
    blocking_kind("deaf", move |_, _| {
        begun.add();
        gate.pass();
        Ok(Output::default())
    })
}

/// A kind that waits until its job is cancelled, counts that, and stops.
pub(crate) fn polite(begun: &Counter, stopped: &Counter) -> Kind {
    let (begun, stopped) = (begun.clone(), stopped.clone());
    kind("polite", move |_, cx| {
        let (begun, stopped) = (begun.clone(), stopped.clone());
        async move {
            begun.add();
            cx.cancelled().await;
            stopped.add();
            Err(HandlerError::Stopped)
        }
    })
}

/// A builder of a pool with this number of workers.
pub(crate) fn pool(workers: usize) -> PoolBuilder {
    Pool::builder("test").workers(NonZeroUsize::new(workers).expect("a pool has workers"))
}

/// A kind for [`meet`]. Its jobs end when `workers` of them run at the same time.
pub(crate) fn meeting(workers: usize) -> Kind {
    let barrier = Arc::new(Barrier::new(workers));
    kind("meeting", move |_, _| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Ok(Output::default())
        }
    })
}

/// Runs one job on each of the `workers` at the same time. This fails if a worker is lost.
pub(crate) async fn meet(pool: &Pool, workers: usize) {
    let jobs = (0..workers).map(|_| pool.submit(Job::new("meeting", "")));
    try_join_all(jobs).await.expect("every worker takes part");
}

/// Checks that no job runs or is queued, and that every accepted job ended once.
pub(crate) fn assert_idle(pool: &Pool, workers: usize) {
    let stats = pool.stats();
    assert_eq!(stats.workers.len(), workers, "{stats:#?}");
    assert!(stats.workers.iter().all(|worker| worker.state == WorkerState::Idle), "{stats:#?}");
    assert_eq!((stats.queued, stats.waiting, stats.in_flight, stats.queued_bytes), (0, 0, 0, 0), "{stats:#?}");
    assert_eq!(stats.counts.accepted, stats.counts.ended(), "{stats:#?}");
    assert_eq!(pool.worker_count(), workers);
}

/// Checks that the counts of a busy pool add up.
///
/// The outcome of a stopped job may be decided before its worker is free.
pub(crate) fn assert_balanced(stats: &PoolStats) {
    let settled = stats.counts.ended() + stats.queued as u64;
    let range = settled..=settled + stats.in_flight as u64;
    assert!(range.contains(&stats.counts.accepted), "{stats:#?}");
}

/// How often a server must be scheduled to end its drain. A program that only sleeps must be scheduled once.
const SCHEDULINGS: u32 = 5;

/// Tolerated delay for a server whose drain starts at this moment and takes `phases`.
///
/// It is a multiple of the delay of a program that sleeps as long, so it is close to zero on an idle machine.
pub(crate) async fn lateness(phases: Duration) -> Duration {
    let begin = Instant::now();
    let slept = Command::new("sleep").arg(phases.as_secs_f64().to_string()).status().await.unwrap();
    assert!(slept.success());
    SCHEDULINGS * begin.elapsed().saturating_sub(phases)
}
