use std::{
    pin::Pin,
    task::{Context as TaskContext, Poll},
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::{Instant, sleep_until};

use super::{
    attempt::{Attempt, Raised},
    conclude::{conclude, cut_off, failure, log_panic, note_lost, time_out_of},
    core::Ending,
    ended::EndedJob,
    stop::{Fall, climb},
};
use crate::{
    handler::{Context, StopReason},
    model::{Completed, FailureCause, JobError, Rung},
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
    Foot(BoxFuture<'static, Result<Completed, JobError>>),
}

impl Attached {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self { attempt: Some(attempt), then: Then::Nothing }
    }

    /// Somebody else asked the job to stop: the caller hears how that went, but no later than the deadline.
    async fn stop(mut self) -> Result<Completed, JobError> {
        let attempt = self.attempt.as_mut().expect("attached until it ends");
        let cx = attempt.cx.clone();
        let fall = tokio::select! {
            biased;
            fall = climb(&mut *attempt) => fall,
            () = sleep_until(cx.deadline().reply_by()) => return Err(self.time_out()),
        };
        let attempt = self.attempt.take().expect("attached until it ends");
        match fall {
            Fall::Yielded(result) => conclude(attempt, result, Some(Rung::Yielded)),
            Fall::CutOff(rung) => Err(cut_off(&attempt, rung)),
        }
    }

    /// The caller is answered on time; the handler gets its grace without it.
    fn time_out(&mut self) -> JobError {
        let attempt = self.attempt.take().expect("attached until it ends");
        let run = attempt.run_time();
        let cause = FailureCause::RunTimeout { limit: run };
        let error = failure(&attempt, cause.clone(), Some(Rung::Asked));
        let ending = time_out_of(&attempt.cx);
        detach(attempt, StopReason::Deadline, &cause, ending);
        error
    }
}

impl Future for Attached {
    type Output = Result<Completed, JobError>;

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Self::Output> {
        loop {
            if let Then::Foot(foot) = &mut self.then {
                return foot.poll_unpin(task);
            }
            let attempt = self.attempt.as_mut().expect("attached until it ends");
            if let Poll::Ready(result) = attempt.poll_unpin(task) {
                let attempt = self.attempt.take().expect("it was there just now");
                let rung = attempt.cx.is_cancelled().then_some(Rung::Yielded);
                return Poll::Ready(conclude(attempt, result, rung));
            }
            let this = &mut *self;
            if let (Then::Nothing, Some(attempt)) = (&this.then, &this.attempt) {
                this.then = Then::Stop(reason_to_stop(attempt.cx.clone()).boxed());
            }
            let Then::Stop(reason) = &mut this.then else { return Poll::Pending };
            match reason.poll_unpin(task) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(StopReason::Deadline) => return Poll::Ready(Err(self.time_out())),
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
        if let Some(attempt) = self.attempt.take() {
            detach(attempt, StopReason::Caller, &FailureCause::Cancelled, Ending::Cancelled);
        }
    }
}

/// Decides the outcome and lets the rest run down the stop ladder in a task of its own.
fn detach(mut attempt: Attempt, reason: StopReason, cause: &FailureCause, ending: Ending) {
    let shell = attempt.shell().clone();
    let run = attempt.run_time();
    note_lost(&shell, &attempt.cx);
    shell.end(attempt.key(), ending, run);
    let ended = EndedJob::of_run(&attempt.cx, attempt.kind, Some(cause), Some(Rung::Asked), run, Instant::now());
    let mark = shell.meters.record(ended);
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
        if let Fall::Yielded(Err(Raised::Panic(message))) = fall {
            log_panic(&attempt.cx, &message);
        }
    });
}
