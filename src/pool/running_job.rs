//! A running job whose caller waits, and the stop ladder: ask, wait the grace, force. If a queued job's caller leaves,
//! `queued_job.rs` takes the job out of the queue.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context as TaskContext, Poll, ready},
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    attempt::Attempt,
    drain::forced,
    ended_jobs::EndedJob,
    outcome::{JobResult, failure, stopped, timed_out},
};
use crate::{
    handler::{Context, StopReason},
    incidents::{self, Incident},
    model::{JobError, Outcome, Rung},
};

/// A running attempt whose caller waits. As a future, it returns the job's outcome. Dropping it means that the caller
/// left: the job is cancelled, and a separate task takes its run down the stop ladder.
///
/// Most short jobs end at their first poll. The timer and the registration for cancels are made only for jobs that are
/// still pending.
pub(super) struct RunningJob {
    attempt: Option<Attempt>,
    then: Then,
}

/// What a pending job waits for, besides its own end.
enum Then {
    /// It was not polled yet.
    Nothing,
    /// A reason to stop.
    Stop(BoxFuture<'static, StopReason>),
    /// The end of the stop ladder.
    Stopping(BoxFuture<'static, JobResult>),
}

impl RunningJob {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self { attempt: Some(attempt), then: Then::Nothing }
    }

    /// The job must stop. The caller learns the result, but no later than the deadline.
    async fn stop(mut self, reason: StopReason) -> JobResult {
        let attempt = self.attempt.as_mut().expect("kept until it ends");
        let cx = attempt.cx.clone();
        let end = match reason {
            StopReason::Deadline => None,
            StopReason::Caller | StopReason::Drain | StopReason::Operator => tokio::select! {
                biased;
                end = wait_for_stop(&mut *attempt) => Some(end),
                () = sleep_until(cx.deadline().reply_by()) => None,
            },
        };
        let outcome = if end.is_some() { stopped(&cx, attempt.inner()) } else { timed_out(&cx) };
        let ended = match end {
            Some(Ok(ended)) => ended,
            // The worker's thread has decided the outcome, and is reporting it.
            _ if !attempt.decide(outcome) => attempt.await,
            Some(Err(rung)) => Some(Err(record(attempt, outcome, rung))),
            None => {
                return Err(detach(self.attempt.take().expect("kept until it ends"), StopReason::Deadline, outcome));
            }
        };
        self.attempt = None;
        ended.expect(REPORTED)
    }
}

/// The task of an attached job, or the worker's thread, decides the outcome. The thread reports it to the task.
const REPORTED: &str = "the outcome of an attached job comes to its task";

/// Records the outcome of a job that is stopped.
fn record(attempt: &Attempt, outcome: Outcome, rung: Rung) -> JobError {
    let failure = failure(&attempt.cx, outcome, attempt.run_time(), Some(rung));
    attempt.inner().meters.record(EndedJob::failed(&attempt.cx, attempt.kind, &failure, Instant::now()));
    failure.into()
}

impl Future for RunningJob {
    type Output = JobResult;

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Self::Output> {
        loop {
            if let Then::Stopping(stopping) = &mut self.then {
                return stopping.poll_unpin(task);
            }
            let attempt = self.attempt.as_mut().expect("kept until it ends");
            if let Poll::Ready(ended) = attempt.poll_unpin(task) {
                self.attempt = None;
                return Poll::Ready(ended.expect(REPORTED));
            }
            let this = &mut *self;
            if let (Then::Nothing, Some(attempt)) = (&this.then, &this.attempt) {
                this.then = Then::Stop(reason_to_stop(attempt.cx.clone()).boxed());
            }
            let Then::Stop(reason) = &mut this.then else { return Poll::Pending };
            let reason = ready!(reason.poll_unpin(task));
            let rest = Self { attempt: self.attempt.take(), then: Then::Nothing };
            self.then = Then::Stopping(rest.stop(reason).boxed());
        }
    }
}

async fn reason_to_stop(cx: Context) -> StopReason {
    let (mut end, mut cancelled) = (pin!(sleep_until(cx.until())), pin!(cx.cancelled()));
    poll_fn(|task| {
        // A handler that waited for its process begins its run in the poll before this one, and has another end then.
        let until = cx.until();
        if end.deadline() != until {
            end.as_mut().reset(until);
        }
        if end.as_mut().poll(task).is_ready() {
            return Poll::Ready(StopReason::Deadline);
        }
        cancelled.as_mut().poll(task)
    })
    .await
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take_if(|attempt| attempt.decide(Outcome::Cancelled)) {
            drop(detach(attempt, StopReason::Caller, Outcome::Cancelled));
        }
    }
}

/// Records the outcome, and stops the handler in a separate task, so that the caller gets its answer in time.
fn detach(mut attempt: Attempt, reason: StopReason, outcome: Outcome) -> JobError {
    let error = record(&attempt, outcome, Rung::Asked);
    attempt.cx.stop(reason);
    let inner = attempt.inner().clone();
    inner.tasks.spawn(async move {
        // The end of the ladder, or dropping the attempt, gives the worker back.
        let rung = wait_for_stop(&mut attempt).await.err().unwrap_or(Rung::Yielded);
        attempt.inner().meters.stop_ended(attempt.cx.job(), rung, attempt.cx.program_end());
    });
    error
}

/// Waits on the stop ladder, from the request to stop to the end of the grace. Returns the end of an attempt that yields
/// within the grace; it is `None` if the outcome was decided before. Cancel safe, but a second call restarts the grace.
///
/// # Errors
/// The rung where the ladder ended. The attempt must be dropped: that cuts off an asynchronous handler, and leaves a
/// blocking one to its thread.
async fn wait_for_stop(attempt: &mut Attempt) -> Result<Option<JobResult>, Rung> {
    let inner = attempt.inner().clone();
    let grace = inner.grace(attempt.kind);
    tokio::select! {
        biased;
        ended = &mut *attempt => return Ok(ended),
        () = sleep(grace) => {}
        () = forced(&inner) => {}
    }
    let (cx, is_blocking) = (&attempt.cx, attempt.is_blocking());
    let is_replaced = is_blocking && inner.stick(attempt.key());
    cx.span().in_scope(|| {
        incidents::log(cx.pool(), "STOP_IGNORED", || Incident {
            what: "handlers ignored the request to stop",
            kind: cx.kind().to_string(),
            job: cx.job().to_string(),
            detached_job: cx.detached_job().unwrap_or_default().to_owned(),
            request_id: cx.request_id().to_string(),
            tenant: cx.tenant().map(|tenant| tenant.to_string()).unwrap_or_default(),
            cause: match (is_blocking, is_replaced) {
                (false, _) => format!("it was forced after {} ms", grace.as_millis()),
                (true, true) => "its thread was replaced".to_owned(),
                (true, false) => "its thread is stuck, and was not replaced".to_owned(),
            },
            ..Incident::default()
        });
    });
    Err(if is_blocking { Rung::Stuck } else { Rung::Forced })
}
