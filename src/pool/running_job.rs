//! A running job whose caller waits. If a queued job's caller leaves, `queued_job.rs` takes the job out of the queue.

use std::{
    pin::Pin,
    task::{Context as TaskContext, Poll},
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::{Instant, sleep_until};

use super::{
    attempt::Attempt,
    ended_jobs::EndedJob,
    outcome::{JobResult, failure, stopped, timed_out},
    stop::{LadderEnd, wait_for_stop},
};
use crate::{
    handler::{Context, StopReason},
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
    /// Nothing: the worker's thread has decided the outcome and is reporting it.
    Decided,
}

impl RunningJob {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self { attempt: Some(attempt), then: Then::Nothing }
    }

    /// The job was asked to stop by an operator or a drain. The caller learns the result, but no later than the
    /// deadline.
    async fn stop(mut self) -> JobResult {
        let attempt = self.attempt.as_mut().expect("kept until it ends");
        let cx = attempt.cx.clone();
        let end = tokio::select! {
            biased;
            end = wait_for_stop(&mut *attempt) => Some(end),
            () = sleep_until(cx.deadline().reply_by()) => None,
        };
        let outcome = if end.is_some() { stopped(&cx, attempt.inner()) } else { timed_out(&cx) };
        let ended = match end {
            Some(LadderEnd::Yielded(ended)) => ended,
            _ if !attempt.decide(outcome) => attempt.await,
            Some(LadderEnd::CutOff(rung)) => Some(Err(cut_off(attempt, outcome, rung))),
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

/// Records the outcome of a job whose handler ignored the request to stop.
fn cut_off(attempt: &Attempt, outcome: Outcome, rung: Rung) -> JobError {
    let failure = failure(attempt.inner(), &attempt.cx, outcome, attempt.run_time(), Some(rung));
    let ended = EndedJob::failed(&attempt.cx, attempt.kind, &failure, Instant::now());
    attempt.inner().meters.record(ended);
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
            match reason.poll_unpin(task) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(StopReason::Deadline) => match this.attempt.take_if(|it| it.decide(timed_out(&it.cx))) {
                    Some(attempt) => {
                        let outcome = timed_out(&attempt.cx);
                        return Poll::Ready(Err(detach(attempt, StopReason::Deadline, outcome)));
                    }
                    None => this.then = Then::Decided,
                },
                Poll::Ready(StopReason::Caller | StopReason::Drain | StopReason::Operator) => {
                    let rest = Self { attempt: self.attempt.take(), then: Then::Nothing };
                    self.then = Then::Stopping(rest.stop().boxed());
                }
            }
        }
    }
}

async fn reason_to_stop(cx: Context) -> StopReason {
    tokio::select! {
        biased;
        () = sleep_until(cx.until()) => StopReason::Deadline,
        reason = cx.cancelled() => reason,
    }
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
    let inner = attempt.inner().clone();
    let failure = failure(&inner, &attempt.cx, outcome, attempt.run_time(), Some(Rung::Asked));
    let mark = inner.meters.record(EndedJob::failed(&attempt.cx, attempt.kind, &failure, Instant::now()));
    attempt.cx.stop(reason);
    inner.tasks.spawn(async move {
        // The end of the ladder, or dropping the attempt, gives the worker back.
        let end = wait_for_stop(&mut attempt).await;
        let rung = match &end {
            LadderEnd::Yielded(_) => Rung::Yielded,
            LadderEnd::CutOff(rung) => *rung,
        };
        if let Some(mark) = mark {
            attempt.inner().meters.stop_ended(mark, rung, attempt.cx.program_end());
        }
    });
    failure.into()
}
