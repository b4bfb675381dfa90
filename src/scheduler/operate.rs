//! What an operator does to a pool that serves: hold its jobs back, shut its door, change its size, cancel a job.

use tokio::time::Instant;

use super::{
    Caps, Core, Effect, Host,
    entry::{Entry, Place},
    transitions::WAITER,
    workers::{Bounds, Sizer},
};
use crate::model::{JobStage, KindLimits, Outcome, RejectionReason};

impl<H: Host> Core<H> {
    /// Starts nothing until it is [resumed](Self::resume); jobs are taken and queued as before. Returns whether it is
    /// held back: a pool whose door is shut finishes what it has instead.
    pub(crate) fn pause(&mut self, now: Instant) -> bool {
        if self.closed || self.shut {
            return false;
        }
        self.turn(now);
        self.paused.get_or_insert(now);
        true
    }

    /// Starts jobs again.
    pub(crate) fn resume(&mut self, now: Instant, effects: &mut Vec<Effect<H>>) {
        if self.paused.is_some() {
            self.turn(now);
            self.paused = None;
            self.pardoned = self.sequence;
            self.dispatch(now, effects);
        }
    }

    /// Takes no more jobs until it is [opened](Self::open). Callers without room are told; what is queued goes on, in a
    /// paused pool too.
    pub(crate) fn shut(&mut self, now: Instant, effects: &mut Vec<Effect<H>>) {
        self.shut = true;
        self.turn_away(effects);
        self.resume(now, effects);
    }

    /// Takes jobs again.
    pub(crate) fn open(&mut self) {
        self.shut = false;
    }

    /// Ends a job that has no worker; the host asks one that runs to stop. Tells how far it was; `None` where there is no
    /// such job, or it has its outcome.
    pub(crate) fn cancel(
        &mut self,
        now: Instant,
        is_it: impl Fn(&H::Job) -> bool,
        effects: &mut Vec<Effect<H>>,
    ) -> Option<(JobStage, H::Job)> {
        let (index, entry) = self.entries.iter().find(|(_, entry)| is_it(&entry.job))?;
        let job = entry.job.clone();
        match entry.place {
            Place::Running { ended: true, .. } => None,
            Place::Running { ended: false, .. } => Some((JobStage::Running, job)),
            Place::Waiting => {
                let Entry { waiter, job: told, .. } = self.leave_waiting(index);
                let outcome = Outcome::CancelledByOperator;
                effects.push(Effect::Ended { waiter: waiter.expect(WAITER), job: told, outcome, retry_after: None });
                self.dispatch(now, effects);
                Some((JobStage::Waiting, job))
            }
            Place::Ready | Place::Blocked | Place::Throttled => {
                self.end_queued(index, Outcome::CancelledByOperator, None, effects);
                self.dispatch(now, effects);
                Some((JobStage::Queued, job))
            }
        }
    }

    /// Has other bounds from now on, and serves further kinds: `kinds` has the limits of all of them, of which those that
    /// it has stay as they are. What is beyond the bounds leaves them as jobs do.
    pub(crate) fn reconfigure(&mut self, now: Instant, caps: Caps, kinds: &[KindLimits], effects: &mut Vec<Effect<H>>) {
        self.caps = caps;
        self.admission.estimates.extend(kinds.len());
        self.sizing.slowdown.extend(kinds.len());
        self.limits.extend(kinds);
        self.queue.extend(self.limits.kind_queues());
        self.dispatch(now, effects);
    }

    /// Keeps the number of workers within `bounds`, from now on. Idle workers that are too many go at once, and busy
    /// ones with the end of their job. Returns the states of those that went, to be dropped outside of the lock.
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
        self.employ(now, workers, fresh, effects)
    }

    /// Brings the number of workers to `count`.
    pub(super) fn employ(
        &mut self,
        now: Instant,
        count: usize,
        mut fresh: impl FnMut() -> H::State,
        effects: &mut Vec<Effect<H>>,
    ) -> Vec<H::State> {
        let gone = self.workers.dismiss(self.workers.configured().saturating_sub(count));
        let kept = self.workers.keep(count.saturating_sub(self.workers.configured()));
        let missing = count.saturating_sub(self.workers.configured());
        for _ in 0..missing {
            self.workers.add(fresh(), now);
        }
        debug_assert_eq!(self.workers.configured(), count);
        if kept + missing > 0 {
            self.dispatch(now, effects);
        }
        gone
    }

    /// Tells the callers without room that there will be none.
    pub(super) fn turn_away(&mut self, effects: &mut Vec<Effect<H>>) {
        let reason = if self.closed { RejectionReason::Draining } else { RejectionReason::PoolDraining };
        while let Some(index) = self.queue.waiting.first() {
            self.refuse_waiting(index, reason.clone(), effects);
        }
    }
}
