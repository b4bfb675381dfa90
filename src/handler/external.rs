//! What runs jobs outside of the pool's own threads: the processes of a program, and attached workers. A pool knows
//! no more of them than this trait and these figures.

use std::{any::Any, collections::BTreeMap, fmt, sync::Arc};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::task::Tasks;

/// Runs the jobs of one or more kinds of one pool, outside of its threads.
pub(crate) trait External: Any + Send + Sync {
    /// Adjusts itself to the number of the pool's workers; `None` if none of its kinds is served any more. `tasks` runs
    /// what a drain waits for.
    fn fit(&self, tasks: &Tasks, workers: Option<usize>);

    /// Jobs that it can run at the same time, if the pool has as many workers. `None` if it follows the pool's workers.
    fn slots(&self) -> Option<usize> {
        None
    }

    /// Sets the function to call when the number of slots changes. Only the first call counts.
    fn on_resize(&self, resized: Box<dyn Fn() + Send + Sync>) {
        drop(resized);
    }

    /// Why nothing can run jobs, if the last start failed.
    fn outage(&self) -> Option<Outage> {
        None
    }

    /// Ends it after the last job. The future returns when nothing is left; `None` if there is nothing to wait for.
    fn close(self: Arc<Self>) -> Option<BoxFuture<'static, ()>>;

    /// Ends it at once, while [`close`](Self::close) waits.
    fn kill(&self) {}

    /// A snapshot.
    fn stats(&self) -> ExternalStats;
}

/// A program has no process that runs jobs, because the last one ended before it had started well.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outage {
    /// How it ended.
    pub cause: String,
    /// When the next process starts. It may have started.
    pub next_start: Instant,
}

/// What runs a job outside of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Runner {
    /// A process on this machine, by its id.
    Process(u32),
    /// An attached worker, by name and address.
    Worker(Arc<str>),
}

impl fmt::Display for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Worker(shown) => write!(f, "worker {shown}"),
        }
    }
}

/// State of an [`External`].
pub(crate) enum ExternalStats {
    Program(ProgramStats),
    Attached {
        workers: Vec<AttachedWorkerStats>,
        /// Messages about jobs that were over, which were dropped.
        late_messages: u64,
    },
}

/// State of a program's processes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ProgramStats {
    /// Name of the program.
    pub name: Arc<str>,
    /// Its processes.
    pub processes: Vec<ProcessStats>,
    /// Started processes since the start of the server.
    pub starts: u64,
    /// Processes that ended without being asked to leave.
    pub failures: u64,
    /// How the last of these ended; empty if there is none.
    pub last_failure: String,
    /// When it ended.
    pub failed_at: Option<Instant>,
    /// Messages about jobs that were over, which were dropped.
    pub late_messages: u64,
}

/// One process.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ProcessStats {
    /// State of the process.
    pub state: ProcessState,
    /// Process id; `None` while there is no process.
    pub pid: Option<u32>,
    /// Running jobs.
    pub running: usize,
    /// Answered jobs.
    pub jobs: u64,
    /// Resident memory in bytes; 0 if unknown.
    pub memory: u64,
}

/// State of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ProcessState {
    /// Not ready yet.
    Starting,
    /// Ready, without a job.
    Idle,
    /// Runs jobs.
    Busy,
    /// Accepts no more jobs, and will exit.
    Leaving,
    /// Failed, and restarts after a back-off.
    Failing,
}

impl ProcessState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Starting, Self::Idle, Self::Busy, Self::Leaving, Self::Failing];

    /// Name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Leaving => "leaving",
            Self::Failing => "failing",
        }
    }
}

/// What a worker announces when it attaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewWorker {
    /// Name and version, to show to people.
    pub name: String,
    /// Its address, to show to people.
    pub peer: String,
    /// Labels, to show to people.
    pub labels: BTreeMap<String, String>,
    /// Jobs that it runs at the same time, at least one.
    pub concurrency: usize,
}

/// One attached worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedWorkerStats {
    /// The worker's announcement.
    pub worker: NewWorker,
    /// Jobs in its slots.
    pub running: usize,
    /// Those of its jobs that were given up, but are not answered yet.
    pub abandoned: usize,
    /// Answered jobs.
    pub jobs: u64,
    /// Whether it gets no more jobs.
    pub is_leaving: bool,
    /// When it attached.
    pub attached_at: Instant,
}
