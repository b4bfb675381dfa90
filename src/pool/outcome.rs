//! Turns the end of a run into the job's one outcome: counts it, logs it, and gives the worker back.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::{debug, error, field, info};

use super::{
    drain::LostJob,
    ended_jobs::EndedJob,
    inner::{PoolInner, jittered},
    lease::Lease,
};
use crate::{
    handler::{Context, StopReason},
    model::{
        Completed, Criticality, Execution, Failure, HandlerError, JobError, Outcome, Output, Rejection,
        RejectionReason, Rung,
    },
};

/// Shortest retry time for callers that waited for capacity without success.
const MIN_RETRY: Duration = Duration::from_millis(10);
const MAX_RETRY: Duration = Duration::from_secs(5);
/// Retry time for a caller whose job could not start because there was no handler.
const UNAVAILABLE_FOR: Duration = Duration::from_millis(100);

/// The result that the caller of a job gets.
pub(super) type JobResult = Result<Completed, JobError>;

/// Why a run did not complete.
pub(super) struct Fault {
    outcome: Outcome,
    error: Option<HandlerError>,
    retry_after: Option<Duration>,
    execution: Execution,
}

impl From<Outcome> for Fault {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, error: None, retry_after: None, execution: Execution::Started }
    }
}

impl Fault {
    /// There is no handler, or no thread for it, so the job did not start.
    pub(super) fn not_begun(error: HandlerError, retry_after: Option<Duration>) -> Self {
        Self { retry_after, execution: Execution::NotStarted, ..error.into() }
    }

    fn into_failure(self, cx: &Context, queue: Duration, run: Duration, rung: Option<Rung>) -> Failure {
        let Self { outcome, error, retry_after, execution } = self;
        let (job, kind, pool) = (cx.job(), Arc::clone(cx.kind()), Arc::clone(cx.pool()));
        Failure { job, kind, pool, outcome, error, retry_after, execution, queue, run, rung }
    }
}

impl From<HandlerError> for Fault {
    fn from(error: HandlerError) -> Self {
        let outcome = error.outcome();
        // A handler that stops on request has nothing to add.
        Self { error: Some(error).filter(|error| *error != HandlerError::Stopped), ..outcome.into() }
    }
}

/// Turns the end of a run into the job's one outcome, and gives the worker back. Returns `None` if the outcome was
/// decided before.
pub(super) fn conclude(
    lease: &mut Lease,
    kind: usize,
    cx: &Context,
    now: Instant,
    result: Result<Output, Fault>,
) -> Option<JobResult> {
    if let Err(Fault { error: Some(HandlerError::Panicked { message }), .. }) = &result {
        log_panic(cx, message);
    }
    let result = match result {
        Ok(_) if now >= cx.deadline().end() => Err(Fault::from(Outcome::DeadlineExceeded)),
        other => other,
    };
    let (outcome, execution) = match &result {
        Ok(_) => (Outcome::Completed, Execution::Started),
        Err(fault) => (fault.outcome, fault.execution),
    };
    let run = if execution == Execution::Started { cx.ran(now) } else { Duration::ZERO };
    if !lease.finish(outcome, run, now, result.is_err().then_some(cx)) {
        return None;
    }
    Some(match result {
        Ok(output) => {
            let ended = EndedJob::new(cx, kind, outcome, run, now);
            let waterfall = ended.waterfall;
            lease.inner().meters.record(ended);
            debug!(
                pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), request_id = %cx.request_id(),
                run_ms = milliseconds(run), "job completed",
            );
            Ok(Completed { job: cx.job(), output, waterfall })
        }
        Err(fault) => {
            let failure = failure(cx, fault, run, cx.is_cancelled().then_some(Rung::Yielded));
            lease.inner().meters.record(EndedJob::failed(cx, kind, &failure, now));
            Err(failure.into())
        }
    })
}

/// Records a job that ended before it began, and returns the answer for its caller.
pub(super) fn conclude_queued(
    inner: &PoolInner,
    kind: usize,
    cx: &Context,
    outcome: Outcome,
    retry_after: Option<Duration>,
) -> JobError {
    let now = Instant::now();
    inner.meters.record(EndedJob::new(cx, kind, outcome, Duration::ZERO, now));
    let fault = Fault { retry_after, execution: Execution::NotStarted, ..outcome.into() };
    fault.into_failure(cx, cx.queued(now), Duration::ZERO, None).into()
}

/// The answer for a caller that waited for capacity without success.
pub(super) fn refuse_waiting(inner: &PoolInner, cx: &Context, reason: RejectionReason) -> JobError {
    let retry_after = match reason {
        RejectionReason::NoRoomInTime => {
            let expected = inner.read(|core| core.expected_wait(Criticality::default()));
            Some(jittered(expected.clamp(MIN_RETRY, MAX_RETRY)))
        }
        _ => None,
    };
    Rejection { reason, pool: Some(Arc::clone(&inner.name)), kind: Arc::clone(cx.kind()), retry_after }.into()
}

/// What the result of a handler means for its job. Whatever ran it, its texts are bounded here.
pub(super) fn judge(result: Result<Output, HandlerError>, cx: &Context, inner: &PoolInner) -> Result<Output, Fault> {
    let error = match result {
        Ok(output) => {
            let Output { bytes, content_type } = output.bounded();
            let bytes = cx.output().finish(bytes)?;
            return Ok(Output { bytes, content_type });
        }
        Err(error) => error.bounded(),
    };
    let (retry_after, execution) = match error {
        HandlerError::Unavailable { .. } => (Some(jittered(UNAVAILABLE_FOR)), Execution::NotStarted),
        _ => (None, Execution::Started),
    };
    if cx.is_cancelled() && !matches!(error, HandlerError::Panicked { .. }) {
        // A handler that was asked to stop has stopped for that reason, whatever it returns.
        return Err(Fault { execution, ..stopped(cx, inner).into() });
    }
    let fault = Fault { retry_after, execution, ..error.into() };
    Err(match fault.outcome {
        Outcome::WorkerLost { .. } => {
            Fault { outcome: Outcome::WorkerLost { idempotent: is_idempotent(cx, inner) }, ..fault }
        }
        _ => fault,
    })
}

/// Records a job that a drain stops. This happens before the outcome is decided, so that no observer sees a finished
/// drain without the job.
pub(super) fn note_lost(inner: &PoolInner, cx: &Context) {
    if cx.stop_reason() == Some(StopReason::Drain) {
        inner.lost.lock().push(LostJob::new(cx));
    }
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
    let kind = inner.kind_index(cx.kind()).map(|kind| &inner.kinds[kind]);
    kind.is_some_and(|kind| kind.get_options().idempotent)
}

/// The outcome of a job that reached its deadline, its run timeout, or the end of its wait for a process.
pub(super) fn timed_out(cx: &Context) -> Outcome {
    if cx.waited().is_none() {
        return Outcome::ExpiredInQueue;
    }
    if cx.until() < cx.deadline().reply_by() { Outcome::RunTimeout } else { Outcome::DeadlineExceeded }
}

/// Milliseconds as a JSON number, to a microsecond.
pub(super) fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

/// Logs a panic of a job's handler.
fn log_panic(cx: &Context, message: &str) {
    cx.span().in_scope(|| {
        error!(
            pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), request_id = %cx.request_id(),
            panic = message, "a handler panicked; its worker makes a new one",
        );
    });
}

/// A failure of a job that had a worker.
pub(super) fn failure(cx: &Context, fault: impl Into<Fault>, run: Duration, rung: Option<Rung>) -> Failure {
    let mut fault: Fault = fault.into();
    let outcome = fault.outcome;
    if cx.waited().is_none() {
        fault.execution = Execution::NotStarted;
    }
    let failure = fault.into_failure(cx, cx.queued(Instant::now()), run, rung);
    // Handler failures concern the operator. Other outcomes are counted, and may be too many to log.
    if matches!(
        outcome,
        Outcome::HandlerFailed | Outcome::WorkerCrashed | Outcome::WorkerLost { .. } | Outcome::OutputTooLarge
    ) {
        info!(
            pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), request_id = %cx.request_id(),
            detached_job = cx.detached_job(), run_ms = milliseconds(run), runner = cx.runner().map(field::display),
            cause = %failure, "job failed",
        );
    } else {
        debug!(
            pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), request_id = %cx.request_id(),
            run_ms = milliseconds(run), cause = %failure, "job did not complete",
        );
    }
    failure
}
