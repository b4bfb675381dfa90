//! Pools: bounded queues in front of bounded sets of workers.
//!
//! The [`scheduler`](crate::scheduler) is one synchronous state machine. Everything here feeds it events and carries
//! out its effects. The way of a job, file by file:
//!
//! ```text
//! handle ─▶ submission ─▶ shell ─▶ core ─▶ lease ─▶ attempt ─▶ attached ─▶ conclude
//! submit    lock,    verdict  a worker  one run    deadline,   one outcome,
//!           effects           on loan   of a job   cancel      counted once
//! ```
//!
//! A job whose worker is free runs in the task of its caller. When the caller leaves, or is answered at the deadline,
//! the run moves to a task of its own ([`attached`]) and down the stop ladder ([`stop`]).
//!
//! A job of a blocking kind runs on the thread of its worker ([`blocking`]). The thread decides its outcome and takes
//! the next job itself. Its messages to the tasks of callers are sent in batches ([`reports`]).

mod attached;
mod attempt;
mod blocking;
mod builder;
mod close;
mod conclude;
mod drain;
mod ended;
mod explain;
mod factories;
mod handle;
mod home;
mod latest;
mod lease;
mod listing;
mod load;
mod meters;
mod operate;
mod permit;
mod pools;
mod reports;
mod shell;
mod sizing;
mod stats;
mod stop;
mod stream;
mod submission;
mod trace;
mod wake;

pub use crate::handler::{Event, ProcessState, ProcessStats, ProgramStats};
use crate::scheduler as core;
pub use crate::scheduler::{Binding, Counts, Queued, TenantRate, Wait};
pub use builder::{PoolBuilder, Settings};
pub use drain::{DrainReport, LostJob, LostWhile};
pub use ended::{EndedFailure, EndedJob, JobNames};
pub use explain::Explanation;
pub use factories::FactoryStats;
pub use handle::{Pool, Ticket};
pub use home::{home, set_home};
pub use listing::{JobFilter, JobOrder, ListedJob, Listing, Stage};
pub use load::{KindDurations, PoolLoad};
pub use operate::Hold;
pub use permit::Room;
pub use pools::Pools;
pub use stats::{Distribution, KindStats, LimitStats, PoolStats, SizeStats, WorkerState, WorkerStats};
pub use stream::{JobStream, StreamItem};
pub(crate) use submission::Polled;
pub use submission::Submission;
