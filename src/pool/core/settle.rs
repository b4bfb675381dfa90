use tokio::time::Instant;

use super::{
    Core, Effect, Ending, Grant, Host, JobKey, QueueEnd,
    admission::seconds,
    entry::{LINE, Place},
    gate::Due,
    moves::tell,
};
use crate::model::RejectionReason;

impl<H: Host> Core<H> {
    /// Brings the machine to rest: callers get the room that is there, workers the jobs that are ready.
    pub(super) fn settle(&mut self, now: Instant, effects: &mut Vec<Effect<H>>) {
        // Most pools are at rest most of the time: nobody is there to be served.
        while !(self.waiting.is_empty() && self.queued.is_empty()) {
            self.admit_waiting(now, effects);
            self.open_gates(now);
            if !self.can_start() {
                break;
            }
            let Some(index) = self.head(now).or_else(|| self.admit_to_worker(now)) else { break };
            if self.is_late(now, index) {
                self.end_queued(index, Ending::Expired, QueueEnd::Expired, effects);
            } else {
                self.start(now, index, effects);
            }
        }
        debug_assert!(self.queued.len() <= self.caps.jobs && self.held_bytes <= self.caps.bytes);
        debug_assert_eq!(self.entries.len(), self.waiting.len() + self.queued.len() + self.running);
        debug_assert!(!self.can_start() || self.head(now).is_none());
        #[cfg(test)]
        self.settled.set(Some(now));
    }

    /// The job to start next.
    pub(super) fn head(&self, now: Instant) -> Option<usize> {
        self.queues.head(&self.law, |lane| self.limits.is_open(lane, now))
    }

    /// Whether nothing of its kind and its limit key is before a job, and both may start one.
    pub(super) fn is_within_limits(&self, now: Instant, lane: usize, limit_key: &str) -> bool {
        let first = !self.queues.has_ready(lane) && self.limits.is_key_open(lane, limit_key, now);
        first && self.limits.is_open(lane, now)
    }

    /// Lets jobs through to the ready ones as far as their limit keys let them, the oldest first.
    fn open_gates(&mut self, now: Instant) {
        if self.limits.is_calm(now) {
            return;
        }
        let entries = &self.entries;
        let mut due = self.limits.due(now, |index| entries[index].sequence);
        while let Some(Due { age: _, gate }) = due.pop() {
            if !self.limits.let_through(gate, now) {
                continue;
            }
            let held = &mut self.limits.gate_mut(gate).held;
            let index = held.pop_front(&mut self.entries, LINE).expect("only gates that hold a job are due");
            let next = held.head();
            self.entries[index].place = Place::Ready;
            self.queues.push(&mut self.entries, index);
            due.extend(next.map(|next| Due { age: self.entries[next].sequence, gate }));
        }
    }

    /// Whether a queued job would not end in time, most likely: half of what its kind takes must be left.
    fn is_late(&self, now: Instant, index: usize) -> bool {
        let entry = &self.entries[index];
        let half = self.estimates.measured(entry.kind).unwrap_or(0.0) / 2.0;
        entry.start_by <= now || entry.finish_by.saturating_duration_since(now) <= seconds(half)
    }

    fn admit_waiting(&mut self, now: Instant, effects: &mut Vec<Effect<H>>) {
        while let Some(index) = self.waiting.head() {
            if self.entries[index].start_by <= now {
                self.ledger.counts.rejected[RejectionReason::NoRoomInTime.index()] += 1;
                let entry = self.leave_waiting(index);
                tell(entry, QueueEnd::NoRoom, effects);
                continue;
            }
            if !self.has_room(self.entries[index].bytes) {
                break;
            }
            self.admit(now, index);
        }
    }

    /// When [`admit_to_worker`](Self::admit_to_worker) would start the first caller, where only time is in its way.
    pub(super) fn caller_wakes_at(&self) -> Option<Instant> {
        let entry = &self.entries[self.waiting.head()?];
        let names = entry.names.as_ref().expect("a waiting entry keeps its names");
        let is_free = self.lines.is_free(&names.ordering_key) && self.fits(entry.bytes);
        let is_first = is_free && !self.queues.has_ready(entry.lane);
        is_first.then(|| self.limits.opens_at(entry.lane, &names.limit_key)).flatten()
    }

    /// The first caller may find the queue full of jobs that wait for their ordering keys, and a worker free: it starts
    /// as an arrival would, without a place in the queue. Returns its job, which must be started at once.
    fn admit_to_worker(&mut self, now: Instant) -> Option<usize> {
        let index = self.waiting.head()?;
        let entry = &self.entries[index];
        let names = entry.names.as_ref().expect("a waiting entry keeps its names");
        let is_free = self.lines.is_free(&names.ordering_key) && self.fits(entry.bytes);
        if !is_free || !self.is_within_limits(now, entry.lane, &names.limit_key) {
            return None;
        }
        self.admit(now, index);
        self.open_gates(now);
        Some(index)
    }

    fn admit(&mut self, now: Instant, index: usize) {
        self.waiting.remove(&mut self.entries, LINE, index);
        self.waiting_bytes -= self.entries[index].bytes;
        let names = self.entries[index].names.take().expect("a waiting entry keeps its names");
        self.accept(now, index, &names);
    }

    fn start(&mut self, now: Instant, index: usize, effects: &mut Vec<Effect<H>>) {
        let head_start = self.law.head_start * self.estimates.mean();
        self.queues.start(&self.entries[index], self.window, head_start, |lane| self.limits.is_open(lane, now));
        self.unqueue(index);
        self.limits.start(self.entries[index].lane, self.entries[index].gate, now);
        let entry = &mut self.entries[index];
        let key = JobKey { index, sequence: entry.sequence };
        let (slot, worker, state) =
            self.workers.take(entry.home, key, now).expect("the caller saw an idle worker under this lock");
        entry.place = Place::Running { slot, ended: false };
        self.running += 1;
        let waiter = entry.waiter.take().expect("a queued entry keeps its waiter");
        effects.push(Effect::Start { waiter, grant: Grant { key, worker, state } });
    }
}
