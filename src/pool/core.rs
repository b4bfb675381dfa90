//! The heart: one synchronous state machine, `event, now → effects`.
//!
//! It knows neither clock nor channel nor future. Whoever holds its lock passes the time in, and acts on the effects
//! once the lock is free. Every accepted job has one entry with one life, `queued → running → ended`; cancel, expiry,
//! completion, panic and drain are events that race for the lock, and the first one wins.
//!
//! Invariants (`invariants`): permits out = queued + running; running ≤ workers; queued jobs and their bytes
//! within their caps; one job at most runs per ordering key; kinds and keys within their limits; in a pool that is not
//! paused, an idle worker means that no ready job is queued whose kind is within its limit, and that no first caller could
//! start.

mod admission;
mod askers;
mod backlogs;
mod blocked;
mod bucket;
mod charge;
mod entry;
mod estimate;
mod events;
mod explain;
mod gate;
#[cfg(test)]
mod invariants;
mod law;
mod ledger;
mod limits;
mod lines;
mod list;
mod listing;
mod look;
mod margin;
mod moves;
mod operate;
mod queues;
mod room;
mod settle;
mod sizer;
mod sizing;
mod slowdown;
mod snapshot;
mod tenant_demand;
mod tenants;
#[cfg(test)]
mod tests;
mod turns;
mod waiting;
mod workers;

use std::time::Duration;

use slab::Slab;
use tokio::time::Instant;

use admission::seconds;
pub(crate) use admission::{Refusal, RefusalReason};
use askers::Askers;
pub use askers::TenantRate;
use entry::Entry;
pub(crate) use entry::JobKey;
use estimate::Estimates;
pub(crate) use events::{Withdrawal, Withdrawn};
pub use explain::Binding;
pub(crate) use explain::Standing;
use law::WINDOW;
pub use ledger::Counts;
use ledger::Ledger;
pub(crate) use limits::LimitUse;
use limits::Limits;
use lines::Lines;
use list::List;
pub(crate) use listing::{Holding, Least, least};
use margin::Margin;
pub(crate) use operate::Cancelled;
use queues::Queues;
use room::Seen;
pub(crate) use sizer::Bounds;
pub(crate) use sizing::Resized;
use sizing::Sizing;
pub(crate) use snapshot::{CoreLoad, CoreSnapshot, SizeSnapshot, WorkerCondition, WorkerSnapshot};
use tenant_demand::TenantDemand;
use waiting::Waiting;
use workers::Workers;

use crate::model::{Criticality, Outcome, WhenFull};

/// What the machine carries for its host without looking into it.
pub(crate) trait Host {
    /// Names a job for as long as it has an entry.
    type Job: Clone;
    /// Reaches whoever waits for a queued job to begin.
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
    pub(crate) home: usize,
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
    /// Hand the worker to the one who waits.
    Start { waiter: H::Waiter, grant: Grant<H> },
    /// Tell the waiter that its job ended before it began. The entry is gone.
    Ended { waiter: H::Waiter, job: H::Job, outcome: Outcome, retry_after: Option<Duration> },
    /// Tell the waiter that its job gets no room. The entry is gone.
    Refused { waiter: H::Waiter, reason: RefusalReason },
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
    waiting: Waiting,
    seen: Seen,
    askers: Askers,
    demand: TenantDemand,
    /// Accepted jobs that no worker runs, in order of acceptance.
    queued: List,
    queues: Queues,
    lines: Lines,
    limits: Limits,
    queued_bytes: usize,
    running: usize,
    workers: Workers<H::State>,
    sizing: Sizing,
    estimates: Estimates,
    /// By class.
    margins: [Margin; 4],
    /// Number of the window in which rates are counted, and its end.
    window: u64,
    window_end: Option<Instant>,
    ledger: Ledger,
    saturated: bool,
    /// When the machine was last brought to rest.
    #[cfg(test)]
    settled: std::cell::Cell<Option<Instant>>,
}

impl<H: Host> Core<H> {
    /// A machine for `kinds` kinds, without workers.
    pub(crate) fn new(caps: Caps, kinds: usize, homes: usize) -> Self {
        Self {
            caps,
            closed: false,
            shut: false,
            paused: None,
            pardoned: 0,
            entries: Slab::new(),
            sequence: 0,
            waiting: Waiting::default(),
            seen: Seen::default(),
            askers: Askers::default(),
            demand: TenantDemand::default(),
            queued: List::default(),
            queues: Queues::new(),
            lines: Lines::default(),
            limits: Limits::default(),
            queued_bytes: 0,
            running: 0,
            workers: Workers::new(homes),
            sizing: Sizing::new(kinds),
            estimates: Estimates::new(kinds),
            margins: [Margin::WIDEST; 4],
            window: 0,
            window_end: None,
            ledger: Ledger::default(),
            saturated: false,
            #[cfg(test)]
            settled: std::cell::Cell::default(),
        }
    }

    /// When [`tick`](Self::tick) would start a job that waits for nothing but time.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let queued = || self.limits.wake_at(|lane| self.queues.has_ready(lane));
        let at = || queued().into_iter().chain(self.caller_wakes_at()).min();
        self.can_start().then(at).flatten()
    }

    /// Callers that wait for room.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
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

    /// Stuck workers that nobody replaced: the pool is smaller than configured.
    pub(crate) fn unreplaced(&self) -> usize {
        self.workers.unreplaced()
    }

    /// Whether a job that is ready may start.
    fn can_start(&self) -> bool {
        self.paused.is_none() && self.workers.has_idle()
    }

    /// Wait behind all that is queued of `class` and above it, and behind the callers who wait for room; in a paused
    /// pool, if it were resumed now.
    pub(crate) fn expected_wait(&self, class: Criticality) -> Duration {
        if self.can_start() && self.waiting.is_empty() {
            return Duration::ZERO;
        }
        let callers = self.waiting.work_ahead_of(class) / self.workers.live().max(1) as f64;
        seconds(self.wait_behind(class, f64::INFINITY) + callers)
    }

    /// Closes the windows that are over.
    fn turn_windows(&mut self, now: Instant) {
        let end = *self.window_end.get_or_insert_with(|| now + WINDOW);
        // Each event asks: a difference of instants takes five times as long as a comparison.
        if now < end {
            return;
        }
        let empty = u32::try_from((now - end).as_nanos() / WINDOW.as_nanos()).unwrap_or(u32::MAX - 1);
        for margin in &mut self.margins {
            margin.turn(empty, self.queued.is_empty());
        }
        self.queues.turn(empty);
        if self.paused.is_none() {
            // The pace of a queue is that of the time in which it may start jobs.
            self.window += u64::from(empty) + 1;
            self.demand.turn(self.window);
        }
        self.window_end = Some(end + WINDOW * (empty + 1));
    }

    /// The jobs that hold a worker and have no outcome yet.
    pub(crate) fn running_jobs(&self) -> impl Iterator<Item = &H::Job> {
        self.entries.iter().filter(|(_, entry)| entry.is_undecided_run()).map(|(_, entry)| &entry.job)
    }
}
