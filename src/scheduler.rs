//! The scheduler of a pool: one synchronous state machine, `event, now → effects`.
//!
//! It knows neither clock nor channel nor future. The host that holds its lock passes the time in, and acts on the effects
//! once the lock is free. Every accepted job has one entry with one life, `queued → running → ended`; cancel, expiry,
//! completion, panic and drain are events that race for the lock, and the first one wins.
//!
//! `core` has the events, over four machines that own their sums: `admission`, `queue`, `limit` and `workers`. `dispatch`
//! gives room and workers to those that wait, and `transitions` moves a job from one stage to the next.
//!
//! Invariants (`invariants`): permits out = queued + running; running ≤ workers; queued jobs and their bytes
//! within their caps; one job at most runs per ordering key; kinds and keys within their limits; in a pool that is not
//! paused, an idle worker means that no ready job is queued whose kind is within its limit, and that no first caller could
//! start.

mod admission;
mod charge;
mod core;
mod counts;
mod dispatch;
mod entry;
mod explain;
mod ids;
#[cfg(test)]
mod invariants;
mod limit;
mod list;
mod listing;
mod operate;
mod queue;
mod rate;
mod snapshot;
#[cfg(test)]
mod tests;
mod transitions;
mod workers;

use std::time::Duration;

use slab::Slab;
use tokio::time::Instant;

pub(crate) use admission::Refusal;
pub use admission::TenantRate;
use admission::{Admission, seconds};
pub(crate) use core::{Withdrawal, Withdrawn};
pub use counts::Counts;
use entry::Entry;
pub(crate) use entry::JobKey;
pub use explain::{Binding, Queued, Wait};
pub(crate) use limit::LimitUse;
use limit::Limits;
pub(crate) use listing::{Holding, Least, least};
use queue::Queue;
pub(crate) use snapshot::{CoreLoad, CoreSnapshot, SizeSnapshot, WorkerCondition, WorkerSnapshot};
pub(crate) use workers::{Bounds, Resized};
use workers::{Sizing, Workers};

use crate::model::{Criticality, Outcome, RejectionReason, WhenFull};

/// What the machine carries for its host without looking into it.
pub(crate) trait Host {
    /// Names a job for as long as it has an entry.
    type Job: Clone;
    /// Reaches the caller of a queued job.
    type Waiter;
    /// What a worker keeps from job to job.
    type State;
}

/// The bounds of a pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Caps {
    /// Most jobs in the queue.
    pub(crate) jobs: usize,
    /// Most payload bytes of queued jobs; and, again, of waiting callers.
    pub(crate) bytes: usize,
    /// Most callers that wait for room.
    pub(crate) waiting: usize,
    /// Most of the queue, as a share of its jobs and of its bytes, for one tenant while another is present.
    pub(crate) tenant_share: f64,
    /// Most stuck workers that are replaced.
    pub(crate) stuck: usize,
}

/// A job that asks for room.
pub(crate) struct Arrival<'a, J> {
    pub(crate) job: J,
    pub(crate) kind: usize,
    pub(crate) class: Criticality,
    pub(crate) bytes: usize,
    /// The job must not start at or after this instant.
    pub(crate) start_by: Instant,
    /// The job must have ended by this instant, to be of use.
    pub(crate) finish_by: Instant,
    pub(crate) tenant: &'a str,
    pub(crate) ordering_key: &'a str,
    pub(crate) limit_key: &'a str,
    pub(crate) when_full: WhenFull,
    /// Runtime that the caller is on; its workers come first.
    pub(crate) shard: usize,
}

/// What becomes of an arrival.
pub(crate) enum Verdict<H: Host> {
    /// Accepted, and a worker is free.
    Start(Grant<H>),
    /// Accepted; an effect follows.
    Queued(JobKey),
    /// Waits for room; not accepted yet.
    Waiting(JobKey),
    /// Not accepted.
    Refused(Refusal),
}

/// A worker for a job. Its holder must hand `state` back by [`Core::release`].
pub(crate) struct Grant<H: Host> {
    pub(crate) key: JobKey,
    pub(crate) worker: u32,
    pub(crate) state: H::State,
}

/// What the host must do once the lock is free.
pub(crate) enum Effect<H: Host> {
    /// Hand the worker to the waiter.
    Start { waiter: H::Waiter, grant: Grant<H> },
    /// Tell the waiter that its job ended before it began. The entry is gone.
    Ended { waiter: H::Waiter, job: H::Job, outcome: Outcome, retry_after: Option<Duration> },
    /// Tell the waiter that its job gets no room. The entry is gone.
    Refused { waiter: H::Waiter, reason: RejectionReason },
}

/// The state machine.
pub(crate) struct Core<H: Host> {
    caps: Caps,
    closed: bool,
    /// Whether an operator had the door shut, for a while.
    shut: bool,
    /// Since when jobs are held back.
    paused: Option<Instant>,
    /// Jobs up to this one were there in a pause: what it cost them is no fault of the estimates.
    pardoned: u64,
    entries: Slab<Entry<H>>,
    sequence: u64,
    admission: Admission,
    queue: Queue,
    limits: Limits,
    running: usize,
    workers: Workers<H::State>,
    sizing: Sizing,
    counts: Counts,
    saturated: bool,
    /// When the machine was last brought to rest.
    #[cfg(test)]
    dispatched: std::cell::Cell<Option<Instant>>,
}

impl<H: Host> Core<H> {
    /// A machine for `kinds` kinds, without workers.
    pub(crate) fn new(caps: Caps, kinds: usize, shards: usize) -> Self {
        Self {
            caps,
            closed: false,
            shut: false,
            paused: None,
            pardoned: 0,
            entries: Slab::new(),
            sequence: 0,
            admission: Admission::new(kinds),
            queue: Queue::new(),
            limits: Limits::default(),
            running: 0,
            workers: Workers::new(shards),
            sizing: Sizing::new(kinds),
            counts: Counts::default(),
            saturated: false,
            #[cfg(test)]
            dispatched: std::cell::Cell::default(),
        }
    }

    /// When [`tick`](Self::tick) would start a job that waits for nothing but time.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let queued = || self.limits.wake_at(|kind_queue| self.queue.has_ready(kind_queue));
        let at = || queued().into_iter().chain(self.caller_wakes_at()).min();
        self.can_start().then(at).flatten()
    }

    /// Callers that wait for room.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.waiting.len()
    }

    /// Whether the job waits for room.
    pub(crate) fn is_waiting(&self, key: JobKey) -> bool {
        self.entry(key).is_some_and(|entry| entry.place == entry::Place::Waiting)
    }

    /// Whether the pool takes no more jobs, and has none.
    pub(crate) fn is_finished(&self) -> bool {
        self.closed && self.entries.is_empty()
    }

    /// Whether the queue reached its upper mark and has not been under the lower one since.
    pub(crate) fn is_saturated(&self) -> bool {
        self.saturated
    }

    /// Workers that could run a job: all but the stuck ones.
    pub(crate) fn live_workers(&self) -> usize {
        self.workers.live()
    }

    /// Stuck workers that were not replaced: the pool is smaller than configured.
    pub(crate) fn unreplaced(&self) -> usize {
        self.workers.unreplaced()
    }

    /// Whether a job that is ready may start.
    fn can_start(&self) -> bool {
        self.paused.is_none() && self.workers.has_idle()
    }

    /// Wait behind all that is queued of `class` and above it, and behind the callers that wait for room; in a paused
    /// pool, if it were resumed now.
    pub(crate) fn expected_wait(&self, class: Criticality) -> Duration {
        if self.can_start() && self.queue.waiting.is_empty() {
            return Duration::ZERO;
        }
        let callers = self.queue.waiting.work_ahead_of(class) / self.workers.live().max(1) as f64;
        seconds(self.wait_behind(class, f64::INFINITY) + callers)
    }

    /// Closes the windows of time that are over.
    fn turn(&mut self, now: Instant) {
        self.admission.turn(now, self.queue.all.is_empty());
    }

    /// The jobs that hold a worker and have no outcome yet.
    pub(crate) fn running_jobs(&self) -> impl Iterator<Item = &H::Job> {
        self.entries.iter().filter(|(_, entry)| entry.is_undecided_run()).map(|(_, entry)| &entry.job)
    }
}
