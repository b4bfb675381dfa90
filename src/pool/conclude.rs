use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::{debug, error, info};

use super::{
    attempt::{Attempt, Raised},
    core::{Ending, QueueEnd},
    drain::LostJob,
    ended::{EndedJob, JobEnd},
    lease::Lease,
    shell::{Shell, jittered},
};
use crate::{
    handler::{Context, StopReason},
    model::{
        Completed, Execution, Failure, FailureCause, HandlerError, JobError, Output, Rejection, RejectionReason, Rung,
    },
    phase::Phase,
};

/// Bounds of what a caller is told that found no room in time, as of those who are refused at once.
const SOON: Duration = Duration::from_millis(10);
const LATER: Duration = Duration::from_secs(5);
/// When a caller may come again whose job the handler could not begin: its factory is asked next.
const UNAVAILABLE_FOR: Duration = Duration::from_millis(100);

/// What the caller of a job hears.
pub(super) type Told = Result<Completed, JobError>;

/// Turns the end of a run into the job's one outcome, and gives the worker back with it. `None` where the outcome was
/// decided before.
pub(super) fn conclude(
    lease: Lease,
    kind: usize,
    cx: &Context,
    now: Instant,
    result: Result<Output, Raised>,
) -> Option<Told> {
    let shell = &lease.shell().clone();
    let rung = cx.is_cancelled().then_some(Rung::Yielded);
    let started = !matches!(result, Err(Raised::BeforeBegin(_) | Raised::Error(HandlerError::Unavailable { .. })));
    let run = if started { cx.ran(now) } else { Duration::ZERO };
    let outcome = match outcome(result, cx, shell, run) {
        Ok(_) if now >= cx.deadline().end() => Err(FailureCause::RunTimeout { limit: run }),
        other => other,
    };
    let ending = match &outcome {
        Ok(_) => Ending::Completed,
        Err(FailureCause::RunTimeout { .. }) if now < cx.deadline().reply_by() => Ending::Overran,
        Err(cause) => ending(cause),
    };
    if !lease.finish(ending, run, now, outcome.is_err().then_some(cx)) {
        return None;
    }
    let mut ended = EndedJob::of_run(cx, kind, outcome.as_ref().err(), rung, run, now);
    ended.started = started;
    let waterfall = ended.waterfall;
    if started {
        shell.meters.record(ended);
    } else {
        shell.meters.note(ended);
    }
    Some(match outcome {
        Ok(output) => {
            debug!(
                pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), request_id = %cx.request_id(),
                run_ms = milliseconds(run), "job completed",
            );
            Ok(Completed { job: cx.job(), output, waterfall })
        }
        Err(cause) => {
            let execution = if started { Execution::Started } else { Execution::NotStarted };
            Err(fail(shell, cx, cause, execution, run, rung))
        }
    })
}

/// The outcome of a job whose handler did not stop when it was asked. It is the caller's to decide.
pub(super) fn cut_off(attempt: &Attempt, rung: Rung) -> JobError {
    let (shell, run) = (attempt.shell(), attempt.run_time());
    let cause = stopped(&attempt.cx, shell, run);
    let ended = EndedJob::of_run(&attempt.cx, attempt.kind, Some(&cause), Some(rung), run, Instant::now());
    let error = failure(attempt, cause, Some(rung));
    shell.meters.record(ended);
    error
}

/// A failure of a job that runs.
pub(super) fn failure(attempt: &Attempt, cause: FailureCause, rung: Option<Rung>) -> JobError {
    fail(attempt.shell(), &attempt.cx, cause, Execution::Started, attempt.run_time(), rung)
}

/// What a job that ended before it began is answered with.
pub(super) fn conclude_queued(shell: &Shell, cx: &Context, end: QueueEnd) -> JobError {
    let now = Instant::now();
    let waited = now.saturating_duration_since(cx.deadline().arrival());
    note_queued(shell, cx, JobEnd::of_queue_end(end), now);
    let refused = |reason, retry_after| {
        JobError::from(Rejection {
            reason,
            pool: Some(Arc::clone(&shell.name)),
            kind: Arc::clone(cx.kind()),
            retry_after,
        })
    };
    let cause = match end {
        QueueEnd::NoRoom => {
            let expected = shell.read(|core| core.expected_wait(crate::model::Criticality::default()));
            return refused(RejectionReason::NoRoomInTime, Some(jittered(expected.clamp(SOON, LATER))));
        }
        QueueEnd::Refused if shell.phase.get() < Phase::Draining => {
            return refused(RejectionReason::PoolDraining, None);
        }
        QueueEnd::Refused => return refused(RejectionReason::Draining, None),
        QueueEnd::Cancelled => FailureCause::CancelledByOperator,
        QueueEnd::Expired => FailureCause::ExpiredInQueue { waited },
        QueueEnd::Shed { retry_after } => FailureCause::Shed { retry_after },
        QueueEnd::Drained => FailureCause::Drained,
    };
    JobError::from(Failure {
        job: cx.job(),
        kind: Arc::clone(cx.kind()),
        pool: Arc::clone(&shell.name),
        cause,
        execution: Execution::NotStarted,
        queue: waited,
        run: Duration::ZERO,
        rung: None,
    })
}

/// Remembers an accepted job that ended before it began.
pub(super) fn note_queued(shell: &Shell, cx: &Context, end: Option<JobEnd>, now: Instant) {
    if let (Some(end), Some(kind)) = (end, shell.kind_index(cx.kind())) {
        shell.meters.note(EndedJob::of_queued(cx, kind, end, now));
    }
}

fn outcome(result: Result<Output, Raised>, cx: &Context, shell: &Shell, run: Duration) -> Result<Output, FailureCause> {
    match result {
        Ok(Output { bytes, content_type }) => match cx.output().finish(bytes) {
            Ok(bytes) => Ok(Output { bytes, content_type }),
            Err(error) => Err(FailureCause::Handler(error)),
        },
        Err(Raised::Panic(message)) => {
            log_panic(cx, &message);
            Err(FailureCause::Panicked { message })
        }
        Err(Raised::BeforeBegin(cause)) => {
            if let FailureCause::Panicked { message } = &cause {
                log_panic(cx, message);
            }
            Err(cause)
        }
        // Whatever a handler says after it was asked to stop, it stopped because it was asked.
        Err(Raised::Error(_)) if cx.is_cancelled() => Err(stopped(cx, shell, run)),
        Err(Raised::Error(HandlerError::Stopped)) => Err(FailureCause::Cancelled),
        Err(Raised::Error(HandlerError::Unavailable { message })) => {
            Err(FailureCause::HandlerUnavailable { message, retry_after: jittered(UNAVAILABLE_FOR) })
        }
        Err(Raised::Error(error)) => Err(FailureCause::Handler(error)),
    }
}

/// Names a job that a drain stops, before its end is told: whoever sees the end of the drain sees the name.
pub(super) fn note_lost(shell: &Shell, cx: &Context) {
    if cx.cancel_token().reason() == Some(StopReason::Drain) {
        shell.lost.lock().push(LostJob::new(cx));
    }
}

fn stopped(cx: &Context, shell: &Shell, run: Duration) -> FailureCause {
    match cx.cancel_token().reason() {
        Some(StopReason::Deadline) => FailureCause::RunTimeout { limit: run },
        Some(StopReason::Drain) => {
            let kind = shell.kind_index(cx.kind()).map(|kind| &shell.kinds[kind]);
            FailureCause::DrainKilled { idempotent: kind.is_some_and(|kind| kind.get_options().idempotent) }
        }
        Some(StopReason::Operator) => FailureCause::CancelledByOperator,
        Some(StopReason::Caller) | None => FailureCause::Cancelled,
    }
}

fn ending(cause: &FailureCause) -> Ending {
    match cause {
        FailureCause::Handler(_) => Ending::Failed,
        FailureCause::HandlerUnavailable { .. } => Ending::Unmade,
        FailureCause::Panicked { .. } => Ending::Panicked,
        FailureCause::RunTimeout { .. } | FailureCause::ExpiredInQueue { .. } => Ending::Expired,
        FailureCause::Cancelled
        | FailureCause::CancelledByOperator
        | FailureCause::Drained
        | FailureCause::DrainKilled { .. } => Ending::Cancelled,
        FailureCause::Shed { .. } => Ending::Shed,
    }
}

/// How a job ends whose time to run is over: by its deadline, or by a bound that lets it run for less.
pub(super) fn time_out_of(cx: &Context) -> Ending {
    if cx.until() < cx.deadline().reply_by() { Ending::Overran } else { Ending::Expired }
}

/// As a number of JSON.
pub(super) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Logs a panic of a job's handler.
pub(super) fn log_panic(cx: &Context, message: &str) {
    cx.span().in_scope(|| {
        error!(
            pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), request_id = %cx.request_id(),
            panic = message, "a handler panicked; its worker makes a new one",
        );
    });
}

/// A failure of a job that had a worker.
pub(super) fn fail(
    shell: &Shell,
    cx: &Context,
    cause: FailureCause,
    execution: Execution,
    run: Duration,
    rung: Option<Rung>,
) -> JobError {
    // What a handler says is news for an operator; the other ends are in the counters, and may come by the thousand.
    if matches!(cause, FailureCause::Handler(_)) {
        info!(
            pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), request_id = %cx.request_id(),
            run_ms = milliseconds(run), cause = %cause, "job failed",
        );
    } else {
        debug!(
            pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), request_id = %cx.request_id(),
            run_ms = milliseconds(run), cause = %cause, "job did not complete",
        );
    }
    JobError::from(Failure {
        job: cx.job(),
        kind: Arc::clone(cx.kind()),
        pool: Arc::clone(&shell.name),
        cause,
        execution,
        queue: cx.waited().unwrap_or_default(),
        run,
        rung,
    })
}
