//! A copy of the scheduler's figures.

use std::time::Duration;

use tokio::time::Instant;

use super::{Bounds, Core, Counts, Host, JobKey, LimitStats, workers::Duty};
use crate::model::Criticality;

/// A copy of the machine's figures, taken under the lock and read without it.
pub(crate) struct CoreSnapshot<J> {
    pub(crate) closed: bool,
    /// Whether an operator has shut the pool.
    pub(crate) shut: bool,
    /// When the pool was paused.
    pub(crate) paused: Option<Instant>,
    pub(crate) queued: usize,
    pub(crate) queued_bytes: usize,
    pub(crate) waiting: usize,
    pub(crate) running: usize,
    pub(crate) live_workers: usize,
    pub(crate) size: SizeStats,
    /// The job that was accepted first of those that are queued.
    pub(crate) oldest: Option<J>,
    pub(crate) expected_wait: Duration,
    pub(crate) counts: Counts,
    pub(crate) workers: Vec<WorkerSnapshot<J>>,
    /// By kind, where it has limits.
    pub(crate) limits: Vec<(usize, LimitStats)>,
}

/// Number of workers of a pool, and what decides it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizeStats {
    /// Smallest number of workers.
    pub min: usize,
    /// Largest number of workers; the same if it is fixed.
    pub max: usize,
    /// Number of workers that the pool aims at.
    pub workers: usize,
    /// Workers that stop after their job.
    pub retiring: usize,
    /// Run time of jobs, relative to the run time before; 1 if nothing was compared.
    pub slowdown: f64,
    /// Whether the pool does not grow because jobs take longer.
    pub held_back: bool,
}

/// The figures that change with every job, without copies of lists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CoreLoad {
    pub(crate) queued: usize,
    pub(crate) running: usize,
    pub(crate) live_workers: usize,
    pub(crate) counts: Counts,
}

/// One worker.
pub(crate) struct WorkerSnapshot<J> {
    pub(crate) id: u32,
    pub(crate) condition: WorkerCondition<J>,
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    pub(crate) total_run: Duration,
    pub(crate) changed: Instant,
}

/// State of a worker.
pub(crate) enum WorkerCondition<J> {
    Idle,
    Busy(J),
    Stuck(J),
}

impl<H: Host> Core<H> {
    /// Copies the figures.
    pub(crate) fn snapshot(&self) -> CoreSnapshot<H::Job> {
        CoreSnapshot {
            closed: self.closed,
            shut: self.shut,
            paused: self.paused,
            queued: self.queue.all.len(),
            queued_bytes: self.queue.bytes,
            waiting: self.queue.waiting.len(),
            running: self.running,
            live_workers: self.workers.live(),
            size: self.size(),
            oldest: self.queue.all.head().map(|index| self.entries[index].job.clone()),
            expected_wait: self.expected_wait(Criticality::default()),
            counts: self.counts,
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
        }
    }

    /// Whether an operator has shut the pool, and whether it is paused.
    pub(crate) fn is_held(&self) -> (bool, bool) {
        (self.shut, self.paused.is_some())
    }

    /// Copies the figures of the load.
    pub(crate) fn load(&self) -> CoreLoad {
        CoreLoad {
            queued: self.queue.all.len(),
            running: self.running,
            live_workers: self.workers.live(),
            counts: self.counts,
        }
    }

    fn worker_snapshots(&self) -> Vec<WorkerSnapshot<H::Job>> {
        let job = |key: JobKey| self.entries[key.index].job.clone();
        let workers = self.workers.iter().map(|slot| WorkerSnapshot {
            id: slot.id,
            condition: match slot.duty {
                Duty::Idle(_) => WorkerCondition::Idle,
                Duty::Busy(key) => WorkerCondition::Busy(job(key)),
                Duty::Stuck { key, .. } => WorkerCondition::Stuck(job(key)),
            },
            completed: slot.completed,
            failed: slot.failed,
            total_run: slot.total_run,
            changed: slot.changed,
        });
        let mut workers: Vec<_> = workers.collect();
        workers.sort_unstable_by_key(|worker| worker.id);
        workers
    }
}
