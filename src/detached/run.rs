//! One run of a detached job in its pool, and what follows it.

use std::{future::poll_fn, pin::pin, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{MAX_RUN, Run, claims::Reservation};
use crate::{
    model::{
        Attempt, AttemptToken, Call, Code, Completed, Deadline, Failure, HandlerError, Job, JobError, Outcome, Reason,
        Rejection, RejectionReason, WhenFull,
    },
    pool::Ticket,
    store::{Claimed, Next, Settle, Token},
};

/// Longest wait in the pool: far more than the look-ahead needs.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);
/// Time for which no jobs of a refused kind are taken, unless the pool returns a longer retry time.
const REFUSED_FOR: Duration = Duration::from_millis(500);
/// Status codes after which another attempt may succeed.
const RETRYABLE: [Code; 6] =
    [Code::Unknown, Code::DeadlineExceeded, Code::ResourceExhausted, Code::Aborted, Code::Internal, Code::Unavailable];

/// The result of a run; `None` if the process was asked to stop before the run began.
type End = Option<Result<Completed, JobError>>;

impl Reservation {
    /// Runs one attempt of a job.
    pub(super) async fn run(mut self, claimed: Claimed) -> Settle {
        let inner = Arc::clone(&self.inner);
        let Token { id, attempt, session, .. } = &claimed.token;
        let token = AttemptToken { job: id.clone(), number: *attempt, epoch: session.number() };
        let attempt = Arc::new(Attempt::new(token, claimed.crashes > 0));
        let end = match inner.pools.try_submit(pool_job(&claimed, &attempt)) {
            Ok(ticket) => {
                let job = ticket.job();
                inner.hold(&claimed.token, Some(Run { job, attempt: Arc::clone(&attempt) }));
                let end = self.follow(ticket).await;
                inner.hold(&claimed.token, None);
                if let Some(Err(error)) = &end
                    && is_given_back(error)
                {
                    inner.returned.lock().insert(job);
                }
                end
            }
            Err(rejection) => {
                let pause = rejection.retry_after.unwrap_or_default().max(REFUSED_FOR);
                inner.claims.lock().refuse(&claimed.request.job.kind, Instant::now() + pause);
                Some(Err(rejection.into()))
            }
        };
        settle(claimed, end, &attempt, &self.pool, rand::random())
    }

    /// Waits for the result of a job. After a stop, gives the job back if it has not begun.
    async fn follow(&mut self, mut ticket: Ticket) -> End {
        let inner = Arc::clone(&self.inner);
        let mut stopped = pin!(inner.stop.cancelled());
        poll_fn(|cx| {
            let ended = pin!(&mut ticket).poll(cx);
            if ended.is_ready() || ticket.has_begun() {
                self.begin();
                return ended.map(Some);
            }
            stopped.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}

/// The job for its pool: its run limit bounds its time, and it waits for capacity.
fn pool_job(claimed: &Claimed, attempt: &Arc<Attempt>) -> Job {
    let request = &claimed.request;
    let run = request.job.run_timeout.unwrap_or(MAX_RUN).min(MAX_RUN);
    let attempt = Some(Arc::clone(attempt));
    let call = Call { request_id: request.request_id.parse().ok(), attempt, ..Call::here() };
    Job {
        timeout: None,
        run_timeout: Some(run),
        queue_timeout: None,
        when_full: Some(WhenFull::Wait),
        // The answer margin is at most a tenth of the deadline.
        deadline: Some(Deadline::new(Instant::now(), (MAX_RUN + MAX_WAIT) * 2, Duration::ZERO)),
        call: Some(Arc::new(call)),
        ..request.job.clone()
    }
}

/// The end of an attempt, for the store. `jitter` is a random number from 0 to 1.
fn settle(claimed: Claimed, end: End, attempt: &Attempt, pool: &str, jitter: f64) -> Settle {
    let mut worker = pool.to_owned();
    let (reason, code, message, next) = match end {
        Some(Ok(Completed { output, waterfall, .. })) => {
            worker = format!("{pool}/{}", waterfall.worker);
            (Reason::Completed, 0, String::new(), Next::Succeeded(output))
        }
        None => {
            let message = "the server drained before the job began".to_owned();
            (Reason::Draining, Code::Unavailable as i32, message, Next::GiveBack)
        }
        Some(Err(JobError::Rejected(rejection))) => refused(&rejection),
        Some(Err(JobError::Failed(failure))) => failed(&claimed, &failure, attempt, jitter),
    };
    Settle { token: claimed.token, worker, reason, code, message, next }
}

/// Whether a drain, or another job, ended the attempt, so that it does not count.
fn is_given_back(error: &JobError) -> bool {
    match error {
        JobError::Rejected(_) => true,
        JobError::Failed(failure) => matches!(
            failure.outcome,
            Outcome::Drained
                | Outcome::DrainKilled { .. }
                | Outcome::Shed
                | Outcome::Replaced
                | Outcome::ExpiredInQueue
                | Outcome::Cancelled
        ),
    }
}

fn refused(rejection: &Rejection) -> (Reason, i32, String, Next) {
    // These limits belong to the server, and may have been lowered since the job was accepted.
    let is_final =
        matches!(rejection.reason, RejectionReason::Invalid { .. } | RejectionReason::PayloadTooLarge { .. });
    let reason = rejection.reason.reason();
    let next = if is_final { Next::Failed } else { Next::GiveBack };
    (reason, reason.code() as i32, rejection.to_string(), next)
}

fn failed(claimed: &Claimed, failure: &Failure, attempt: &Attempt, jitter: f64) -> (Reason, i32, String, Next) {
    let reason = failure.outcome.reason();
    let (code, retryable) = match &failure.error {
        Some(HandlerError::Refused { code, retryable, .. }) if failure.outcome == Outcome::HandlerFailed => {
            (*code as i32, *retryable)
        }
        // The next attempt would produce the same output.
        _ if failure.outcome == Outcome::OutputTooLarge => (reason.code() as i32, Some(false)),
        _ => (reason.code() as i32, None),
    };
    let next = match failure.outcome {
        Outcome::CancelledByOperator => Next::Cancelled,
        // One of several jobs caused the crash. The next attempt runs alone, and shows whether it was this one.
        Outcome::WorkerCrashed if attempt.has_shared_crash() => Next::GiveBack,
        _ if is_given_back(&failure.clone().into()) => Next::GiveBack,
        _ => {
            let retryable = retryable.unwrap_or_else(|| RETRYABLE.iter().any(|known| *known as i32 == code));
            claimed.request.policy.retry.next(claimed, reason, retryable, jitter)
        }
    };
    (reason, code, failure.to_string(), next)
}
