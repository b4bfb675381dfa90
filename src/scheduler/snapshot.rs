//! The statistics of the scheduler: its counters, and copies of its state that are read without the lock.

use std::time::Duration;

use tokio::time::Instant;

use super::{Bounds, Core, Host, LimitStats, workers::WorkerState};
use crate::model::{Criticality, KindId, Outcome, Reason, RejectionReason};

/// Counters of jobs since the start of the pool.
///
/// `accepted = completed + failed + cancelled + expired + panicked + shed + queued + running`. A running job whose
/// caller was answered, but whose handler is still stopping, counts as ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Accepted jobs.
    pub accepted: u64,
    /// Jobs whose handler returned a result in time.
    pub completed: u64,
    /// Jobs whose handler returned an error or was unavailable, whose process crashed or worker was lost, or whose
    /// output was too large.
    pub failed: u64,
    /// Jobs whose caller disconnected or cancelled, or that a drain stopped.
    pub cancelled: u64,
    /// Jobs that reached their deadline, queued or running, or their run timeout.
    pub expired: u64,
    /// Jobs whose handler panicked.
    pub panicked: u64,
    /// Jobs that were evicted for more important ones, or replaced by newer ones.
    pub shed: u64,
    /// Refused jobs, in the order of [`Reason::REFUSALS`].
    pub rejected: [u64; Reason::REFUSALS.len()],
}

/// A copy of the statistics, taken under the lock and read without it.
pub(crate) struct CoreSnapshot<J> {
    /// Whether the pool drains, or has drained.
    pub(crate) closed_for_good: bool,
    /// Whether an operator has shut the pool.
    pub(crate) shut_by_operator: bool,
    /// When the pool was paused.
    pub(crate) paused: Option<Instant>,
    pub(crate) load: CoreLoad,
    pub(crate) queued_bytes: usize,
    pub(crate) waiting: usize,
    pub(crate) size: SizeStats,
    /// The queued job that was accepted first.
    pub(crate) oldest: Option<J>,
    pub(crate) expected_wait: Duration,
    /// By kind, with its limit.
    pub(crate) expected_waits: Vec<Duration>,
    pub(crate) workers: Vec<WorkerSnapshot<J>>,
    /// Use of each kind with limits.
    pub(crate) limits: Vec<(KindId, LimitStats)>,
}

/// Number of workers of a pool, and what determines it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct SizeStats {
    /// Smallest number of workers.
    pub min: usize,
    /// Largest number of workers; the same if it is fixed.
    pub max: usize,
    /// Number of workers that the pool aims at.
    pub workers: usize,
    /// Workers that stop after their job.
    pub retiring: usize,
    /// Run time of jobs divided by the reference run time; 1 if there is no reference.
    pub slowdown: f64,
    /// Whether the pool does not grow, because jobs take longer than before.
    pub held_back: bool,
    /// Usual time until the first worker attaches, if jobs want one; zero if that is not known.
    pub cold_start: Duration,
}

/// The statistics that change with every job, without copies of lists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CoreLoad {
    pub(crate) queued: usize,
    pub(crate) running: usize,
    pub(crate) live_workers: usize,
    pub(crate) max_workers: usize,
    pub(crate) counts: Counts,
}

/// One worker.
pub(crate) struct WorkerSnapshot<J> {
    pub(crate) id: u32,
    /// Its job; `None` if it is idle.
    pub(crate) job: Option<J>,
    /// Whether its job ignores the request to stop.
    pub(crate) is_stuck: bool,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) total_run: Duration,
    pub(crate) changed: Instant,
}

impl Counts {
    /// Accepted jobs that ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.completed + self.failed + self.cancelled + self.expired + self.panicked + self.shed
    }

    pub(super) fn count(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Completed => &mut self.completed,
            Outcome::HandlerFailed
            | Outcome::WorkerCrashed
            | Outcome::WorkerLost { .. }
            | Outcome::OutputTooLarge
            | Outcome::HandlerUnavailable => &mut self.failed,
            Outcome::Cancelled | Outcome::CancelledByOperator | Outcome::Drained | Outcome::DrainKilled { .. } => {
                &mut self.cancelled
            }
            Outcome::DeadlineExceeded | Outcome::RunTimeout | Outcome::ExpiredInQueue => &mut self.expired,
            Outcome::HandlerPanicked => &mut self.panicked,
            Outcome::Shed | Outcome::Replaced => &mut self.shed,
        } += 1;
    }
}

impl<H: Host> Core<H> {
    /// Counts a refusal.
    pub(crate) fn count_rejection(&mut self, reason: &RejectionReason) {
        self.counts.rejected[reason.index()] += 1;
    }

    /// Copies the statistics.
    pub(crate) fn snapshot(&self, now: Instant) -> CoreSnapshot<H::Job> {
        let class = Criticality::default();
        CoreSnapshot {
            closed_for_good: self.closed_for_good,
            shut_by_operator: self.shut_by_operator,
            paused: self.paused,
            load: self.load(),
            queued_bytes: self.queue.bytes,
            waiting: self.queue.waiting.len(),
            size: self.size(),
            oldest: self.queue.all.head().map(|index| self.entries[index].job.clone()),
            expected_wait: self.expected_wait(now, class),
            expected_waits: (0..self.limits.kinds())
                .map(|kind| self.expected_wait_of(now, KindId(kind), class))
                .collect(),
            workers: self.worker_snapshots(),
            limits: self.limits.uses(|kind_queue| self.queue.jobs_of(kind_queue)),
        }
    }

    fn size(&self) -> SizeStats {
        let Bounds { min, max } = self.sizing.bounds;
        SizeStats {
            min,
            max,
            workers: self.workers.configured(),
            retiring: self.workers.surplus(),
            slowdown: self.sizing.slowdown.ratio(),
            held_back: self.sizing.sizer.is_held_back(),
            cold_start: self.cold_start.usual().unwrap_or_default(),
        }
    }

    /// Copies the statistics of the load.
    pub(crate) fn load(&self) -> CoreLoad {
        CoreLoad {
            queued: self.queue.all.len(),
            running: self.running,
            live_workers: self.workers.live(),
            max_workers: self.sizing.bounds.max,
            counts: self.counts,
        }
    }

    /// Jobs that run or wait, and at least one while the pool wants its first worker.
    pub(crate) fn demand(&self, now: Instant) -> usize {
        let jobs = self.running + self.queue.all.len() + self.queue.waiting.len();
        jobs.max(usize::from(self.wants_worker(now)))
    }

    fn worker_snapshots(&self) -> Vec<WorkerSnapshot<H::Job>> {
        let workers = self.workers.iter().map(|worker| WorkerSnapshot {
            id: worker.id,
            job: match worker.state {
                WorkerState::Idle(_) => None,
                WorkerState::Busy(key) | WorkerState::Stuck(key) => Some(self.entries[key.index].job.clone()),
            },
            is_stuck: matches!(worker.state, WorkerState::Stuck(_)),
            completed: worker.completed,
            failed: worker.failed,
            total_run: worker.total_run,
            changed: worker.changed,
        });
        let mut workers: Vec<_> = workers.collect();
        workers.sort_unstable_by_key(|worker| worker.id);
        workers
    }
}
