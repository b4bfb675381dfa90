use tokio::time::sleep_until;

use super::{
    attempt::{Attempt, Ended, Raised},
    conclude::{conclude, cut_off, failure, log_panic, note_lost},
    core::Ending,
    stop::{Fall, climb},
};
use crate::{
    handler::StopReason,
    model::{Completed, FailureCause, JobError, Rung},
};

/// A running attempt whose caller waits for it. Dropping it means that the caller left: the job is cancelled, and what
/// still runs goes down the stop ladder in a task of its own.
pub(super) struct Attached(Option<Attempt>);

impl Attached {
    pub(super) fn new(attempt: Attempt) -> Self {
        Self(Some(attempt))
    }

    /// Runs to the end, and no longer than the job may.
    pub(super) async fn finish(mut self) -> Result<Completed, JobError> {
        let attempt = self.0.as_mut().expect("attached until it ends");
        let cx = attempt.cx.clone();
        let reason = tokio::select! {
            biased;
            ended = &mut *attempt => {
                self.0 = None;
                let rung = cx.is_cancelled().then_some(Rung::Yielded);
                return conclude(ended, rung);
            }
            () = sleep_until(cx.until()) => StopReason::Deadline,
            reason = cx.cancel_token().cancelled() => reason,
        };
        match reason {
            StopReason::Deadline => Err(self.time_out()),
            StopReason::Caller | StopReason::Drain => self.stop().await,
        }
    }

    /// Somebody else asked the job to stop: the caller hears how that went, but no later than the deadline.
    async fn stop(mut self) -> Result<Completed, JobError> {
        let attempt = self.0.as_mut().expect("attached until it ends");
        let cx = attempt.cx.clone();
        let fall = tokio::select! {
            biased;
            fall = climb(&mut *attempt) => fall,
            () = sleep_until(cx.deadline().reply_by()) => return Err(self.time_out()),
        };
        let attempt = self.0.take().expect("attached until it ends");
        match fall {
            Fall::Yielded(ended) => conclude(ended, Some(Rung::Yielded)),
            Fall::CutOff(rung) => Err(cut_off(attempt, rung)),
        }
    }

    /// The caller is answered on time; the handler gets its grace without it.
    fn time_out(&mut self) -> JobError {
        let attempt = self.0.take().expect("attached until it ends");
        let run = attempt.run_time();
        let error = failure(&attempt, FailureCause::RunTimeout { limit: run }, Some(Rung::Asked));
        detach(attempt, StopReason::Deadline, Ending::Expired);
        error
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(attempt) = self.0.take() {
            detach(attempt, StopReason::Caller, Ending::Cancelled);
        }
    }
}

/// Decides the outcome and lets the rest run down the stop ladder in a task of its own.
fn detach(mut attempt: Attempt, reason: StopReason, ending: Ending) {
    let shell = attempt.shell.clone();
    let run = attempt.run_time();
    note_lost(&shell, &attempt.cx);
    shell.end(attempt.key, ending, run);
    shell.meters.record_run(attempt.kind, run);
    attempt.cx.cancel_token().cancel(reason);
    shell.tasks.spawn(async move {
        // The fall's end, or the attempt itself, gives the worker back when it is dropped.
        if let Fall::Yielded(Ended { result: Err(Raised::Panic(message)), .. }) = climb(&mut attempt).await {
            log_panic(&attempt.cx, &message);
        }
    });
}
