//! The workers of a pool: idle, busy, stuck, retiring. `workers/sizer.rs` decides on their number.

mod sizer;
mod sizing;
mod slowdown;

use std::time::Duration;

use slab::Slab;
use tokio::time::Instant;

use super::JobKey;
pub(crate) use sizer::Bounds;
pub(super) use sizer::Sizer;
pub(crate) use sizing::Resized;
pub(super) use sizing::Sizing;

/// The workers of a pool. Each shard has a stack of idle ones, so that the max recently used one is taken first.
pub(super) struct Workers<S> {
    workers: Slab<Worker<S>>,
    idle: Vec<Vec<usize>>,
    idle_count: usize,
    next_id: u32,
    /// Stuck workers that were replaced.
    replaced: usize,
    unreplaced: usize,
    /// Busy workers to be removed after their job; 0 if unreplaced stuck workers leave the pool too small.
    surplus: usize,
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
    /// Its job ignores the request to stop; `replaced` says whether another worker replaced it.
    Stuck {
        key: JobKey,
        replaced: bool,
    },
}

impl<S> Workers<S> {
    pub(super) fn new(shards: usize) -> Self {
        let idle = std::iter::repeat_with(Vec::new).take(shards.max(1)).collect();
        Self {
            workers: Slab::new(),
            idle,
            idle_count: 0,
            next_id: 0,
            replaced: 0,
            unreplaced: 0,
            surplus: 0,
            busy: Duration::ZERO,
        }
    }

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

    pub(super) fn live(&self) -> usize {
        self.configured() - self.unreplaced
    }

    /// Number of workers that the pool aims at.
    pub(super) fn configured(&self) -> usize {
        self.workers.len() - self.replaced - self.surplus
    }

    /// Workers that stop after their job.
    pub(super) fn surplus(&self) -> usize {
        self.surplus
    }

    pub(super) fn unreplaced(&self) -> usize {
        self.unreplaced
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Worker<S>> {
        self.workers.iter().map(|(_, worker)| worker)
    }

    /// Id and state of a worker.
    pub(super) fn state(&self, worker: usize) -> (u32, &WorkerState<S>) {
        (self.workers[worker].id, &self.workers[worker].state)
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
            WorkerState::Busy(_) | WorkerState::Stuck { .. } => unreachable!("only idle workers are on the stack"),
        }
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

    /// Takes a worker back. A worker that was replaced while it was stuck is removed, unless another stuck one needs a
    /// replacement. Returns the state of a removed worker, to be dropped outside of the lock.
    pub(super) fn give_back(&mut self, worker: usize, state: S, now: Instant) -> Option<S> {
        self.busy += self.busy_for(worker, now);
        let returned = &mut self.workers[worker];
        returned.changed = now;
        match std::mem::replace(&mut returned.state, WorkerState::Idle(state)) {
            WorkerState::Stuck { replaced: true, .. } if self.reuse_replacement() => self.unreplaced -= 1,
            WorkerState::Stuck { replaced: true, .. } => {
                self.replaced -= 1;
                return self.remove(worker);
            }
            WorkerState::Stuck { replaced: false, .. } => self.unreplaced -= 1,
            WorkerState::Busy(_) if self.surplus > 0 => {
                self.surplus -= 1;
                return self.remove(worker);
            }
            WorkerState::Busy(_) | WorkerState::Idle(_) => {}
        }
        self.park(worker);
        None
    }

    /// Assigns the replacement of a returned worker to another stuck worker, if there is one.
    fn reuse_replacement(&mut self) -> bool {
        if self.unreplaced == 0 {
            return false;
        }
        let missed = self.workers.iter_mut().find_map(|(_, worker)| match &mut worker.state {
            WorkerState::Stuck { replaced, .. } if !*replaced => Some(replaced),
            _ => None,
        });
        *missed.expect("an unreplaced worker is stuck") = true;
        true
    }

    /// Marks a worker as stuck. Returns whether to replace it: only once, and only while fewer than `max` are
    /// replaced.
    pub(super) fn stick(&mut self, worker: usize, key: JobKey, max: usize) -> bool {
        if matches!(self.workers[worker].state, WorkerState::Stuck { .. }) {
            return false;
        }
        if self.surplus > 0 {
            // The worker would be removed anyway, so it needs no replacement.
            self.surplus -= 1;
            self.replaced += 1;
            self.workers[worker].state = WorkerState::Stuck { key, replaced: true };
            return false;
        }
        let replaced = self.replaced < max;
        if replaced {
            self.replaced += 1;
        } else {
            self.unreplaced += 1;
        }
        self.workers[worker].state = WorkerState::Stuck { key, replaced };
        replaced
    }

    /// The states of idle workers.
    pub(super) fn idle_states(&mut self) -> impl Iterator<Item = &mut S> {
        self.workers.iter_mut().filter_map(|(_, worker)| match &mut worker.state {
            WorkerState::Idle(state) => Some(state),
            WorkerState::Busy(_) | WorkerState::Stuck { .. } => None,
        })
    }

    /// Removes all idle states, to be dropped outside of the lock. Only for a closed pool.
    pub(super) fn retire_idle(&mut self) -> Vec<S> {
        let parked: Vec<usize> = self.idle.iter_mut().flat_map(std::mem::take).collect();
        self.idle_count = 0;
        parked.into_iter().filter_map(|worker| self.remove(worker)).collect()
    }

    /// Removes `count` workers: first missing ones, then idle ones from the newest to the oldest, then busy ones after
    /// their job. Returns the states of the removed ones.
    pub(super) fn dismiss(&mut self, count: usize) -> Vec<S> {
        let unmissed = count.min(self.unreplaced);
        let missed = self.workers.iter_mut().filter_map(|(_, worker)| match &mut worker.state {
            WorkerState::Stuck { replaced, .. } if !*replaced => Some(replaced),
            _ => None,
        });
        missed.take(unmissed).for_each(|replaced| *replaced = true);
        self.unreplaced -= unmissed;
        self.replaced += unmissed;
        let mut parked: Vec<usize> = self.idle.iter().flatten().copied().collect();
        let wanted = count - unmissed;
        if wanted < parked.len() {
            parked.select_nth_unstable_by_key(wanted, |worker| std::cmp::Reverse(self.workers[*worker].id));
            parked.truncate(wanted);
        }
        if let Some(oldest) = parked.iter().map(|worker| self.workers[*worker].id).min() {
            let workers = &self.workers;
            self.idle.iter_mut().for_each(|stack| stack.retain(|worker| workers[*worker].id < oldest));
        }
        self.idle_count -= parked.len();
        self.surplus += count - unmissed - parked.len();
        parked.into_iter().filter_map(|worker| self.remove(worker)).collect()
    }

    /// Keeps up to `count` workers that were to be removed. Returns their number.
    pub(super) fn keep(&mut self, count: usize) -> usize {
        let kept = count.min(self.surplus);
        self.surplus -= kept;
        kept
    }

    /// Total time for which workers had jobs.
    pub(super) fn busy_time(&self, now: Instant) -> Duration {
        self.busy + self.workers.iter().map(|(worker, _)| self.busy_for(worker, now)).sum::<Duration>()
    }

    fn remove(&mut self, worker: usize) -> Option<S> {
        match self.workers.remove(worker).state {
            WorkerState::Idle(state) => Some(state),
            WorkerState::Busy(_) | WorkerState::Stuck { .. } => None,
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
