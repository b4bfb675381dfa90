//! The workers of a pool: idle, busy, stuck, retiring. `workers/sizer.rs` decides on their number.

mod cold_start;
mod sizer;
mod sizing;

use std::time::Duration;

use slab::Slab;
use tokio::time::Instant;

use super::JobKey;
pub(super) use cold_start::ColdStart;
pub(crate) use sizer::Bounds;
pub(super) use sizer::Sizer;
pub(crate) use sizing::Resized;
pub(super) use sizing::Sizing;

/// The workers of a pool. Each shard has a stack of idle ones, so that the most recently used one is taken first.
pub(super) struct Workers<S> {
    workers: Slab<Worker<S>>,
    idle: Vec<Vec<usize>>,
    idle_count: usize,
    next_id: u32,
    /// Number of workers that the pool aims at. If it has more, busy ones are removed after their job. It has fewer if
    /// stuck workers were not replaced.
    configured: usize,
    stuck: usize,
    /// Worker time of jobs that have ended.
    busy: Duration,
}

/// One worker. It is aligned so that no cache line has parts of two workers, which may belong to different shards.
#[repr(align(128))]
pub(super) struct Worker<S> {
    pub(super) id: u32,
    pub(super) shard: usize,
    pub(super) state: WorkerState<S>,
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) total_run: Duration,
    /// When it last took or gave back a job.
    pub(super) changed: Instant,
}

/// State of a worker.
pub(super) enum WorkerState<S> {
    Idle(S),
    Busy(JobKey),
    /// Its job ignores the request to stop.
    Stuck(JobKey),
}

impl<S> Workers<S> {
    pub(super) fn new(shards: usize) -> Self {
        let idle = std::iter::repeat_with(Vec::new).take(shards.max(1)).collect();
        Self { workers: Slab::new(), idle, idle_count: 0, next_id: 0, configured: 0, stuck: 0, busy: Duration::ZERO }
    }

    /// Adds a worker, in place of a stuck one or up to the configured number.
    pub(super) fn add(&mut self, state: S, now: Instant) {
        let id = self.next_id;
        self.next_id += 1;
        let shard = id as usize % self.idle.len();
        let worker = self.workers.insert(Worker {
            id,
            shard,
            state: WorkerState::Idle(state),
            completed: 0,
            failed: 0,
            total_run: Duration::ZERO,
            changed: now,
        });
        self.park(worker);
    }

    pub(super) fn has_idle(&self) -> bool {
        self.idle_count > 0
    }

    /// Usable workers, without those that stop after their job.
    pub(super) fn live(&self) -> usize {
        self.present().min(self.configured)
    }

    /// Number of workers that the pool aims at.
    pub(super) fn configured(&self) -> usize {
        self.configured
    }

    /// Workers that stop after their job.
    pub(super) fn surplus(&self) -> usize {
        self.present().saturating_sub(self.configured)
    }

    /// Stuck workers that were not replaced.
    pub(super) fn unreplaced(&self) -> usize {
        self.configured.saturating_sub(self.present())
    }

    /// Workers that are not stuck.
    fn present(&self) -> usize {
        self.workers.len() - self.stuck
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Worker<S>> {
        self.workers.iter().map(|(_, worker)| worker)
    }

    pub(super) fn get(&self, worker: usize) -> &Worker<S> {
        &self.workers[worker]
    }

    /// Gives an idle worker, preferably of `shard`, to the job `key`.
    pub(super) fn take(&mut self, shard: usize, key: JobKey, now: Instant) -> Option<(usize, u32, S)> {
        let shards = self.idle.len();
        let worker = (0..shards).find_map(|step| self.idle[(shard + step) % shards].pop())?;
        self.idle_count -= 1;
        let taken = &mut self.workers[worker];
        taken.changed = now;
        match std::mem::replace(&mut taken.state, WorkerState::Busy(key)) {
            WorkerState::Idle(state) => Some((worker, taken.id, state)),
            WorkerState::Busy(_) | WorkerState::Stuck(_) => unreachable!("only idle workers are on the stack"),
        }
    }

    /// The job of a busy worker begins now.
    pub(super) fn begin(&mut self, worker: usize, now: Instant) {
        self.workers[worker].changed = now;
    }

    /// Time that a worker has had its job; zero if it is stuck.
    pub(super) fn busy_for(&self, worker: usize, now: Instant) -> Duration {
        let worker = &self.workers[worker];
        let is_busy = matches!(worker.state, WorkerState::Busy(_));
        if is_busy { now.saturating_duration_since(worker.changed) } else { Duration::ZERO }
    }

    /// Counts an ended job.
    pub(super) fn count(&mut self, worker: usize, completed: bool, run: Duration) {
        let worker = &mut self.workers[worker];
        if completed {
            worker.completed += 1;
        } else {
            worker.failed += 1;
        }
        worker.total_run += run;
    }

    /// Takes a worker back. Returns the state of a removed worker, to be dropped outside of the lock: a worker is
    /// removed if the pool has more than it aims at.
    pub(super) fn give_back(&mut self, worker: usize, state: S, now: Instant) -> Option<S> {
        self.busy += self.busy_for(worker, now);
        let returned = &mut self.workers[worker];
        returned.changed = now;
        if let WorkerState::Stuck(_) = std::mem::replace(&mut returned.state, WorkerState::Idle(state)) {
            self.stuck -= 1;
        }
        if self.present() > self.configured {
            return self.remove(worker);
        }
        self.park(worker);
        None
    }

    /// Marks a worker as stuck. Returns whether to replace it: only once, only if the pool is too small without it, and
    /// only while fewer than `max` are replaced.
    pub(super) fn stick(&mut self, worker: usize, key: JobKey, max: usize) -> bool {
        if matches!(self.workers[worker].state, WorkerState::Stuck(_)) {
            return false;
        }
        let replaced = self.stuck - self.unreplaced();
        self.workers[worker].state = WorkerState::Stuck(key);
        self.stuck += 1;
        self.unreplaced() > 0 && replaced < max
    }

    /// The states of idle workers.
    pub(super) fn idle_states(&mut self) -> impl Iterator<Item = &mut S> {
        self.workers.iter_mut().filter_map(|(_, worker)| match &mut worker.state {
            WorkerState::Idle(state) => Some(state),
            WorkerState::Busy(_) | WorkerState::Stuck(_) => None,
        })
    }

    /// Removes all idle states, to be dropped outside of the lock. Only for a closed pool.
    pub(super) fn retire_idle(&mut self) -> Vec<S> {
        let parked: Vec<usize> = self.idle.iter_mut().flat_map(std::mem::take).collect();
        self.idle_count = 0;
        self.configured -= parked.len();
        parked.into_iter().filter_map(|worker| self.remove(worker)).collect()
    }

    /// Aims at `configured` workers. If there are more, idle ones are removed from the newest to the oldest, and busy
    /// ones after their job. Returns the states of the removed ones, and how many workers to [add](Self::add).
    pub(super) fn configure(&mut self, configured: usize) -> (Vec<S>, usize) {
        let aimed_at = self.configured.max(self.present());
        self.configured = configured;
        let mut parked: Vec<usize> = self.idle.iter().flatten().copied().collect();
        parked.sort_unstable_by_key(|worker| std::cmp::Reverse(self.workers[*worker].id));
        parked.truncate(self.surplus());
        if let Some(oldest) = parked.last().map(|worker| self.workers[*worker].id) {
            let workers = &self.workers;
            self.idle.iter_mut().for_each(|stack| stack.retain(|worker| workers[*worker].id < oldest));
        }
        self.idle_count -= parked.len();
        let removed = parked.into_iter().filter_map(|worker| self.remove(worker)).collect();
        (removed, configured.saturating_sub(aimed_at))
    }

    /// Total time for which workers had jobs.
    pub(super) fn busy_time(&self, now: Instant) -> Duration {
        self.busy + self.workers.iter().map(|(worker, _)| self.busy_for(worker, now)).sum::<Duration>()
    }

    fn remove(&mut self, worker: usize) -> Option<S> {
        match self.workers.remove(worker).state {
            WorkerState::Idle(state) => Some(state),
            WorkerState::Busy(_) | WorkerState::Stuck(_) => None,
        }
    }

    /// Ids of idle workers by shard; the last one is taken next.
    #[cfg(test)]
    pub(super) fn parked(&self) -> Vec<Vec<u32>> {
        let ids = |workers: &Vec<usize>| workers.iter().map(|worker| self.workers[*worker].id).collect();
        self.idle.iter().map(ids).collect()
    }

    fn park(&mut self, worker: usize) {
        self.idle[self.workers[worker].shard].push(worker);
        self.idle_count += 1;
    }
}
