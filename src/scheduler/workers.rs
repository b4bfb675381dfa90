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

/// The workers of a pool. Each shard has a stack of idle ones, so that the most recently used one is taken first.
pub(super) struct Workers<S> {
    slots: Slab<Slot<S>>,
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
pub(super) struct Slot<S> {
    pub(super) id: u32,
    pub(super) shard: usize,
    pub(super) duty: Duty<S>,
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) total_run: Duration,
    /// When it last took or gave back a job.
    pub(super) changed: Instant,
}

/// State of a worker.
pub(super) enum Duty<S> {
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
            slots: Slab::new(),
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
        let slot = self.slots.insert(Slot {
            id,
            shard,
            duty: Duty::Idle(state),
            completed: 0,
            failed: 0,
            total_run: Duration::ZERO,
            changed: now,
        });
        self.park(slot);
    }

    pub(super) fn has_idle(&self) -> bool {
        self.idle_count > 0
    }

    pub(super) fn live(&self) -> usize {
        self.configured() - self.unreplaced
    }

    /// Number of workers that the pool aims at.
    pub(super) fn configured(&self) -> usize {
        self.slots.len() - self.replaced - self.surplus
    }

    /// Workers that stop after their job.
    pub(super) fn surplus(&self) -> usize {
        self.surplus
    }

    pub(super) fn unreplaced(&self) -> usize {
        self.unreplaced
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<S>> {
        self.slots.iter().map(|(_, slot)| slot)
    }

    /// Id and state of a worker.
    pub(super) fn duty(&self, slot: usize) -> (u32, &Duty<S>) {
        (self.slots[slot].id, &self.slots[slot].duty)
    }

    /// Gives an idle worker, preferably of `shard`, to the job `key`.
    pub(super) fn take(&mut self, shard: usize, key: JobKey, now: Instant) -> Option<(usize, u32, S)> {
        let shards = self.idle.len();
        let slot = (0..shards).find_map(|step| self.idle[(shard + step) % shards].pop())?;
        self.idle_count -= 1;
        let taken = &mut self.slots[slot];
        taken.changed = now;
        match std::mem::replace(&mut taken.duty, Duty::Busy(key)) {
            Duty::Idle(state) => Some((slot, taken.id, state)),
            Duty::Busy(_) | Duty::Stuck { .. } => unreachable!("only idle workers are on the stack"),
        }
    }

    /// Time that a worker has had its job; zero if it is stuck.
    pub(super) fn busy_for(&self, slot: usize, now: Instant) -> Duration {
        let slot = &self.slots[slot];
        let is_busy = matches!(slot.duty, Duty::Busy(_));
        if is_busy { now.saturating_duration_since(slot.changed) } else { Duration::ZERO }
    }

    /// Counts an ended job.
    pub(super) fn count(&mut self, slot: usize, completed: bool, run: Duration) {
        let slot = &mut self.slots[slot];
        if completed {
            slot.completed += 1;
        } else {
            slot.failed += 1;
        }
        slot.total_run += run;
    }

    /// Takes a worker back. A worker that was replaced while it was stuck is removed, unless another stuck one needs a
    /// replacement. Returns the state of a removed worker, to be dropped outside of the lock.
    pub(super) fn give_back(&mut self, slot: usize, state: S, now: Instant) -> Option<S> {
        self.busy += self.busy_for(slot, now);
        let returned = &mut self.slots[slot];
        returned.changed = now;
        match std::mem::replace(&mut returned.duty, Duty::Idle(state)) {
            Duty::Stuck { replaced: true, .. } if self.reuse_replacement() => self.unreplaced -= 1,
            Duty::Stuck { replaced: true, .. } => {
                self.replaced -= 1;
                return self.remove(slot);
            }
            Duty::Stuck { replaced: false, .. } => self.unreplaced -= 1,
            Duty::Busy(_) if self.surplus > 0 => {
                self.surplus -= 1;
                return self.remove(slot);
            }
            Duty::Busy(_) | Duty::Idle(_) => {}
        }
        self.park(slot);
        None
    }

    /// Assigns the replacement of a returned worker to another stuck worker, if there is one.
    fn reuse_replacement(&mut self) -> bool {
        if self.unreplaced == 0 {
            return false;
        }
        let missed = self.slots.iter_mut().find_map(|(_, slot)| match &mut slot.duty {
            Duty::Stuck { replaced, .. } if !*replaced => Some(replaced),
            _ => None,
        });
        *missed.expect("an unreplaced worker is stuck") = true;
        true
    }

    /// Marks a worker as stuck. Returns whether to replace it: only once, and only while fewer than `most` are
    /// replaced.
    pub(super) fn stick(&mut self, slot: usize, key: JobKey, most: usize) -> bool {
        if matches!(self.slots[slot].duty, Duty::Stuck { .. }) {
            return false;
        }
        if self.surplus > 0 {
            // The worker would be removed anyway, so it needs no replacement.
            self.surplus -= 1;
            self.replaced += 1;
            self.slots[slot].duty = Duty::Stuck { key, replaced: true };
            return false;
        }
        let replaced = self.replaced < most;
        if replaced {
            self.replaced += 1;
        } else {
            self.unreplaced += 1;
        }
        self.slots[slot].duty = Duty::Stuck { key, replaced };
        replaced
    }

    /// The states of idle workers.
    pub(super) fn idle_states(&mut self) -> impl Iterator<Item = &mut S> {
        self.slots.iter_mut().filter_map(|(_, slot)| match &mut slot.duty {
            Duty::Idle(state) => Some(state),
            Duty::Busy(_) | Duty::Stuck { .. } => None,
        })
    }

    /// Removes all idle states, to be dropped outside of the lock. Only for a closed pool.
    pub(super) fn retire_idle(&mut self) -> Vec<S> {
        let parked: Vec<usize> = self.idle.iter_mut().flat_map(std::mem::take).collect();
        self.idle_count = 0;
        parked.into_iter().filter_map(|slot| self.remove(slot)).collect()
    }

    /// Removes `count` workers: first missing ones, then idle ones from the newest to the oldest, then busy ones after
    /// their job. Returns the states of the removed ones.
    pub(super) fn dismiss(&mut self, count: usize) -> Vec<S> {
        let unmissed = count.min(self.unreplaced);
        let missed = self.slots.iter_mut().filter_map(|(_, slot)| match &mut slot.duty {
            Duty::Stuck { replaced, .. } if !*replaced => Some(replaced),
            _ => None,
        });
        missed.take(unmissed).for_each(|replaced| *replaced = true);
        self.unreplaced -= unmissed;
        self.replaced += unmissed;
        let mut parked: Vec<usize> = self.idle.iter().flatten().copied().collect();
        let wanted = count - unmissed;
        if wanted < parked.len() {
            parked.select_nth_unstable_by_key(wanted, |slot| std::cmp::Reverse(self.slots[*slot].id));
            parked.truncate(wanted);
        }
        if let Some(oldest) = parked.iter().map(|slot| self.slots[*slot].id).min() {
            let slots = &self.slots;
            self.idle.iter_mut().for_each(|stack| stack.retain(|slot| slots[*slot].id < oldest));
        }
        self.idle_count -= parked.len();
        self.surplus += count - unmissed - parked.len();
        parked.into_iter().filter_map(|slot| self.remove(slot)).collect()
    }

    /// Keeps up to `count` workers that were to be removed. Returns their number.
    pub(super) fn keep(&mut self, count: usize) -> usize {
        let kept = count.min(self.surplus);
        self.surplus -= kept;
        kept
    }

    /// Total time for which workers had jobs.
    pub(super) fn busy_time(&self, now: Instant) -> Duration {
        self.busy + self.slots.iter().map(|(slot, _)| self.busy_for(slot, now)).sum::<Duration>()
    }

    fn remove(&mut self, slot: usize) -> Option<S> {
        match self.slots.remove(slot).duty {
            Duty::Idle(state) => Some(state),
            Duty::Busy(_) | Duty::Stuck { .. } => None,
        }
    }

    /// Ids of idle workers by shard; the last one is taken next.
    #[cfg(test)]
    pub(super) fn parked(&self) -> Vec<Vec<u32>> {
        let ids = |slots: &Vec<usize>| slots.iter().map(|slot| self.slots[*slot].id).collect();
        self.idle.iter().map(ids).collect()
    }

    fn park(&mut self, slot: usize) {
        self.idle[self.slots[slot].shard].push(slot);
        self.idle_count += 1;
    }
}
