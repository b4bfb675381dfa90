//! What becomes of a job after an attempt.

use super::run::End;
use crate::{
    model::{Code, Completed, Failure, HandlerError, JobError, Outcome, Reason, Rejection, RejectionReason},
    store::{Claimed, Next, Settle},
};

/// Codes of failures that another attempt may cure.
const RETRYABLE: [Code; 6] =
    [Code::Unknown, Code::DeadlineExceeded, Code::ResourceExhausted, Code::Aborted, Code::Internal, Code::Unavailable];

/// The end of an attempt, for the store. `jitter` is a random number from 0 to 1.
pub(super) fn settle(claimed: Claimed, end: End, worker: String, jitter: f64) -> Settle {
    let (reason, code, message, next) = match end {
        End::Ended(Ok(Completed { output, waterfall, .. })) => {
            let worker = format!("{worker}/{}", waterfall.worker);
            let (reason, next) = (Reason::Completed, Next::Succeeded(output));
            return Settle { token: claimed.token, worker, reason, code: 0, message: String::new(), next };
        }
        End::NotBegun => {
            let message = "the server drained before the job began".to_owned();
            (Reason::Draining, Code::Unavailable as i32, message, Next::GiveBack)
        }
        End::Refused(rejection) => refused(&rejection),
        End::Ended(Err(JobError::Rejected(rejection))) => refused(&rejection),
        End::Ended(Err(JobError::Failed(failure))) => failed(&claimed, &failure, jitter),
    };
    Settle { token: claimed.token, worker, reason, code, message, next }
}

/// Whether the drain, or another job, ended the attempt, so that it does not count.
pub(super) fn is_given_back(error: &JobError) -> bool {
    match error {
        JobError::Rejected(_) => true,
        JobError::Failed(failure) => matches!(
            failure.outcome,
            Outcome::Drained
                | Outcome::DrainKilled { .. }
                | Outcome::Shed
                | Outcome::ExpiredInQueue
                | Outcome::Cancelled
        ),
    }
}

fn refused(rejection: &Rejection) -> (Reason, i32, String, Next) {
    // The bounds are the server's, and may have been lowered since the job was accepted.
    let is_final =
        matches!(rejection.reason, RejectionReason::Invalid { .. } | RejectionReason::PayloadTooLarge { .. });
    let reason = rejection.reason.reason();
    let next = if is_final { Next::Failed } else { Next::GiveBack };
    (reason, reason.code() as i32, rejection.to_string(), next)
}

fn failed(claimed: &Claimed, failure: &Failure, jitter: f64) -> (Reason, i32, String, Next) {
    let reason = failure.outcome.reason();
    let (code, retryable) = match &failure.error {
        Some(HandlerError::Refused { code, retryable, .. }) if failure.outcome == Outcome::HandlerFailed => {
            (*code as i32, *retryable)
        }
        // The next attempt would write as much.
        _ if failure.outcome == Outcome::OutputTooLarge => (reason.code() as i32, Some(false)),
        _ => (reason.code() as i32, None),
    };
    let next = match failure.outcome {
        Outcome::CancelledByOperator => Next::Cancelled,
        _ if is_given_back(&failure.clone().into()) => Next::GiveBack,
        _ => {
            let retryable = retryable.unwrap_or_else(|| RETRYABLE.iter().any(|known| *known as i32 == code));
            claimed.request.retry.next(claimed, reason, retryable, jitter)
        }
    };
    (reason, code, failure.to_string(), next)
}
