//! Turns the end of a run into the job's one outcome: counts it, logs it, and gives the worker back.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    ended_jobs::EndedJob,
    inner::{PoolInner, jittered},
    lease::{End, Lease},
    trace::{log_completed, log_failed, log_panic},
};
use crate::{
    handler::{Context, StopReason},
    model::{
        Completed, Criticality, Execution, Failure, HandlerError, JobError, JobResult, Limiter, Outcome, Output,
        RecordedEnd, Rejection, RejectionReason, Rung,
    },
};

/// Shortest retry time for callers that waited for capacity without success.
const MIN_RETRY: Duration = Duration::from_millis(10);
const MAX_RETRY: Duration = Duration::from_secs(5);
/// Retry time for a caller whose job could not start because there was no handler.
const UNAVAILABLE_FOR: Duration = Duration::from_millis(100);

impl Failure {
    /// The failure of a job that ends now. It has started if its run has begun.
    pub(super) fn of(cx: &Context, outcome: Outcome) -> Box<Self> {
        let now = Instant::now();
        Box::new(Self {
            job: cx.job(),
            kind: Arc::clone(cx.kind()),
            pool: Arc::clone(cx.pool()),
            outcome,
            error: None,
            retry_after: None,
            execution: if cx.waited().is_some() { Execution::Started } else { Execution::NotStarted },
            queue: cx.queued(now),
            run: cx.ran(now),
            rung: None,
        })
    }

    /// The failure of a job whose handler ended with `error`.
    fn by(cx: &Context, error: HandlerError) -> Box<Self> {
        let mut failure = Self::of(cx, error.outcome());
        // A handler that stops on request has nothing to add.
        failure.error = Some(error).filter(|error| *error != HandlerError::Stopped);
        if let Some(HandlerError::Refused { next, .. }) = &failure.error {
            failure.retry_after = next.after;
        }
        failure
    }

    /// What the handler holds, and for how long.
    fn hold(&self) -> Option<(Limiter, Duration)> {
        match &self.error {
            Some(HandlerError::Refused { next, .. }) => next.hold.zip(next.after),
            _ => None,
        }
    }

    /// There is no handler, or no thread for it, so the job did not start.
    pub(super) fn without_handler(cx: &Context, error: HandlerError, retry_after: Option<Duration>) -> Box<Self> {
        Box::new(Self { execution: Execution::NotStarted, run: Duration::ZERO, retry_after, ..*Self::by(cx, error) })
    }
}

/// Turns the end of a run into the job's one outcome, and gives the worker back. Returns `None` if the outcome was
/// decided before.
pub(super) fn conclude(
    lease: &mut Lease,
    cx: &Context,
    now: Instant,
    result: Result<Output, Box<Failure>>,
) -> Option<JobResult> {
    let result = match result {
        Ok(_) if now >= cx.deadline().end() => Err(Failure::of(cx, Outcome::DeadlineExceeded)),
        other => other,
    };
    let (outcome, run) = match &result {
        Ok(_) => (Outcome::Completed, cx.ran(now)),
        Err(failure) => (failure.outcome, failure.run),
    };
    if let Err(failure) = &result {
        log_panic(cx, failure);
    }
    let hold = result.as_ref().err().and_then(|failure| failure.hold());
    let end = End { outcome, run, at: now, lost: result.is_err().then_some(cx), hold };
    if !lease.give_back(Some(end)) {
        return None;
    }
    Some(match result {
        Ok(output) => {
            let ended = EndedJob::new(cx, outcome, run, now);
            let waterfall = ended.waterfall;
            remember(lease.inner(), cx, ended);
            log_completed(cx, run);
            Ok(Completed { job: cx.job(), output, waterfall })
        }
        Err(mut failure) => {
            failure.rung = cx.is_cancelled().then_some(Rung::Yielded);
            Err(record(lease.inner(), cx, failure))
        }
    })
}

/// Logs and records the failure of an accepted job, and makes it the answer for its caller.
pub(super) fn record(inner: &PoolInner, cx: &Context, failure: Box<Failure>) -> JobError {
    log_failed(cx, &failure);
    remember(inner, cx, EndedJob::failed(cx, &failure, Instant::now()));
    JobError::Failed(failure)
}

fn remember(inner: &PoolInner, cx: &Context, ended: EndedJob) {
    inner.recorder.record(cx, ended.at, RecordedEnd::of(ended.outcome, ended.started));
    inner.meters.record(ended);
}

/// The answer for a caller that waited for capacity without success.
pub(super) fn refuse_waiting(inner: &PoolInner, cx: &Context, reason: RejectionReason) -> JobError {
    inner.recorder.record(cx, Instant::now(), RecordedEnd::Refused);
    let retry_after = match reason {
        RejectionReason::NoRoomInTime => {
            let expected = inner.read(|core| core.expected_wait(Instant::now(), Criticality::default()));
            Some(jittered(expected.clamp(MIN_RETRY, MAX_RETRY)))
        }
        _ => None,
    };
    Rejection { reason, pool: Some(Arc::clone(&inner.name)), kind: Arc::clone(cx.kind()), retry_after }.into()
}

/// What the result of a handler means for its job. Whatever ran it, its texts are bounded here.
pub(super) fn judge(
    result: Result<Output, HandlerError>,
    cx: &Context,
    inner: &PoolInner,
) -> Result<Output, Box<Failure>> {
    let error = match result {
        Ok(output) => {
            let Output { bytes, content_type } = output.bounded();
            let bytes = cx.output().finish(bytes).map_err(|error| Failure::by(cx, error))?;
            return Ok(Output { bytes, content_type });
        }
        Err(error) => error.bounded(),
    };
    // A handler that was asked to stop has stopped for that reason, whatever it returns.
    let is_stopped = cx.is_cancelled() && !matches!(error, HandlerError::Panicked { .. });
    let mut failure = match error {
        HandlerError::Unavailable { .. } => Failure::without_handler(cx, error, Some(jittered(UNAVAILABLE_FOR))),
        _ => Failure::by(cx, error),
    };
    if is_stopped {
        let outcome = stopped(cx, inner);
        *failure = Failure { outcome, error: None, retry_after: None, ..*failure };
    } else if let Outcome::WorkerLost { idempotent } = &mut failure.outcome {
        *idempotent = is_idempotent(cx, inner);
    }
    Err(failure)
}

/// The outcome of a job whose handler stopped because it was asked to.
pub(super) fn stopped(cx: &Context, inner: &PoolInner) -> Outcome {
    match cx.stop_reason() {
        Some(StopReason::Deadline) => timed_out(cx),
        Some(StopReason::Drain) if cx.waited().is_none() => Outcome::Drained,
        Some(StopReason::Drain) => Outcome::DrainKilled { idempotent: is_idempotent(cx, inner) },
        Some(StopReason::Operator) => Outcome::CancelledByOperator,
        Some(StopReason::Caller) | None => Outcome::Cancelled,
    }
}

/// Whether a job may run twice.
fn is_idempotent(cx: &Context, inner: &PoolInner) -> bool {
    inner.kind(cx.kind_id()).get_options().idempotent
}

/// The outcome of a job that reached its deadline, its run timeout, or the end of its wait for a process.
pub(super) fn timed_out(cx: &Context) -> Outcome {
    if cx.waited().is_none() {
        return Outcome::ExpiredInQueue;
    }
    if cx.until() < cx.deadline().reply_by() { Outcome::RunTimeout } else { Outcome::DeadlineExceeded }
}
