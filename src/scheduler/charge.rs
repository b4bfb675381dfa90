//! Charges a job's worker time to its tenant, to its class, and to the estimate of its kind.
//!
//! A handler that ignores the request to stop holds its worker beyond the outcome of its job. That time is charged once
//! the worker is back, or is declared stuck and so no longer belongs to the pool.

use std::time::Duration;

use tokio::time::Instant;

use super::{Core, Host, entry::Place};
use crate::model::Outcome;

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
            | Outcome::Shed => estimates.observe(kind, took),
            Outcome::DeadlineExceeded | Outcome::ExpiredInQueue => estimates.observe_cut(kind, took),
            Outcome::RunTimeout => estimates.observe_longer(kind, took),
            // A run that was cut short, or did not start, says nothing about the time of its kind.
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

    /// Time for which a job has its worker; zero if the worker is stuck.
    fn busy_for(&self, now: Instant, index: usize) -> Duration {
        match self.entries[index].place {
            Place::Running { slot, .. } => self.workers.busy_for(slot, now),
            Place::Waiting | Place::Ready | Place::Blocked | Place::Throttled => Duration::ZERO,
        }
    }
}
