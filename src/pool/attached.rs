use std::{
    pin::Pin,
    task::{Context as TaskContext, Poll},
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::{Instant, sleep_until};

use super::{
    attempt::Attempt,
    conclude::{Told, failure, stopped, timed_out},
    ended::EndedJob,
    stop::{Fall, climb},
};
use crate::{
    handler::{Context, StopReason},
    model::{JobError, Outcome, Rung},
};

/// A running attempt whose caller waits for it; as a future, the job's outcome. Dropping it means that the caller left:
/// the job is cancelled, and what still runs goes down the stop ladder in a task of its own.
///
/// Most short jobs end at their first poll. What others need besides, a timer and a place on the list of those who
/// wait for a cancel, is made once a job is pending.
pub(super) struct Attached {
    attempt: Option<Attempt>,
    then: Then,
}

/// What a pending job waits for besides its own end.
enum Then {
    /// It was not polled yet.
    Nothing,
    /// A reason to stop.
    Stop(BoxFuture<'static, StopReason>),
    /// The foot of the stop ladder.
    Foot(BoxFuture<'static, Told>),
    /// Nothing: the worker's thread has decided the outcome, which is on its way.
    Decided,
}

impl Attached {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self { attempt: Some(attempt), then: Then::Nothing }
    }

    /// Somebody else asked the job to stop: the caller hears how that went, but no later than the deadline.
    async fn stop(mut self) -> Told {
        let attempt = self.attempt.as_mut().expect("attached until it ends");
        let cx = attempt.cx.clone();
        let fall = tokio::select! {
            biased;
            fall = climb(&mut *attempt) => Some(fall),
            () = sleep_until(cx.deadline().reply_by()) => None,
        };
        let outcome = if fall.is_some() { stopped(&cx, attempt.shell()) } else { timed_out(&cx) };
        let told = match fall {
            Some(Fall::Yielded(told)) => told,
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
        told.expect(OURS)
    }
}

/// Nobody but its task decides for an attached job, or its worker's thread, which tells it.
const OURS: &str = "the outcome of an attached job comes to its task";

/// Notes the outcome of a job whose handler did not stop when it was asked.
fn cut_off(attempt: &Attempt, outcome: Outcome, rung: Rung) -> JobError {
    let failure = failure(attempt.shell(), &attempt.cx, outcome, attempt.run_time(), Some(rung));
    let ended = EndedJob::failed(&attempt.cx, attempt.kind, &failure, Instant::now());
    attempt.shell().meters.record(ended);
    failure.into()
}

impl Future for Attached {
    type Output = Told;

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Self::Output> {
        loop {
            if let Then::Foot(foot) = &mut self.then {
                return foot.poll_unpin(task);
            }
            let attempt = self.attempt.as_mut().expect("attached until it ends");
            if let Poll::Ready(told) = attempt.poll_unpin(task) {
                self.attempt = None;
                return Poll::Ready(told.expect(OURS));
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

/// Notes the outcome, and lets the handler go down the stop ladder in a task of its own: its caller is answered on time.
fn detach(mut attempt: Attempt, reason: StopReason, outcome: Outcome) -> JobError {
    let shell = attempt.shell().clone();
    let failure = failure(&shell, &attempt.cx, outcome, attempt.run_time(), Some(Rung::Asked));
    let mark = shell.meters.record(EndedJob::failed(&attempt.cx, attempt.kind, &failure, Instant::now()));
    attempt.cx.cancel_token().cancel(reason);
    shell.tasks.spawn(async move {
        // The fall's end, or the attempt itself, gives the worker back when it is dropped.
        let fall = climb(&mut attempt).await;
        let rung = match &fall {
            Fall::Yielded(_) => Rung::Yielded,
            Fall::CutOff(rung) => *rung,
        };
        if let Some(mark) = mark {
            attempt.shell().meters.climbed(mark, rung, attempt.cx.program_end());
        }
    });
    failure.into()
}
