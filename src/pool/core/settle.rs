use tokio::time::Instant;

use super::{
    Core, Effect, Grant, Host, JobKey, RefusalReason,
    admission::seconds,
    entry::{Entry, LINE, Names, Place},
    gate::Due,
    waiting::Waiting,
};
use crate::model::{Criticality, Outcome};

/// What a caller answers that is asked whether there is room for it by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    /// Its time to start is over.
    Leaves,
    /// There is; whether its job is a probe.
    Enters { is_probe: bool },
    /// Its tenant has its part, or it would be queued for too long: it lets others pass.
    Passes,
    /// There is not, and those behind it in its class wait for it to have some.
    Holds,
}

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
                self.note_miss(now, index);
                self.end_queued(index, Outcome::ExpiredInQueue, None, effects);
            } else {
                self.start(now, index, effects);
            }
        }
        debug_assert_eq!(self.entries.len(), self.waiting.len() + self.queued.len() + self.running);
        debug_assert!(!self.can_start() || self.head(now).or_else(|| self.startable_caller(now)).is_none());
        let enters = |index| matches!(self.ask(now, index), Reply::Enters { .. });
        debug_assert!(!self.waiting.heads().any(enters), "nobody waits for nothing");
        #[cfg(test)]
        self.settled.set(Some(now));
    }

    /// The job to start next.
    pub(super) fn head(&self, now: Instant) -> Option<usize> {
        self.queues.head(|lane| self.limits.is_open(lane, now))
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
            self.queues.let_go(&mut self.entries, index);
            self.entries[index].place = Place::Ready;
            self.queues.push(&mut self.entries, index);
            due.extend(next.map(|next| Due { age: self.entries[next].sequence, gate }));
        }
    }

    /// Whether a queued job may not start any more, or would not end in time, most likely.
    fn is_late(&self, now: Instant, index: usize) -> bool {
        self.entries[index].start_by <= now || self.is_hopeless(now, index)
    }

    /// Half of what its kind takes must be left.
    fn is_hopeless(&self, now: Instant, index: usize) -> bool {
        let entry = &self.entries[index];
        if entry.is_probe {
            return false;
        }
        let half = self.estimates.measured(entry.kind).unwrap_or(0.0) / 2.0;
        entry.finish_by.saturating_duration_since(now) <= seconds(half)
    }

    /// An accepted job expired in the queue. One whose caller bounded its wait counts only where its deadline was missed,
    /// too: who asks for the improbable must not narrow the margin of others.
    pub(super) fn note_miss(&mut self, now: Instant, index: usize) {
        let entry = &self.entries[index];
        let by_deadline = entry.start_by >= entry.finish_by || self.is_hopeless(now, index);
        if by_deadline && self.counts_as_missed(entry.sequence) {
            self.miss(index);
        }
    }

    /// A queued job missed its deadline.
    pub(super) fn miss(&mut self, index: usize) {
        self.margins[self.entries[index].class.rank()].miss();
    }

    /// Whether what becomes of a job says anything about the estimates.
    pub(super) fn counts_as_missed(&self, sequence: u64) -> bool {
        self.paused.is_none() && sequence > self.pardoned
    }

    /// Gives callers the room that is there: the more important ones first, those of a class in order of arrival. One
    /// whose tenant has its part of the queue, or that would be queued for too long by now, lets others pass.
    fn admit_waiting(&mut self, now: Instant, effects: &mut Vec<Effect<H>>) {
        // Whoever leaves lets others be asked.
        let mut goes_on = !self.waiting.is_empty();
        while goes_on {
            goes_on = false;
            for class in Criticality::BY_IMPORTANCE {
                goes_on |= self.ask_callers(now, class, effects);
            }
        }
    }

    /// Asks callers of a class. Returns whether one of them left, with room or without.
    fn ask_callers(&mut self, now: Instant, class: Criticality, effects: &mut Vec<Effect<H>>) -> bool {
        // Most pools where callers wait are full: then the first one says it for all.
        if self.waiting.head(class).is_none_or(|first| self.ask(now, first) == Reply::Holds) {
            return false;
        }
        let mut look = self.waiting.look(class);
        let mut leaves = false;
        while let Some(turn) = look.next() {
            let next = Waiting::next(&self.entries, turn.index);
            let reply = self.ask(now, turn.index);
            match reply {
                Reply::Holds => return leaves,
                Reply::Passes => {}
                Reply::Enters { is_probe } => self.admit(now, turn.index, is_probe),
                Reply::Leaves => self.refuse_waiting(turn.index, RefusalReason::NoRoomInTime, effects),
            }
            leaves |= reply != Reply::Passes;
            look.go_on(turn, reply != Reply::Passes, next);
        }
        if !leaves {
            self.waiting.pass(class, &look);
        }
        leaves
    }

    /// Whether there is room for a caller by now.
    fn ask(&self, now: Instant, index: usize) -> Reply {
        let Entry { start_by, class, bytes, .. } = self.entries[index];
        if start_by <= now {
            return Reply::Leaves;
        }
        if !self.has_room(class, 0) {
            return Reply::Holds;
        }
        let caller = self.waiting_applicant(index);
        if self.over_part(class, caller.known_tenant, bytes).is_some() {
            return Reply::Passes;
        }
        match self.judge(now, &caller) {
            Err(_) => Reply::Passes,
            Ok(is_probe) if self.has_room(class, bytes) => Reply::Enters { is_probe },
            Ok(_) => Reply::Holds,
        }
    }

    /// When [`admit_to_worker`](Self::admit_to_worker) would start a caller, where only time is in its way.
    pub(super) fn caller_wakes_at(&self) -> Option<Instant> {
        let opens_at = |index| {
            let entry = &self.entries[index];
            let is_first = !self.queues.has_ready(entry.lane) && self.lines.is_free(entry.names().ordering_key);
            is_first.then(|| self.limits.opens_at(entry.lane, entry.names().limit_key)).flatten()
        };
        self.waiting.firsts().filter_map(opens_at).min()
    }

    /// Callers may find the queue full of jobs that wait for their ordering keys, and a worker free: the first one of a
    /// tenant starts as an arrival would, without a place in the queue. Returns its job, which must be started at once.
    fn admit_to_worker(&mut self, now: Instant) -> Option<usize> {
        let index = self.startable_caller(now)?;
        self.admit(now, index, false);
        self.open_gates(now);
        Some(index)
    }

    /// The first caller of a tenant that neither its ordering key nor its limits keep from a worker: it needs nothing of the
    /// queue.
    fn startable_caller(&self, now: Instant) -> Option<usize> {
        let starts = |index: &usize| {
            let entry = &self.entries[*index];
            let Names { ordering_key, limit_key, .. } = entry.names();
            self.lines.is_free(ordering_key) && self.is_within_limits(now, entry.lane, limit_key)
        };
        self.waiting.firsts().find(starts)
    }

    fn admit(&mut self, now: Instant, index: usize, is_probe: bool) {
        self.waiting.remove(&mut self.entries, index);
        let names = self.entries[index].kept.take().expect("a waiting entry keeps its names");
        self.accept(now, index, names.names(), is_probe);
    }

    fn start(&mut self, now: Instant, index: usize, effects: &mut Vec<Effect<H>>) {
        self.queues.start(&self.entries[index], |lane| self.limits.is_open(lane, now));
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
