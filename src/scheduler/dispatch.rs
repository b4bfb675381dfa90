//! Gives free workers to jobs, and free capacity to waiting callers.

use tokio::time::Instant;

use super::{
    Core, Effect, Grant, Host, JobKey,
    admission::seconds,
    entry::{Entry, EntryStage, KindQueueId},
    list::{Link, List},
};
use crate::model::{Criticality, Outcome, RejectionReason};

/// Largest number of callers of a class, and of tenants, that one dispatch checks without success. Tens of thousands
/// may wait.
///
/// More than the first caller of a tenant are checked. Otherwise a flood beside nine light tenants would miss the
/// deadlines of 2.4 % of its accepted jobs, instead of 0.8 %.
const MAX_ASKED: usize = 32;
const TENANTS: usize = 16;

/// Whether a waiting caller can be queued now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    /// No: it is too late to start.
    Leaves,
    /// Yes; whether its job is a probe.
    Enters { is_probe: bool },
    /// No, because of its tenant's part or its expected wait. Other callers may pass it.
    Passes,
    /// No, and later callers of its class must wait behind it.
    Holds,
}

impl<H: Host> Core<H> {
    /// Gives capacity to callers and workers to ready jobs, until neither is possible.
    pub(super) fn dispatch(&mut self, now: Instant, effects: &mut Vec<Effect<H>>) {
        // Most of the time, no job of a pool waits.
        while !(self.queue.waiting.is_empty() && self.queue.all.is_empty()) {
            self.admit_waiting(now, effects);
            self.release_throttled(now);
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
        debug_assert_eq!(self.entries.len(), self.queue.waiting.len() + self.queue.all.len() + self.running);
        debug_assert!(!self.can_start() || self.head(now).or_else(|| self.startable_caller(now)).is_none());
        let enters = |index| matches!(self.ask(now, index), Reply::Enters { .. });
        debug_assert!(!self.queue.waiting.heads().any(enters), "no caller waits without a reason");
        #[cfg(test)]
        self.dispatched.set(Some(now));
    }

    /// The next job to start.
    pub(super) fn head(&self, now: Instant) -> Option<usize> {
        self.queue.head(|kind_queue| self.limits.is_open(kind_queue, now))
    }

    /// Whether the limits of its kind and its key allow a job to start before all others of them.
    pub(super) fn is_within_limits(&self, now: Instant, kind_queue: KindQueueId, limit_key: &str) -> bool {
        let first = !self.queue.has_ready(kind_queue) && self.limits.is_key_open(kind_queue, limit_key, now);
        first && self.limits.is_open(kind_queue, now)
    }

    /// Makes throttled jobs ready, as far as their limit keys allow.
    fn release_throttled(&mut self, now: Instant) {
        if self.limits.has_nothing_due(now) {
            return;
        }
        for key_limiter in self.limits.due(now) {
            while self.limits.let_through(key_limiter, now) {
                let throttled = &mut self.limits.key_limiter_mut(key_limiter).throttled;
                let index = throttled.pop_front(&mut self.entries, Link::Line).expect("it has a throttled job");
                self.entries[index].stage = EntryStage::Ready;
                self.queue.push(&mut self.entries, index);
            }
        }
    }

    /// Whether a queued job must not start any more, or will most likely not end in time.
    fn is_late(&self, now: Instant, index: usize) -> bool {
        self.entries[index].start_by <= now || self.is_hopeless(now, index)
    }

    /// Whether less than half of its kind's service time is left.
    fn is_hopeless(&self, now: Instant, index: usize) -> bool {
        let entry = &self.entries[index];
        if entry.is_probe {
            return false;
        }
        let half = self.admission.estimates.measured(entry.kind).unwrap_or(0.0) / 2.0;
        entry.finish_by.saturating_duration_since(now) <= seconds(half)
    }

    /// Records that an accepted job expired in the queue. With a queue timeout, that counts only if the deadline was
    /// missed too: an impatient caller must not narrow the margin of others.
    pub(super) fn note_miss(&mut self, now: Instant, index: usize) {
        let entry = &self.entries[index];
        let by_deadline = entry.start_by >= entry.finish_by || self.is_hopeless(now, index);
        if by_deadline && self.counts_as_missed(entry.sequence) {
            self.miss(index);
        }
    }

    /// A queued job missed its deadline.
    pub(super) fn miss(&mut self, index: usize) {
        self.admission.safety_margins[self.entries[index].class.rank()].miss();
    }

    /// Whether the end of a job counts against the estimates. It does not if the job was present during a pause.
    pub(super) fn counts_as_missed(&self, sequence: u64) -> bool {
        self.paused.is_none() && sequence > self.last_paused
    }

    /// Gives capacity to waiting callers by importance, then by arrival. A caller at its tenant's part, or with a too
    /// long expected wait, is passed by others.
    fn admit_waiting(&mut self, now: Instant, effects: &mut Vec<Effect<H>>) {
        // The removal of a caller may let others fit.
        let mut goes_on = !self.queue.waiting.is_empty();
        while goes_on {
            goes_on = false;
            for class in Criticality::BY_IMPORTANCE {
                goes_on |= self.ask_callers(now, class, effects);
            }
        }
    }

    /// Checks callers of a class. Returns whether one was removed, admitted or not.
    fn ask_callers(&mut self, now: Instant, class: Criticality, effects: &mut Vec<Effect<H>>) -> bool {
        // In most pools with waiting callers the queue is full, as the check of the first caller shows.
        if self.queue.waiting.head(class).is_none_or(|first| self.ask(now, first) == Reply::Holds) {
            return false;
        }
        let firsts: Vec<usize> = self.queue.waiting.first_callers(class).take(TENANTS).collect();
        let mut leaves = false;
        for first in &firsts {
            let (mut next, mut tries) = (Some(*first), MAX_ASKED / firsts.len());
            while let Some(index) = next.filter(|_| tries > 0) {
                next = List::next(&self.entries, Link::Line, index);
                match self.ask(now, index) {
                    Reply::Holds => return leaves,
                    Reply::Passes => tries -= 1,
                    Reply::Enters { is_probe } => {
                        self.admit(now, index, is_probe);
                        (leaves, tries) = (true, 0);
                    }
                    Reply::Leaves => {
                        self.refuse_waiting(index, RejectionReason::NoRoomInTime, effects);
                        leaves = true;
                    }
                }
            }
        }
        leaves
    }

    /// Whether a caller can be queued now.
    fn ask(&self, now: Instant, index: usize) -> Reply {
        let Entry { start_by, class, bytes, .. } = self.entries[index];
        if start_by <= now {
            return Reply::Leaves;
        }
        if !self.has_capacity(class, 0) {
            return Reply::Holds;
        }
        let caller = self.waiting_candidate(index);
        if self.over_part(class, caller.known_tenant, bytes).is_some() {
            return Reply::Passes;
        }
        match self.judge(now, &caller) {
            Err(_) => Reply::Passes,
            Ok(is_probe) if self.has_capacity(class, bytes) => Reply::Enters { is_probe },
            Ok(_) => Reply::Holds,
        }
    }

    /// When [`admit_to_worker`](Self::admit_to_worker) can start a caller that only waits for a token.
    pub(super) fn caller_wakes_at(&self) -> Option<Instant> {
        let opens_at = |index| {
            let entry = &self.entries[index];
            let is_first = !self.queue.has_ready(entry.kind_queue) && self.queue.keys.is_free(entry.names());
            is_first.then(|| self.limits.opens_at(entry.kind_queue, entry.names().limit_key)).flatten()
        };
        self.first_callers().filter_map(opens_at).min()
    }

    /// The queue may be full of jobs that wait for their ordering keys while a worker is free. Then a tenant's first
    /// caller starts directly, without being queued. Returns its job, which must start at once.
    fn admit_to_worker(&mut self, now: Instant) -> Option<usize> {
        let index = self.startable_caller(now)?;
        self.admit(now, index, false);
        self.release_throttled(now);
        Some(index)
    }

    /// The first caller of a tenant that may start at once, by its ordering key and its limits. It needs no queue
    /// capacity.
    fn startable_caller(&self, now: Instant) -> Option<usize> {
        let starts = |index: &usize| {
            let entry = &self.entries[*index];
            let names = entry.names();
            self.queue.keys.is_free(names) && self.is_within_limits(now, entry.kind_queue, names.limit_key)
        };
        self.first_callers().find(starts)
    }

    /// The first callers of tenants, class by class, up to the number that one dispatch checks.
    fn first_callers(&self) -> impl Iterator<Item = usize> {
        Criticality::BY_IMPORTANCE.into_iter().flat_map(|class| self.queue.waiting.first_callers(class).take(MAX_ASKED))
    }

    fn admit(&mut self, now: Instant, index: usize, is_probe: bool) {
        self.queue.waiting.remove(&mut self.entries, index);
        let names = self.entries[index].waiting_names.take().expect("a waiting entry keeps its names");
        self.accept(now, index, names.names(), is_probe);
    }

    fn start(&mut self, now: Instant, index: usize, effects: &mut Vec<Effect<H>>) {
        self.queue.start(&self.entries[index], |kind_queue| self.limits.is_open(kind_queue, now));
        self.unqueue(index);
        self.limits.start(self.entries[index].kind_queue, self.entries[index].key_limiter, now);
        let entry = &mut self.entries[index];
        let key = JobKey { index, sequence: entry.sequence };
        let (worker, id, state) =
            self.workers.take(entry.shard, key, now).expect("the caller saw an idle worker under this lock");
        entry.stage = EntryStage::Running { worker, ended: false };
        self.running += 1;
        let waiter = entry.waiter.take().expect("a queued entry keeps its waiter");
        effects.push(Effect::Start { waiter, grant: Grant { key, worker: id, state } });
    }
}
