//! The steps of a job from stage to stage: enqueue, start, end, leave. The events in `core.rs` call them.

use super::{
    Core, Effect, Host,
    admission::retry_delay,
    entry::{Entry, EntryStage, KeyQueueId, Names},
    list::Link,
};
use crate::model::{Criticality, Outcome, RejectionReason};
use std::time::Duration;
use tokio::time::Instant;

/// The queue counts as saturated from four fifths of its jobs on, until it holds at most one fifth.
const FIFTHS: usize = 5;
const SATURATED_FIFTHS: usize = 4;

pub(super) const WAITER: &str = "an entry that has not started keeps its waiter";

/// The steps of a job between its stages.
impl<H: Host> Core<H> {
    /// The job is accepted, and queued behind its ordering key if that is in use.
    pub(super) fn accept(&mut self, now: Instant, index: usize, names: Names<'_>, is_probe: bool) {
        self.counts.accepted += 1;
        let entry = &mut self.entries[index];
        entry.work = self.admission.estimates.service(entry.kind);
        entry.is_probe = is_probe;
        if is_probe {
            self.admission.estimates.probe(entry.kind, now);
        }
        self.admission.take(entry.class, entry.work);
        self.admission.safety_margins[entry.class.rank()].accept();
        entry.key_limiter = self.limits.join(entry.kind_queue, names.limit_key, now);
        self.limits.count(entry);
        self.queue.enter(&mut self.entries, index, names);
        self.saturated |= self.queue.all.len() * FIFTHS >= self.caps.jobs.saturating_mul(SATURATED_FIFTHS);
        if self.entries[index].stage != EntryStage::Blocked {
            self.make_ready_or_throttle(index);
        }
    }

    /// Makes a queued job that no ordering key blocks ready, or throttles it by its limit key.
    fn make_ready_or_throttle(&mut self, index: usize) {
        let Some(key_limiter) = self.entries[index].key_limiter else {
            self.entries[index].stage = EntryStage::Ready;
            return self.queue.push(&mut self.entries, index);
        };
        self.entries[index].stage = EntryStage::Throttled;
        self.limits.key_limiter_mut(key_limiter).throttled.push_back(&mut self.entries, Link::Line, index);
        self.limits.mark_changed(key_limiter);
    }

    pub(super) fn evict_one(&mut self, class: Criticality, effects: &mut Vec<Effect<H>>) {
        let victim = self.queue.victim(class).expect("enough jobs below the class were counted");
        let lower = self.entries[victim].class;
        let retry_after = retry_delay(self.wait_behind(lower, f64::INFINITY));
        self.end_queued(victim, Outcome::Shed, Some(retry_after), effects);
    }

    pub(super) fn end_queued(
        &mut self,
        index: usize,
        outcome: Outcome,
        retry_after: Option<Duration>,
        effects: &mut Vec<Effect<H>>,
    ) {
        self.counts.count(outcome);
        let Entry { waiter, job, .. } = self.remove_queued(index);
        effects.push(Effect::Ended { waiter: waiter.expect(WAITER), job, outcome, retry_after });
    }

    /// Refuses a waiting caller.
    pub(super) fn refuse_waiting(&mut self, index: usize, reason: RejectionReason, effects: &mut Vec<Effect<H>>) {
        self.count_rejection(&reason);
        let waiter = self.leave_waiting(index).waiter.expect(WAITER);
        effects.push(Effect::Refused { waiter, reason });
    }

    pub(super) fn leave_waiting(&mut self, index: usize) -> Entry<H> {
        self.queue.waiting.remove(&mut self.entries, index);
        self.entries.remove(index)
    }

    /// Removes a queued job for good.
    pub(super) fn remove_queued(&mut self, index: usize) -> Entry<H> {
        let was_first_of_its_key = self.entries[index].stage != EntryStage::Blocked;
        self.unqueue(index);
        let entry = self.entries.remove(index);
        self.admission.take(entry.class, -entry.work);
        self.depart(&entry);
        if was_first_of_its_key {
            self.advance_key_queue(entry.key_queue);
        }
        entry
    }

    /// Takes a queued job out of the queue, to start or to end.
    pub(super) fn unqueue(&mut self, index: usize) {
        self.limits.leave(&mut self.entries, index);
        self.queue.leave(&mut self.entries, index);
        self.saturated &= self.queue.all.len() * FIFTHS > self.caps.jobs;
    }

    /// A job has ended, and all its references are released.
    pub(super) fn depart(&mut self, entry: &Entry<H>) {
        self.queue.depart(entry);
        self.limits.quit(entry);
    }

    /// The first job of an ordering key was removed. The next one becomes ready, at the back of the queue of its class.
    pub(super) fn advance_key_queue(&mut self, key_queue: Option<KeyQueueId>) {
        let next = key_queue.and_then(|key_queue| self.queue.keys.advance(&mut self.entries, key_queue));
        if let Some(next) = next {
            self.make_ready_or_throttle(next);
        }
    }
}

/// A job's worker time is charged to its tenant, to its class, and to the estimate of its kind. A handler that ignores
/// the request to stop keeps its worker beyond the outcome of its job. That time is charged when the worker returns, or
/// when it is declared stuck and leaves the pool.
impl<H: Host> Core<H> {
    /// The outcome of a running job is decided.
    pub(super) fn charge(&mut self, now: Instant, index: usize, outcome: Outcome, run: Duration) {
        let took = self.busy_for(now, index).max(run);
        let entry = &mut self.entries[index];
        entry.took = took;
        let kind = entry.kind;
        self.admission.take(entry.class, took.as_secs_f64() - entry.work);
        self.queue.correct(entry, took, entry.work);
        let estimates = &mut self.admission.estimates;
        let counted = match outcome {
            Outcome::Completed
            | Outcome::HandlerFailed
            | Outcome::WorkerCrashed
            | Outcome::OutputTooLarge
            | Outcome::HandlerPanicked
            | Outcome::Shed
            | Outcome::Replaced => estimates.observe(kind, took),
            Outcome::DeadlineExceeded | Outcome::ExpiredInQueue => estimates.observe_cut(kind, took),
            Outcome::RunTimeout => estimates.observe_longer(kind, took),
            // A run that was cut short, or did not start, does not show the service time of its kind.
            Outcome::Cancelled
            | Outcome::CancelledByOperator
            | Outcome::Drained
            | Outcome::DrainKilled { .. }
            | Outcome::WorkerLost { .. }
            | Outcome::HandlerUnavailable => 0.0,
        };
        self.entries[index].counted = counted;
        if counted > 0.0 {
            self.admission.estimates.note_end(kind, now);
        }
    }

    /// The worker of an ended job becomes free, or is given up.
    pub(super) fn charge_rest(&mut self, now: Instant, index: usize) {
        let held = self.busy_for(now, index);
        let entry = &mut self.entries[index];
        let more = held.saturating_sub(entry.took);
        if more.is_zero() || entry.is_undecided_run() {
            return;
        }
        entry.took = held;
        let (kind, counted) = (entry.kind, entry.counted);
        self.admission.take(entry.class, more.as_secs_f64());
        self.queue.correct(entry, more, 0.0);
        self.admission.estimates.observe_held(kind, counted, held);
    }

    /// Time that a job has occupied its worker; zero if the worker is stuck.
    fn busy_for(&self, now: Instant, index: usize) -> Duration {
        match self.entries[index].stage {
            EntryStage::Running { worker, .. } => self.workers.busy_for(worker, now),
            EntryStage::Waiting | EntryStage::Ready | EntryStage::Blocked | EntryStage::Throttled => Duration::ZERO,
        }
    }
}
