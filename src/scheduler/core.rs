//! The events of the scheduler, one method each. `src/scheduler.rs` defines [`Core`], `transitions.rs` has the steps
//! that the events share, and `dispatch.rs` starts waiting jobs. The commands of operators are in `operate.rs`.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Arrival, Core, Effect, Grant, Host, JobKey, Refusal, Verdict,
    entry::{Entry, EntryStage, Names},
    limit::UNLIMITED,
};
use crate::model::{Outcome, RejectionReason, WhenFull};

/// Reason for the withdrawal of a queued job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Withdrawal {
    /// The caller gave up.
    Cancelled,
    /// It is too late to start the job.
    Expired,
}

/// Result of a withdrawal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Withdrawn {
    /// An accepted job, which ended now.
    Queued,
    /// A waiting caller.
    Waiting,
    /// Too late: the job has started or ended.
    Gone,
}

impl<H: Host> Core<H> {
    /// A job arrives: it starts, is queued, waits for capacity, or is refused. `waiter` is called only if it is queued
    /// or waits.
    pub(crate) fn offer(
        &mut self,
        now: Instant,
        arrival: Arrival<'_, H::Job>,
        waiter: impl FnOnce(JobKey) -> H::Waiter,
        effects: &mut Vec<Effect<H>>,
    ) -> Verdict<H> {
        self.advance(now);
        let tenant = arrival.tenant;
        self.admission.demand.arrive(tenant, self.admission.estimates.service(arrival.kind));
        self.consider(now, arrival, waiter, effects).unwrap_or_else(|refusal| {
            self.count_rejection(&refusal.reason);
            self.admission.demand.refuse(tenant);
            if !effects.is_empty() {
                // Jobs were replaced, and the arrival does not take their place. A needless dispatch changes nothing.
                self.dispatch(now, effects);
            }
            Verdict::Refused(refusal)
        })
    }

    /// Starts the job at once if nothing is in its way. Otherwise it needs a place.
    fn consider(
        &mut self,
        now: Instant,
        arrival: Arrival<'_, H::Job>,
        waiter: impl FnOnce(JobKey) -> H::Waiter,
        effects: &mut Vec<Effect<H>>,
    ) -> Result<Verdict<H>, Refusal> {
        if self.closed_for_good {
            return Err(Refusal { reason: RejectionReason::Draining, retry_after: None });
        }
        if self.shut_by_operator {
            return Err(Refusal { reason: RejectionReason::PoolDraining, retry_after: None });
        }
        if arrival.start_by <= now {
            return Err(Refusal { reason: RejectionReason::PAST, retry_after: None });
        }
        self.admission.see(arrival.class, arrival.tenant);
        let kind_queue = self.limits.kind_queue(arrival.kind);
        let is_free = self.can_start() && self.queue.keys.is_free(Names::of(&arrival));
        if is_free && (kind_queue == UNLIMITED || self.is_within_limits(now, kind_queue, arrival.limit_key)) {
            return Ok(Verdict::Start(self.start_at_once(now, arrival)));
        }
        self.ask_for_a_place(now, arrival, waiter, effects)
    }

    /// Queues a job for which no worker is free, lets it wait, or refuses it.
    fn ask_for_a_place(
        &mut self,
        now: Instant,
        arrival: Arrival<'_, H::Job>,
        waiter: impl FnOnce(JobKey) -> H::Waiter,
        effects: &mut Vec<Effect<H>>,
    ) -> Result<Verdict<H>, Refusal> {
        let (class, bytes) = (arrival.class, arrival.bytes);
        let kind_queue = self.limits.kind_queue(arrival.kind);
        let waits = arrival.when_full == WhenFull::Wait;
        if self.workers.configured() == 0 {
            self.want_worker(now);
            if !waits {
                return Err(self.without_workers(now, &self.candidate(&arrival)));
            }
        }
        let before = effects.len();
        if arrival.when_full == WhenFull::DropOldest {
            self.drop_oldest(now, &arrival, effects);
        }
        let has_dropped = effects.len() > before;
        let mut candidate = self.candidate(&arrival);
        let over_part = self.over_its_part(now, &candidate);
        let fits = self.has_capacity(class, bytes) && self.leaves_bytes_for_callers(class, bytes);
        let has_capacity = fits && over_part.is_none();
        if waits {
            candidate.behind = self.behind(&arrival, has_capacity);
        }
        // A waiting caller also waits until its tenant is within its part of the queue.
        if let Some(refusal) = over_part.filter(|_| !waits) {
            return Err(refusal);
        }
        let is_probe = self.judge(now, &candidate)?;
        let evicts = arrival.when_full == WhenFull::Shed && !has_capacity;
        if has_capacity || (evicts && self.can_evict_for(class, bytes)) {
            while evicts && !self.has_capacity(class, bytes) {
                self.evict_one(class, effects);
            }
            let key = self.insert(arrival, EntryStage::Ready, waiter);
            self.accept(now, key.index, candidate.names, is_probe);
            // Evicted and replaced jobs may have freed more than it needs. A kind with limits may allow a start now.
            if evicts || has_dropped || kind_queue != UNLIMITED {
                self.dispatch(now, effects);
            }
            return Ok(Verdict::Queued(key));
        }
        if waits && self.may_wait(bytes) {
            let key = self.insert(arrival, EntryStage::Waiting, waiter);
            let entry = &mut self.entries[key.index];
            entry.waiting_names = Some(candidate.names.to_owned());
            entry.work = self.admission.estimates.service(entry.kind);
            self.queue.waiting.push(&mut self.entries, key.index);
            // Earlier waiting callers may need capacity while this job can start.
            self.dispatch(now, effects);
            return Ok(Verdict::Waiting(key));
        }
        Err(self.full(now, &candidate))
    }

    /// Puts the job on a worker that was reserved for it. Its run time counts from now.
    pub(crate) fn fill(&mut self, now: Instant, key: JobKey, job: H::Job) {
        let Some(entry) = self.entries.get_mut(key.index).filter(|entry| entry.sequence == key.sequence) else {
            return;
        };
        entry.job = job;
        if let EntryStage::Running { worker, .. } = entry.stage {
            self.workers.begin(worker, now);
        }
    }

    /// The outcome of a running job is decided. Returns false if it was decided before.
    pub(crate) fn end(&mut self, now: Instant, key: JobKey, outcome: Outcome, run: Duration) -> bool {
        let Some(entry) = self.entry(key) else { return false };
        let EntryStage::Running { worker, ended: false } = entry.stage else { return false };
        let was_queued = entry.tenant.is_some();
        self.entries[key.index].stage = EntryStage::Running { worker, ended: true };
        self.counts.count(outcome);
        self.workers.count(worker, outcome == Outcome::Completed, run);
        if was_queued && outcome.is_expired() && self.counts_as_missed(key.sequence) {
            self.miss(key.index);
        }
        self.charge(now, key.index, outcome, run);
        true
    }

    /// A job gives its worker back. If its outcome is not decided, it counts as cancelled. Returns the state of a
    /// worker that is removed, to be dropped outside of the lock.
    pub(crate) fn release(
        &mut self,
        now: Instant,
        key: JobKey,
        state: H::State,
        effects: &mut Vec<Effect<H>>,
    ) -> Option<H::State> {
        self.advance(now);
        let Some(EntryStage::Running { worker, ended }) = self.entry(key).map(|entry| entry.stage) else {
            debug_assert!(false, "a lease is released once, by its own job");
            return Some(state);
        };
        if !ended {
            self.end(now, key, Outcome::Cancelled, Duration::ZERO);
        }
        self.charge_rest(now, key.index);
        let entry = self.entries.remove(key.index);
        self.running -= 1;
        self.limits.end(entry.kind_queue, entry.key_limiter);
        self.depart(&entry);
        self.advance_key_queue(entry.key_queue);
        let leftover = self.workers.give_back(worker, state, now);
        self.dispatch(now, effects);
        leftover
    }

    /// A caller withdraws its job from the queue.
    pub(crate) fn withdraw(
        &mut self,
        now: Instant,
        key: JobKey,
        why: Withdrawal,
        effects: &mut Vec<Effect<H>>,
    ) -> Withdrawn {
        let Some(stage) = self.entry(key).map(|entry| entry.stage) else { return Withdrawn::Gone };
        let found = match stage {
            EntryStage::Running { .. } => return Withdrawn::Gone,
            EntryStage::Waiting => {
                self.leave_waiting(key.index);
                if why == Withdrawal::Expired {
                    self.counts.rejected[RejectionReason::NoRoomInTime.index()] += 1;
                }
                Withdrawn::Waiting
            }
            EntryStage::Ready | EntryStage::Blocked | EntryStage::Throttled => {
                match why {
                    Withdrawal::Cancelled => self.counts.count(Outcome::Cancelled),
                    Withdrawal::Expired => {
                        self.counts.count(Outcome::ExpiredInQueue);
                        self.note_miss(now, key.index);
                    }
                }
                self.remove_queued(key.index);
                Withdrawn::Queued
            }
        };
        self.dispatch(now, effects);
        found
    }

    /// A worker's job does not stop. Returns whether a new worker replaces it. A second call changes nothing.
    pub(crate) fn stick(
        &mut self,
        now: Instant,
        key: JobKey,
        fresh: impl FnOnce() -> H::State,
        effects: &mut Vec<Effect<H>>,
    ) -> bool {
        let Some(EntryStage::Running { worker, .. }) = self.entry(key).map(|entry| entry.stage) else { return false };
        self.charge_rest(now, key.index);
        let replaced = self.workers.stick(worker, key, self.caps.stuck);
        if replaced {
            self.workers.add(fresh(), now);
            self.dispatch(now, effects);
        }
        replaced
    }

    /// Time has reached [`wake_at`](Self::wake_at).
    pub(crate) fn tick(&mut self, now: Instant, effects: &mut Vec<Effect<H>>) {
        self.dispatch(now, effects);
    }

    /// Accepts no more jobs. Waiting callers are refused. Queued jobs continue, even if the pool is paused.
    pub(crate) fn close(&mut self, now: Instant, effects: &mut Vec<Effect<H>>) {
        self.closed_for_good = true;
        self.begin_drain(now, effects);
    }

    /// Ends all queued jobs of a closed pool, in order of acceptance.
    pub(crate) fn abandon_queued(&mut self, effects: &mut Vec<Effect<H>>) {
        debug_assert!(self.closed_for_good, "an open pool would have to give the capacity to waiting callers");
        while let Some(index) = self.queue.all.head() {
            self.end_queued(index, Outcome::Drained, None, effects);
        }
    }

    /// States of idle workers.
    pub(crate) fn idle_states(&mut self) -> impl Iterator<Item = &mut H::State> {
        self.workers.idle_states()
    }

    /// Removes the states of idle workers from a closed pool, to be dropped outside of the lock.
    pub(crate) fn retire_idle(&mut self) -> Vec<H::State> {
        debug_assert!(self.closed_for_good, "only a closed pool retires its workers");
        self.workers.retire_idle()
    }

    /// The entry of a job, unless the job has left.
    pub(super) fn entry(&self, key: JobKey) -> Option<&Entry<H>> {
        self.entries.get(key.index).filter(|entry| entry.sequence == key.sequence)
    }

    /// Whether one more caller may wait for capacity.
    fn may_wait(&self, bytes: usize) -> bool {
        self.queue.waiting.len() < self.caps.waiting
            && bytes <= self.caps.bytes.saturating_sub(self.queue.waiting.bytes())
    }

    /// Makes the entry of a job that does not start at once.
    fn insert(
        &mut self,
        arrival: Arrival<'_, H::Job>,
        stage: EntryStage,
        waiter: impl FnOnce(JobKey) -> H::Waiter,
    ) -> JobKey {
        let key = self.next_key();
        let kind_queue = self.limits.kind_queue(arrival.kind);
        let entry = Entry { waiter: Some(waiter(key)), stage, ..Entry::new(key.sequence, arrival, kind_queue) };
        self.entries.insert(entry);
        key
    }

    fn next_key(&mut self) -> JobKey {
        self.sequence += 1;
        JobKey { index: self.entries.vacant_key(), sequence: self.sequence }
    }

    /// Makes the entry of a job, and gives it an idle worker.
    fn start_at_once(&mut self, now: Instant, arrival: Arrival<'_, H::Job>) -> Grant<H> {
        let key = self.next_key();
        let work = self.admission.estimates.service(arrival.kind);
        self.admission.take(arrival.class, work);
        let kind_queue = self.limits.kind_queue(arrival.kind);
        let key_limiter = self.limits.join(kind_queue, arrival.limit_key, now);
        let (worker, id, state) =
            self.workers.take(arrival.shard, key, now).expect("the caller saw an idle worker under this lock");
        let stage = EntryStage::Running { worker, ended: false };
        let key_queue = self.queue.keys.join(Names::of(&arrival), work);
        let entry = Entry::new(key.sequence, arrival, kind_queue);
        let entry = Entry { stage, work, key_queue, key_limiter, ..entry };
        self.limits.count(&entry);
        self.limits.start(kind_queue, key_limiter, now);
        self.entries.insert(entry);
        self.counts.accepted += 1;
        self.running += 1;
        Grant { key, worker: id, state }
    }
}
