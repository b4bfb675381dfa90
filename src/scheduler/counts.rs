//! Counters of jobs, by outcome and by reason of refusal.

use super::{Core, Host};
use crate::model::{Outcome, Reason, RejectionReason};

/// Counters of jobs since the start of the pool.
///
/// `accepted = completed + failed + cancelled + expired + panicked + shed + queued + running`. A running job whose
/// caller was answered, but whose handler is still stopping, counts as ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Accepted jobs.
    pub accepted: u64,
    /// Jobs whose handler returned a result in time.
    pub completed: u64,
    /// Jobs whose handler returned an error or was unavailable, whose process crashed or worker was lost, or whose
    /// output was too large.
    pub failed: u64,
    /// Jobs whose caller disconnected or cancelled, or that a drain stopped.
    pub cancelled: u64,
    /// Jobs that reached their deadline, queued or running, or their run timeout.
    pub expired: u64,
    /// Jobs whose handler panicked.
    pub panicked: u64,
    /// Jobs that were evicted for more important ones, or replaced by newer ones.
    pub shed: u64,
    /// Refused jobs, in the order of [`Reason::REFUSALS`].
    pub rejected: [u64; Reason::REFUSALS.len()],
}

impl Counts {
    /// Accepted jobs that ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.completed + self.failed + self.cancelled + self.expired + self.panicked + self.shed
    }

    pub(super) fn count(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Completed => &mut self.completed,
            Outcome::HandlerFailed
            | Outcome::WorkerCrashed
            | Outcome::WorkerLost { .. }
            | Outcome::OutputTooLarge
            | Outcome::HandlerUnavailable => &mut self.failed,
            Outcome::Cancelled | Outcome::CancelledByOperator | Outcome::Drained | Outcome::DrainKilled { .. } => {
                &mut self.cancelled
            }
            Outcome::DeadlineExceeded | Outcome::RunTimeout | Outcome::ExpiredInQueue => &mut self.expired,
            Outcome::HandlerPanicked => &mut self.panicked,
            Outcome::Shed | Outcome::Replaced => &mut self.shed,
        } += 1;
    }
}

impl<H: Host> Core<H> {
    /// Counts a refusal.
    pub(crate) fn count_rejection(&mut self, reason: &RejectionReason) {
        self.counts.rejected[reason.index()] += 1;
    }
}
