//! The scheduler of a pool: one synchronous state machine, `event, now → effects`.
//!
//! It has no clock, no channel and no future. The host holds its lock, passes the time in, and carries out the effects
//! after releasing the lock. Every accepted job has one entry with one life, `queued → running → ended`. Cancel,
//! expiry, completion, panic and drain are events that race for the lock; the first one wins.
//!
//! `core` has the events. Four machines own their sums: `admission`, `queue`, `limit` and `workers`. `dispatch` gives
//! capacity and workers to waiting jobs, and `transitions` moves a job from one stage to the next.
//!
//! Invariants (`invariants`): each entry waits, is queued or runs; running ≤ workers; queued jobs and their bytes
//! within their caps; at most one running job per ordering key; kinds and keys within their limits. In a pool that is
//! not paused, no worker is idle while a ready job's kind is within its limit, or while a first caller could start.

mod admission;
mod core;
mod dispatch;
mod drop_oldest;
mod entry;
#[cfg(test)]
#[path = "scheduler/tests/invariants.rs"]
mod invariants;
mod limit;
mod list;
mod listing;
mod operate;
mod queue;
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
use entry::Entry;
pub(crate) use entry::JobKey;
pub use limit::LimitStats;
use limit::Limits;
pub use listing::{Binding, Queued, Wait};
pub(crate) use listing::{Explained, Held, Smallest, smallest};
pub use operate::Suspension;
use queue::Queue;
pub(crate) use snapshot::{CoreLoad, WorkerSnapshot};
pub use snapshot::{Counts, SizeStats};
pub(crate) use workers::{Bounds, Resized};
use workers::{ColdStart, Sizing, Workers};

use crate::model::{Criticality, KindId, Outcome, RejectionReason, WhenFull};

/// Types that the scheduler carries for its host.
pub(crate) trait Host {
    /// Identifies a job as long as it has an entry.
    type Job: Clone;
    /// The way to the caller of a queued job.
    type Waiter;
    /// State of a worker between jobs.
    type State;
}

/// The bounds of a pool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Caps {
    /// Maximum number of jobs in the queue.
    pub(crate) jobs: usize,
    /// Maximum payload bytes of queued jobs, and separately of waiting callers.
    pub(crate) bytes: usize,
    /// Maximum number of waiting callers.
    pub(crate) waiting: usize,
    /// Largest part of the queue, by jobs and by bytes, for one tenant while another is present.
    pub(crate) tenant_share: f64,
    /// Maximum number of stuck workers that are replaced.
    pub(crate) stuck: usize,
}

/// A job that asks to be admitted.
pub(crate) struct Arrival<'a, J> {
    pub(crate) job: J,
    pub(crate) kind: KindId,
    pub(crate) class: Criticality,
    pub(crate) bytes: usize,
    /// The job must not start at or after this instant.
    pub(crate) start_by: Instant,
    /// The deadline of the job, after which its result is useless.
    pub(crate) finish_by: Instant,
    pub(crate) tenant: &'a str,
    pub(crate) ordering_key: &'a str,
    pub(crate) limit_key: &'a str,
    pub(crate) when_full: WhenFull,
    /// Whether a store has counted the job for the limits of its kind.
    pub(crate) is_stored: bool,
    /// The runtime of the caller. Its workers are preferred.
    pub(crate) shard: usize,
}

/// What happens to an arrival.
pub(crate) enum Verdict<H: Host> {
    /// Accepted, and a worker is free.
    Start(Grant<H>),
    /// Accepted; an effect follows.
    Queued(JobKey),
    /// Waits for capacity; not accepted yet.
    Waiting(JobKey),
    /// Not accepted.
    Refused(Refusal),
}

/// A worker for a job. Its holder must give `state` back by [`Core::release`].
pub(crate) struct Grant<H: Host> {
    pub(crate) key: JobKey,
    pub(crate) worker: u32,
    pub(crate) state: H::State,
}

/// An action for the host once the lock is free.
pub(crate) enum Effect<H: Host> {
    /// Hand the worker to the waiter.
    Start { waiter: H::Waiter, grant: Grant<H> },
    /// Notify the waiter that its job ended before it began. The entry is gone.
    Ended { waiter: H::Waiter, job: H::Job, outcome: Outcome, retry_after: Option<Duration> },
    /// Notify the waiter that its job is refused. The entry is gone.
    Refused { waiter: H::Waiter, reason: RejectionReason },
}

/// The state machine.
pub(crate) struct Core<H: Host> {
    caps: Caps,
    /// Whether the pool drains, or has drained.
    closed_for_good: bool,
    /// Whether an operator has shut the pool, until it is opened again.
    shut_by_operator: bool,
    /// Start of a drain that has not ended.
    drain_began: Option<Instant>,
    /// When the pool was paused.
    paused: Option<Instant>,
    /// The last job that arrived before the end of a pause. Missed deadlines up to this one do not count against the
    /// estimates.
    last_paused: u64,
    entries: Slab<Entry<H>>,
    sequence: u64,
    admission: Admission,
    queue: Queue,
    limits: Limits,
    running: usize,
    workers: Workers<H::State>,
    sizing: Sizing,
    cold_start: ColdStart,
    counts: Counts,
    saturated: bool,
    /// Time of the last dispatch.
    #[cfg(test)]
    dispatched: std::cell::Cell<Option<Instant>>,
}

impl<H: Host> Core<H> {
    /// A scheduler for `kinds` kinds, without workers.
    pub(crate) fn new(caps: Caps, kinds: usize, shards: usize) -> Self {
        Self {
            caps,
            closed_for_good: false,
            shut_by_operator: false,
            drain_began: None,
            paused: None,
            last_paused: 0,
            entries: Slab::new(),
            sequence: 0,
            admission: Admission::new(kinds),
            queue: Queue::new(),
            limits: Limits::new(),
            running: 0,
            workers: Workers::new(shards),
            sizing: Sizing::new(kinds),
            cold_start: ColdStart::default(),
            counts: Counts::default(),
            saturated: false,
            #[cfg(test)]
            dispatched: std::cell::Cell::default(),
        }
    }

    /// When [`tick`](Self::tick) can start a job that only waits for time.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let queued = || self.limits.wake_at(|kind_queue| self.queue.has_ready(kind_queue));
        let at = || queued().into_iter().chain(self.caller_wakes_at()).min();
        self.can_start().then(at).flatten()
    }

    /// Waiting callers.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.waiting.len()
    }

    /// Whether the job waits for capacity.
    pub(crate) fn is_waiting(&self, key: JobKey) -> bool {
        self.entry(key).is_some_and(|entry| entry.stage == entry::EntryStage::Waiting)
    }

    /// Whether the pool accepts no more jobs and has none left.
    pub(crate) fn is_finished(&self) -> bool {
        self.closed_for_good && self.entries.is_empty()
    }

    /// Start of the drain that has just ended: no job is left.
    pub(crate) fn take_drained(&mut self) -> Option<Instant> {
        self.drain_began.take_if(|_| self.entries.is_empty())
    }

    /// Whether the queue reached its upper threshold, and has not been below the lower one since.
    pub(crate) fn is_saturated(&self) -> bool {
        self.saturated
    }

    /// Usable workers: all except the stuck ones.
    pub(crate) fn live_workers(&self) -> usize {
        self.workers.live()
    }

    /// Stuck workers that were not replaced: the pool is smaller than configured.
    pub(crate) fn unreplaced(&self) -> usize {
        self.workers.unreplaced()
    }

    /// Whether a job could be accepted now, or the pool will not accept one any more.
    pub(crate) fn may_accept(&self) -> bool {
        self.closed_for_good
            || self.can_start()
            || (!self.shut_by_operator && self.has_capacity(Criticality::default(), 0))
    }

    /// Whether a ready job may start.
    fn can_start(&self) -> bool {
        self.paused.is_none() && self.workers.has_idle()
    }

    /// Wait behind all queued jobs of `class` and above, and behind the waiting callers, and for a worker if there is
    /// none. For a paused pool, as if it resumed now.
    pub(crate) fn expected_wait(&self, now: Instant, class: Criticality) -> Duration {
        if self.can_start() && self.queue.waiting.is_empty() {
            return Duration::ZERO;
        }
        let callers = self.queue.waiting.work_ahead_of(class) / self.workers.live().max(1) as f64;
        seconds(self.wait_behind(class, f64::INFINITY) + callers + self.start_wait(now))
    }

    /// The same for a job of `kind`, which may also wait for a limit of its kind. Limits per key are not included.
    pub(crate) fn expected_wait_of(&self, now: Instant, kind: KindId, class: Criticality) -> Duration {
        let kind_queue = self.limits.kind_queue(kind);
        let before = self.queue.ahead(kind_queue, class, f64::INFINITY);
        let service = self.admission.estimates.service(kind);
        let limit = self.limits.wait(kind_queue, before, None, service, now);
        self.expected_wait(now, class).max(seconds(limit.seconds))
    }

    /// Time until no job is left, if none arrives: the work in the queue, and the longest rest of a running job. A job
    /// that has run for longer than usual is expected to run as long again, and one of an unmeasured kind all its time.
    pub(crate) fn expected_end(&self, now: Instant) -> Duration {
        let rest = |entry: &Entry<H>| {
            let left = entry.finish_by.saturating_duration_since(now);
            let usual = self.admission.estimates.measured(entry.kind).map(seconds);
            let ran = self.workers.busy_for(entry.stage.worker()?, now);
            Some(usual.map_or(left, |usual| usual.checked_sub(ran).unwrap_or(ran).min(left)))
        };
        let runs = self.entries.iter().filter_map(|(_, entry)| rest(entry)).max();
        let lowest = Criticality::BY_IMPORTANCE[3];
        runs.unwrap_or_default() + seconds(self.wait_behind(lowest, f64::INFINITY))
    }

    /// Advances the measurements to `now`.
    fn advance(&mut self, now: Instant) {
        self.admission.advance(now, self.queue.all.is_empty());
    }

    /// Jobs with a worker and without an outcome.
    pub(crate) fn running_jobs(&self) -> impl Iterator<Item = &H::Job> {
        self.entries.iter().filter(|(_, entry)| entry.is_undecided_run()).map(|(_, entry)| &entry.job)
    }
}
