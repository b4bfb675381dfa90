//! A running job whose caller waits. If a queued job's caller leaves, `permit.rs` takes the job out of the queue.

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
    stop::{Fall, climb},
};
use crate::{
    handler::{Context, StopReason},
    model::{JobError, Outcome, Rung},
};

/// A running attempt whose caller waits; as a future, the job's outcome. Dropping it means that the caller left: the
/// job is cancelled, and its run goes down the stop ladder in a task of its own.
///
/// Most short jobs end at their first poll. The timer and the registration for cancels are made only for jobs that are
/// still pending.
pub(super) struct Attached {
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
    Foot(BoxFuture<'static, JobResult>),
    /// Nothing: the worker's thread has decided the outcome, which is on its way.
    Decided,
}

impl Attached {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self { attempt: Some(attempt), then: Then::Nothing }
    }

    /// The job was asked to stop by an operator or a drain. The caller learns the result, but no later than the
    /// deadline.
    async fn stop(mut self) -> JobResult {
        let attempt = self.attempt.as_mut().expect("attached until it ends");
        let cx = attempt.cx.clone();
        let fall = tokio::select! {
            biased;
            fall = climb(&mut *attempt) => Some(fall),
            () = sleep_until(cx.deadline().reply_by()) => None,
        };
        let outcome = if fall.is_some() { stopped(&cx, attempt.inner()) } else { timed_out(&cx) };
        let ended = match fall {
            Some(Fall::Yielded(ended)) => ended,
            _ if !attempt.decide(outcome) => attempt.await,
            Some(Fall::CutOff(rung)) => Some(Err(cut_off(attempt, outcome, rung))),
            None => {
                return Err(detach(
                    self.attempt.take().expect("attached until it ends"),
                    StopReason::Deadline,
                    outcome,
                ));
            }
        };
        self.attempt = None;
        ended.expect(OURS)
    }
}

/// Only the task of an attached job decides its outcome, or its worker's thread, which reports it.
const OURS: &str = "the outcome of an attached job comes to its task";

/// Records the outcome of a job whose handler did not stop when it was asked.
fn cut_off(attempt: &Attempt, outcome: Outcome, rung: Rung) -> JobError {
    let failure = failure(attempt.inner(), &attempt.cx, outcome, attempt.run_time(), Some(rung));
    let ended = EndedJob::failed(&attempt.cx, attempt.kind, &failure, Instant::now());
    attempt.inner().meters.record(ended);
    failure.into()
}

impl Future for Attached {
    type Output = JobResult;

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Self::Output> {
        loop {
            if let Then::Foot(foot) = &mut self.then {
                return foot.poll_unpin(task);
            }
            let attempt = self.attempt.as_mut().expect("attached until it ends");
            if let Poll::Ready(ended) = attempt.poll_unpin(task) {
                self.attempt = None;
                return Poll::Ready(ended.expect(OURS));
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
                    self.then = Then::Foot(rest.stop().boxed());
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

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take_if(|attempt| attempt.decide(Outcome::Cancelled)) {
            drop(detach(attempt, StopReason::Caller, Outcome::Cancelled));
        }
    }
}

/// Records the outcome, and moves the handler down the stop ladder in a task of its own, so that its caller is answered
/// in time.
fn detach(mut attempt: Attempt, reason: StopReason, outcome: Outcome) -> JobError {
    let inner = attempt.inner().clone();
    let failure = failure(&inner, &attempt.cx, outcome, attempt.run_time(), Some(Rung::Asked));
    let mark = inner.meters.record(EndedJob::failed(&attempt.cx, attempt.kind, &failure, Instant::now()));
    attempt.cx.cancel_token().cancel(reason);
    inner.tasks.spawn(async move {
        // The end of the ladder, or dropping the attempt, gives the worker back.
        let fall = climb(&mut attempt).await;
        let rung = match &fall {
            Fall::Yielded(_) => Rung::Yielded,
            Fall::CutOff(rung) => *rung,
        };
        if let Some(mark) = mark {
            attempt.inner().meters.climbed(mark, rung, attempt.cx.program_end());
        }
    });
    failure.into()
}
