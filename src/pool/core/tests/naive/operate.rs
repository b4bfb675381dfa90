use super::{
    super::{
        super::{Cancelled, RefusalReason},
        Told,
    },
    Naive,
};
use crate::model::Outcome;

impl Naive {
    /// Whether an idle worker would take a job.
    pub(in super::super) fn can_start(&self) -> bool {
        !self.paused && !self.parked.is_empty()
    }

    /// Whether nothing but the pause keeps a job from starting.
    pub(in super::super) fn can_start_if_resumed(&self) -> bool {
        !self.parked.is_empty() && !self.ready().is_empty()
    }

    /// Workers that go when they give their job back.
    pub(in super::super) fn retiring(&self) -> usize {
        self.able().saturating_sub(self.configured)
    }

    pub(super) fn pause(&mut self) -> bool {
        if self.closed || self.shut {
            return false;
        }
        self.turn();
        self.paused = true;
        true
    }

    pub(super) fn resume(&mut self) {
        if self.paused {
            self.turn();
            self.paused = false;
            let running = self.running.iter_mut().map(|run| &mut run.job);
            self.queued.iter_mut().chain(&mut self.waiting).chain(running).for_each(|job| job.pardoned = true);
            self.settle();
        }
    }

    pub(super) fn turn_away(&mut self) {
        let reason = if self.closed { RefusalReason::Draining } else { RefusalReason::PoolDraining };
        for caller in std::mem::take(&mut self.waiting) {
            self.counts.rejected[3] += 1;
            self.told.push(Told::Refused { job: caller.job, reason });
        }
    }

    pub(super) fn cancel(&mut self, job: u32) -> Option<Cancelled<u32>> {
        if let Some(at) = self.waiting.iter().position(|caller| caller.job == job) {
            self.waiting.remove(at);
            self.told.push(Told::Ended { job, outcome: Outcome::CancelledByOperator, retry_after: None });
            self.settle();
            return Some(Cancelled::Waiting);
        }
        if self.queued.iter().any(|queued| queued.job == job) {
            self.counts.cancelled += 1;
            self.leave_queue(job);
            self.told.push(Told::Ended { job, outcome: Outcome::CancelledByOperator, retry_after: None });
            self.settle();
            return Some(Cancelled::Queued);
        }
        let open = self.running.iter().any(|run| run.job.job == job && !run.decided);
        open.then_some(Cancelled::Running(job))
    }

    /// From now on the pool should have so many workers. Returns the states of those that go at once: of the idle ones,
    /// those that were hired last.
    pub(super) fn resize(&mut self, count: usize) -> Vec<u32> {
        let more = count.saturating_sub(self.configured);
        let kept = more.min(self.retiring());
        self.configured = count;
        (kept..more).for_each(|_| self.hire());
        let mut gone = Vec::new();
        while self.able() > count
            && let Some(id) = self.parked.iter().copied().max()
        {
            self.parked.retain(|parked| *parked != id);
            gone.push(self.worker(id).state);
            self.workers.retain(|worker| worker.id != id);
        }
        if more > 0 {
            self.settle();
        }
        gone.sort_unstable();
        gone
    }
}
