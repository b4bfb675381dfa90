//! The third step of a job's life, after `intake` and `submit`, and after `claims` and `dispatch`: runs one attempt in
//! its pool, and decides what follows.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use futures_util::future::OptionFuture;
use tokio::time::Instant;

use super::{
    LostRun, MAX_RUN,
    claims::Reservation,
    leases::{Run, Stage},
};
use crate::{
    model::{
        AttemptToken, Call, Code, Completed, Deadline, Execution, Failure, HandlerError, Job, JobError, Limiter,
        NextAttempt, Outcome, Reason, Rejection, RejectionReason, RunningAttempt, WhenFull,
    },
    pool::{LostWhile, Ticket},
    store::{Claimed, NewJob, Next, Settle, Token},
};

/// Longest wait in the pool: far more than the look-ahead needs.
const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);
/// Time for which no jobs of a refused kind are taken, unless the pool returns a longer retry time.
const REFUSED_FOR: Duration = Duration::from_millis(500);
/// Shortest delay of an attempt that does not count, so that a job cannot run in a loop.
const MIN_LATER: Duration = Duration::from_millis(100);
/// Status codes after which another attempt may succeed.
const RETRYABLE: [Code; 6] =
    [Code::Unknown, Code::DeadlineExceeded, Code::ResourceExhausted, Code::Aborted, Code::Internal, Code::Unavailable];

/// The end of a run.
enum End {
    /// The process was asked to stop before the run began.
    Stopped,
    /// A handler holds the job's kind or its limit key, so that it cannot begin for this time.
    Held(Duration),
    Ended(Result<Completed, JobError>),
}

impl Reservation {
    /// Runs one attempt of a job.
    pub(super) async fn run(mut self, claimed: Claimed) -> Settle {
        let inner = Arc::clone(&self.inner);
        let Token { id, row, attempt, .. } = &claimed.token;
        let token = AttemptToken { job: id.clone(), number: *attempt, row: *row };
        let attempt = Arc::new(RunningAttempt::new(token, claimed.crashes));
        let if_lost = receipt_entry(&claimed, &self.pool);
        let end = match inner.pools.try_submit(pool_job(&claimed, &attempt)) {
            Ok(ticket) => {
                let run = Run { cx: ticket.context().clone(), lost: if_lost.clone() };
                inner.set(&claimed.token, Stage::Runs(run));
                inner.store.wakes().changed(id);
                self.follow(ticket, &claimed.request.job).await
            }
            Err(rejection)
                if let RejectionReason::LimitExceeded {
                    limit: limit @ (Limiter::Hold | Limiter::KeyHold),
                    expected,
                    ..
                } = rejection.reason =>
            {
                self.held(&claimed.request.job.kind, limit, expected)
            }
            Err(rejection) => {
                let pause = rejection.retry_after.unwrap_or_default().max(REFUSED_FOR);
                inner.claims.lock().refuse(&claimed.request.job.kind, Instant::now() + pause);
                End::Ended(Err(rejection.into()))
            }
        };
        let has_run =
            matches!(&end, End::Ended(Err(JobError::Failed(failure))) if failure.execution == Execution::Started);
        let settled = settle(claimed, end, &attempt, &self.pool, rand::random());
        let is_result = !matches!(settled.next, Next::GiveBack | Next::Later { .. });
        // A drain stopped a run that had begun: the receipt of the drain lists it.
        if has_run && !is_result && inner.stop.is_cancelled() {
            inner.leases.list_in_receipt(if_lost.clone());
        }
        inner.set(&settled.token, Stage::Ended(is_result.then_some(if_lost)));
        settled
    }

    /// The job cannot begin. Other jobs of its kind are not taken either if the whole kind is held.
    fn held(&self, kind: &str, scope: Limiter, time: Duration) -> End {
        if scope == Limiter::Hold {
            self.inner.claims.lock().refuse(kind, Instant::now() + time);
        }
        End::Held(time)
    }

    /// Waits for the result of a job. After a stop, or when its handler holds it, it returns at once if the job has not
    /// begun: a job that is held would take the room of others.
    async fn follow(&mut self, mut ticket: Ticket, job: &Job) -> End {
        let inner = Arc::clone(&self.inner);
        let mut stopped = pin!(inner.stop.cancelled());
        let mut held =
            pin!(OptionFuture::from(inner.pools.get(&self.pool).map(|pool| pool.held(&job.kind, &job.limit_key))));
        poll_fn(|cx| {
            let ended = pin!(&mut ticket).poll(cx);
            if ended.is_ready() || ticket.has_begun() {
                // It no longer waits, which `begin` counts once. From here on, a stop does not end this wait.
                self.begin();
                return ended.map(End::Ended);
            }
            if stopped.as_mut().poll(cx).is_ready() {
                return Poll::Ready(End::Stopped);
            }
            match held.as_mut().poll(cx) {
                Poll::Ready(Some((scope, time))) => Poll::Ready(self.held(&job.kind, scope, time)),
                _ => Poll::Pending,
            }
        })
        .await
    }
}

/// What the receipt of a drain says of this run if it is lost.
fn receipt_entry(claimed: &Claimed, pool: &str) -> LostRun {
    let NewJob { id, request_id, job, .. } = &claimed.request;
    let (job, request_id, kind) = (id.clone(), request_id.clone(), job.kind.clone());
    LostRun { job, request_id, kind, pool: pool.to_owned(), lost_while: LostWhile::Running }
}

/// The job for its pool: its run limit bounds its time, and it waits for capacity.
fn pool_job(claimed: &Claimed, attempt: &Arc<RunningAttempt>) -> Job {
    let request = &claimed.request;
    let run = request.job.run_timeout.unwrap_or(MAX_RUN).min(MAX_RUN);
    let attempt = Some(Arc::clone(attempt));
    let call = Call { request_id: request.request_id.parse().ok(), attempt, ..Call::here() };
    Job {
        timeout: None,
        run_timeout: Some(run),
        queue_timeout: None,
        when_full: Some(WhenFull::Wait),
        // Later than any of its limits, so that it never ends a run.
        deadline: Some(Deadline::new(Instant::now(), (MAX_RUN + MAX_WAIT) * 2, Duration::ZERO)),
        call: Some(Arc::new(call)),
        ..request.job.clone()
    }
}

/// How an attempt ended, and what follows.
struct Verdict {
    reason: Reason,
    /// gRPC status code, as a number.
    code: i32,
    message: String,
    next: Next,
}

/// The end of an attempt, for the store. `jitter` is a random number from 0 to 1.
fn settle(claimed: Claimed, end: End, attempt: &RunningAttempt, pool: &str, jitter: f64) -> Settle {
    let mut worker = pool.to_owned();
    let Verdict { reason, code, message, next } = match end {
        End::Ended(Ok(Completed { output, waterfall, .. })) => {
            worker = format!("{pool}/{}", waterfall.worker);
            Verdict { reason: Reason::Completed, code: 0, message: String::new(), next: Next::Succeeded(output) }
        }
        End::Held(after) => {
            let (reason, message) = (Reason::LimitExceeded, "a handler holds its kind or its limit key".to_owned());
            Verdict { reason, code: reason.code() as i32, message, next: Next::Later { after } }
        }
        End::Stopped => {
            let message = "the server drained before the job began".to_owned();
            Verdict { reason: Reason::Draining, code: Code::Unavailable as i32, message, next: Next::GiveBack }
        }
        End::Ended(Err(JobError::Rejected(rejection))) => refused(&rejection),
        End::Ended(Err(JobError::Failed(failure))) => failed(&claimed, &failure, attempt, jitter),
    };
    Settle { token: claimed.token, worker, reason, code, message, next }
}

fn refused(rejection: &Rejection) -> Verdict {
    // These limits belong to the server, and may have been lowered since the job was accepted.
    let is_final =
        matches!(rejection.reason, RejectionReason::Invalid { .. } | RejectionReason::PayloadTooLarge { .. });
    let reason = rejection.reason.reason();
    let next = if is_final { Next::Failed } else { Next::GiveBack };
    Verdict { reason, code: reason.code() as i32, message: rejection.to_string(), next }
}

fn failed(claimed: &Claimed, failure: &Failure, attempt: &RunningAttempt, jitter: f64) -> Verdict {
    let reason = failure.outcome.reason();
    let said = |retryable| NextAttempt { retryable, ..NextAttempt::default() };
    let (code, said) = match &failure.error {
        Some(HandlerError::Refused { code, next, .. }) if failure.outcome == Outcome::HandlerFailed => {
            (*code as i32, *next)
        }
        // The next attempt would produce the same output.
        _ if failure.outcome == Outcome::OutputTooLarge => (reason.code() as i32, said(Some(false))),
        _ => (reason.code() as i32, said(None)),
    };
    let next = match failure.outcome {
        Outcome::CancelledByOperator => Next::Cancelled,
        // One of several jobs may be the cause. A later attempt runs alone, and shows whether it was this one.
        Outcome::WorkerCrashed | Outcome::WorkerLost { .. } if attempt.has_shared_crash() => Next::GiveBack,
        // A drain, or another job, ended the attempt, so that it does not count.
        Outcome::Drained
        | Outcome::DrainKilled { .. }
        | Outcome::Shed
        | Outcome::Replaced
        | Outcome::ExpiredInQueue
        | Outcome::Cancelled => Next::GiveBack,
        _ => {
            let asks_again = said.after.is_some() || said.is_uncounted;
            let is_retryable_code = || asks_again || RETRYABLE.iter().any(|known| *known as i32 == code);
            let retryable = said.retryable.unwrap_or_else(is_retryable_code);
            let policy = &claimed.request.policy.retry;
            match (policy.next(claimed, reason, retryable, jitter), said.after) {
                _ if retryable && said.is_uncounted => {
                    Next::Later { after: said.after.unwrap_or(policy.initial).max(MIN_LATER) }
                }
                (Next::Retry { .. }, Some(after)) => Next::Retry { after },
                (next, _) => next,
            }
        }
    };
    Verdict { reason, code, message: failure.to_string(), next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{KindPolicy, SessionId};

    fn claimed(run_timeout: Option<Duration>) -> Claimed {
        let job = Job { run_timeout, ..Job::new("k", "") };
        let request = NewJob { policy: KindPolicy::default(), ..NewJob::new("a", "p", job) };
        let token = request.token(1, 1, SessionId::default());
        Claimed { token, request, failures: 0, crashes: 0 }
    }

    #[test]
    fn a_run_lasts_seven_days_at_most() {
        const WEEK: Duration = Duration::from_secs(7 * 86_400);
        for (asked, expected) in [(None, WEEK), (Some(WEEK * 2), WEEK), (Some(WEEK / 7), WEEK / 7)] {
            let claimed = claimed(asked);
            let token = AttemptToken { job: "a".into(), number: 1, row: 1 };
            let job = pool_job(&claimed, &Arc::new(RunningAttempt::new(token, 0)));
            assert_eq!(job.run_timeout, Some(expected));
            assert!(job.deadline.expect("a deadline").budget() > WEEK, "the deadline ends no run");
        }
    }
}
