//! Operator commands for a running pool: pause, shut, resize, cancel a job.

use tokio::time::Instant;

use super::{
    Caps, Core, Effect, Host,
    entry::{Entry, EntryStage},
    transitions::WAITER,
    workers::{Bounds, Sizer},
};
use crate::model::{JobStage, KindLimits, Outcome, RejectionReason};

/// What an operator has suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suspension {
    /// Nothing.
    None,
    /// Starting jobs. New jobs are accepted, and wait.
    Paused,
    /// Accepting jobs. The pool finishes the jobs that it has.
    Shut,
}

impl<H: Host> Core<H> {
    /// What an operator has suspended.
    pub(crate) fn suspension(&self) -> Suspension {
        match self.paused {
            _ if self.shut_by_operator => Suspension::Shut,
            Some(_) => Suspension::Paused,
            None => Suspension::None,
        }
    }

    /// Starts no jobs until it is [resumed](Self::resume); jobs are still accepted and queued. Returns false if the
    /// pool is shut, because a shut pool finishes its jobs.
    pub(crate) fn pause(&mut self, now: Instant) -> bool {
        if self.closed_for_good || self.shut_by_operator {
            return false;
        }
        self.advance(now);
        self.paused.get_or_insert(now);
        true
    }

    /// Starts jobs again.
    pub(crate) fn resume(&mut self, now: Instant, effects: &mut Vec<Effect<H>>) {
        if self.paused.is_some() {
            self.advance(now);
            self.paused = None;
            self.last_paused = self.sequence;
            self.dispatch(now, effects);
        }
    }

    /// Accepts no more jobs until it is [opened](Self::open). Waiting callers are refused. Queued jobs continue, even
    /// if the pool is paused.
    pub(crate) fn shut(&mut self, now: Instant, effects: &mut Vec<Effect<H>>) {
        self.shut_by_operator = true;
        self.begin_drain(now, effects);
    }

    /// Accepts jobs again.
    pub(crate) fn open(&mut self) {
        self.shut_by_operator = false;
        self.drain_began.take_if(|_| !self.closed_for_good);
    }

    /// Ends a job that has no worker. The host cancels a running one. Returns its stage, or `None` if the job does not
    /// exist or its outcome is decided.
    pub(crate) fn cancel(
        &mut self,
        now: Instant,
        is_it: impl Fn(&H::Job) -> bool,
        effects: &mut Vec<Effect<H>>,
    ) -> Option<(JobStage, H::Job)> {
        let (index, entry) = self.entries.iter().find(|(_, entry)| is_it(&entry.job))?;
        let (stage, job) = (entry.stage.job_stage(), entry.job.clone());
        match entry.stage {
            EntryStage::Running { ended: true, .. } => return None,
            EntryStage::Running { ended: false, .. } => return Some((stage, job)),
            EntryStage::Waiting => {
                let Entry { waiter, job, .. } = self.leave_waiting(index);
                let (waiter, outcome) = (waiter.expect(WAITER), Outcome::CancelledByOperator);
                effects.push(Effect::Ended { waiter, job, outcome, retry_after: None });
            }
            EntryStage::Ready | EntryStage::Blocked | EntryStage::Throttled => {
                self.end_queued(index, Outcome::CancelledByOperator, None, effects);
            }
        }
        self.dispatch(now, effects);
        Some((stage, job))
    }

    /// Sets new bounds and adds kinds. `kinds` has the limits of all kinds; the limits of known kinds do not change.
    /// Jobs beyond the bounds leave as usual.
    pub(crate) fn reconfigure(&mut self, now: Instant, caps: Caps, kinds: &[KindLimits], effects: &mut Vec<Effect<H>>) {
        self.caps = caps;
        self.admission.estimates.extend(kinds.len());
        self.sizing.slowdown.extend(kinds.len());
        self.limits.extend(kinds);
        self.queue.extend(self.limits.kind_queues().count());
        self.dispatch(now, effects);
    }

    /// Keeps the number of workers within `bounds`. Idle surplus workers are removed at once, busy ones after their
    /// job. Returns the states of removed workers, to be dropped outside of the lock.
    pub(crate) fn resize(
        &mut self,
        now: Instant,
        bounds: Bounds,
        fresh: impl FnMut() -> H::State,
        effects: &mut Vec<Effect<H>>,
    ) -> Vec<H::State> {
        self.sizing.bounds = bounds;
        self.sizing.sizer = Sizer::NEW;
        let workers = self.workers.configured().clamp(bounds.min, bounds.max);
        self.set_worker_count(now, workers, fresh, effects)
    }

    /// Changes the number of workers to `count`.
    pub(super) fn set_worker_count(
        &mut self,
        now: Instant,
        count: usize,
        mut fresh: impl FnMut() -> H::State,
        effects: &mut Vec<Effect<H>>,
    ) -> Vec<H::State> {
        let (live, before) = (self.workers.live(), self.workers.configured());
        let (gone, missing) = self.workers.configure(count);
        for _ in 0..missing {
            self.workers.add(fresh(), now);
        }
        self.note_worker_count(now, before);
        if self.workers.live() > live {
            self.dispatch(now, effects);
        }
        gone
    }

    /// Refuses all waiting callers, and ends a pause.
    pub(super) fn begin_drain(&mut self, now: Instant, effects: &mut Vec<Effect<H>>) {
        self.drain_began.get_or_insert(now);
        let reason = if self.closed_for_good { RejectionReason::Draining } else { RejectionReason::PoolDraining };
        while let Some(index) = self.queue.waiting.first() {
            self.refuse_waiting(index, reason.clone(), effects);
        }
        self.resume(now, effects);
    }
}
