//! Pools: bounded queues in front of bounded sets of workers.
//!
//! A job runs in the task of its caller. When the caller leaves, or is answered at the deadline, the run moves to a
//! task of its own, where it is asked to stop, and then forced. A job of a blocking kind runs on the thread of its
//! worker.

// The scheduler (`crate::scheduler`) is one synchronous state machine. This module sends it events and carries out its
// effects. A job passes these modules, of which only the scheduler is not in this directory:
//
// pools ─▶ arrival ─▶ inner ───▶ scheduler ─▶ lease ───▶ ticket ──▶ outcome
// submit   bounds,    lock,      verdict      a worker   runs the   one outcome,
//          context    effects                 on loan    handler    counted once
//
// `stop` has the stop ladder, and `blocking` the threads of workers. Such a thread decides the outcome of its job and
// takes the next one itself. What it has to tell callers goes through one channel to each runtime thread, which passes
// it on.

mod arrival;
mod blocking;
mod builder;
mod capacity_wait;
mod drain;
mod ended_jobs;
mod external;
mod factories;
mod handle;
#[cfg(feature = "server")]
mod hold;
mod inner;
mod job_names;
mod lease;
mod listing;
mod lost_job;
mod outcome;
mod pools;
mod pressure;
mod queued_job;
#[cfg(feature = "server")]
mod recorded;
mod recorder;
#[cfg(feature = "server")]
mod remote;
mod reservation;
#[cfg(feature = "programs")]
mod restart;
mod run;
mod service;
mod settings;
mod shard;
mod spread;
mod stats;
mod stop_ladder;
mod stream;
mod ticket;
mod timers;
mod trace;

pub use crate::handler::{Event, Outage, ProcessState, ProcessStats, ProgramStats};
#[doc(inline)]
pub use crate::phase::Phase;
pub use crate::scheduler::{Binding, Counts, LimitStats, Queued, SizeStats, Suspension, TenantRate, Wait};
pub use builder::PoolBuilder;
pub use capacity_wait::CapacityWait;
pub use drain::DrainReport;
pub use ended_jobs::{EndedFailure, EndedJob};
pub use factories::FactoryStats;
pub use handle::Pool;
pub use listing::{Explanation, JobFilter, JobOrder, ListedJob, Listing, RunningJob, StopRequest};
pub use lost_job::{LostJob, LostWhile};
pub use pools::Pools;
#[cfg(feature = "server")]
pub(crate) use remote::AttachError;
pub use reservation::Reservation;
#[cfg(feature = "programs")]
pub use restart::RestartFault;
pub use settings::Settings;
#[cfg(feature = "server")]
pub(crate) use spread::Spread;
pub use stats::{Distribution, KindStats, PoolLoad, PoolStats, WorkerState, WorkerStats};
pub use stream::{JobStream, StreamItem};
pub use ticket::Ticket;

// For the service, and its tests.
#[doc(hidden)]
pub use {
    crate::handler::AttachedWorkerStats,
    job_names::JobNames,
    pressure::Pressure,
    shard::{set_shard, shard},
    stats::KindDurations,
};
