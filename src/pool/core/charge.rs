//! What a job is charged with: all the time for which its worker is not free, by tenant, by class and in the estimate of
//! its kind.
//!
//! A handler that does not stop when it is asked to holds its worker beyond the outcome of its job. That time is charged
//! once the worker is back, or is stuck and so no worker of the pool any more.

use std::time::Duration;

use tokio::time::Instant;

use super::{Core, Host, entry::Place};
use crate::model::Outcome;

impl<H: Host> Core<H> {
    /// The outcome of a job that ran is decided.
    pub(super) fn charge(&mut self, now: Instant, index: usize, outcome: Outcome, run: Duration) {
        let took = self.held(now, index).max(run);
        let entry = &mut self.entries[index];
        entry.took = took;
        let kind = entry.kind;
        self.queues.take(entry.class, took.as_secs_f64() - entry.work);
        self.queues.correct(entry, took, entry.work);
        let was_measured = self.estimates.runs(kind) > 0;
        let counted = match outcome {
            Outcome::Completed
            | Outcome::HandlerFailed
            | Outcome::WorkerCrashed
            | Outcome::OutputTooLarge
            | Outcome::HandlerPanicked
            | Outcome::Shed => self.estimates.observe(kind, took),
            Outcome::DeadlineExceeded | Outcome::ExpiredInQueue => self.estimates.observe_cut(kind, took),
            Outcome::RunTimeout => self.estimates.observe_longer(kind, took),
            // A run that was cut short, or none, tells nothing of how long its kind takes.
            Outcome::Cancelled
            | Outcome::CancelledByOperator
            | Outcome::Drained
            | Outcome::DrainKilled { .. }
            | Outcome::HandlerUnavailable => 0.0,
        };
        self.entries[index].counted = counted;
        if counted > 0.0 {
            self.estimates.note_end(kind, now);
        }
        self.revalue_unless(was_measured, kind);
    }

    /// The worker of a job whose outcome was decided is about to be free, or to be given up.
    pub(super) fn charge_rest(&mut self, now: Instant, index: usize) {
        let held = self.held(now, index);
        let entry = &mut self.entries[index];
        let more = held.saturating_sub(entry.took);
        if more.is_zero() || entry.is_undecided_run() {
            return;
        }
        entry.took = held;
        let (kind, counted) = (entry.kind, entry.counted);
        self.queues.take(entry.class, more.as_secs_f64());
        self.queues.correct(entry, more, 0.0);
        let was_measured = self.estimates.runs(kind) > 0;
        self.estimates.observe_held(kind, counted, held);
        self.revalue_unless(was_measured, kind);
    }

    /// For how long a job has its worker; nothing where that one is stuck.
    fn held(&self, now: Instant, index: usize) -> Duration {
        match self.entries[index].place {
            Place::Running { slot, .. } => self.workers.held_for(slot, now),
            Place::Waiting | Place::Ready | Place::Blocked | Place::Held => Duration::ZERO,
        }
    }

    fn revalue_unless(&mut self, was_measured: bool, kind: usize) {
        if !was_measured && self.estimates.runs(kind) > 0 {
            self.revalue(kind);
        }
    }
}
