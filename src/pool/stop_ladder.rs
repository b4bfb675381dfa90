//! The stop ladder of a running job: ask, wait the grace, force. A job on a thread of its own that ignores this is
//! *stuck*; `src/scheduler/workers.rs` bounds how many workers replace stuck ones.

use std::{future::poll_fn, pin::pin, task::Poll};

use tokio::time::{sleep, sleep_until};

use super::{
    inner::PoolInner,
    outcome::{record, stopped, timed_out},
    ticket::{REPORTED, State, Ticket},
};
use crate::{
    handler::{Context, StopReason},
    incidents::{self, Incident},
    model::{Failure, JobError, JobResult, Outcome, Rung},
    phase::Phase,
};

/// Returns when the job of `cx` must stop.
pub(super) async fn reason(cx: Context) -> StopReason {
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

impl Ticket {
    /// The job must stop. The caller learns the result, but no later than the deadline.
    pub(super) async fn stop(mut self, reason: StopReason) -> JobResult {
        let reply_by = self.cx.deadline().reply_by();
        let end = match reason {
            StopReason::Deadline => None,
            StopReason::Caller | StopReason::Drain | StopReason::Operator => tokio::select! {
                biased;
                end = self.wait_for_stop() => Some(end),
                () = sleep_until(reply_by) => None,
            },
        };
        let outcome = if end.is_some() { stopped(&self.cx, self.lease.inner()) } else { timed_out(&self.cx) };
        let ended = match end {
            Some(Ok(ended)) => ended,
            // The worker's thread has decided the outcome, and is reporting it.
            _ if !self.decide(outcome) => poll_fn(|task| self.poll_run(task)).await,
            Some(Err(rung)) => Some(Err(self.record(outcome, rung))),
            None => return Err(self.detach(StopReason::Deadline, outcome)),
        };
        self.state = State::Done;
        ended.expect(REPORTED)
    }

    /// Decides the outcome of a run that has not ended. Returns false if the outcome was decided before.
    pub(super) fn decide(&self, outcome: Outcome) -> bool {
        self.lease.inner().end(self.lease.key(), outcome, &self.cx)
    }

    /// Records the outcome, and stops the handler in a separate task, so that the caller gets its answer in time.
    pub(super) fn detach(mut self, reason: StopReason, outcome: Outcome) -> JobError {
        let error = self.record(outcome, Rung::Asked);
        self.cx.stop(reason);
        let inner = self.lease.inner().clone();
        inner.tasks.spawn(async move {
            // The end of the ladder, or dropping the ticket, gives the worker back.
            let rung = self.wait_for_stop().await.err().unwrap_or(Rung::Yielded);
            self.lease.inner().meters.stop_ended(self.cx.job(), rung, self.cx.program_end());
        });
        error
    }

    fn record(&self, outcome: Outcome, rung: Rung) -> JobError {
        let mut failure = Failure::of(&self.cx, outcome);
        failure.rung = Some(rung);
        record(self.lease.inner(), &self.cx, failure)
    }

    /// Waits on the stop ladder, from the request to stop to the end of the grace. Returns the end of a run that yields
    /// within the grace; it is `None` if the outcome was decided before. Cancel safe, but a second call restarts the
    /// grace.
    ///
    /// # Errors
    /// The rung where the ladder ended. The ticket must be dropped: that cuts off an asynchronous handler, and leaves a
    /// blocking one to its thread.
    async fn wait_for_stop(&mut self) -> Result<Option<JobResult>, Rung> {
        let inner = self.lease.inner().clone();
        let kind = self.cx.kind_id();
        let grace = inner.grace(kind);
        tokio::select! {
            biased;
            ended = poll_fn(|task| self.poll_run(task)) => return Ok(ended),
            () = sleep(grace) => {}
            () = forced(&inner) => {}
        }
        let (cx, is_blocking) = (&self.cx, inner.kind(kind).is_blocking());
        let is_replaced = is_blocking && inner.stick(self.lease.key());
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
}

/// Returns when the stop of the whole pool forces its jobs.
pub(super) async fn forced(inner: &PoolInner) {
    inner.phase.reached(Phase::Stopping).await;
    match inner.force_by.get() {
        Some(at) => sleep_until(*at).await,
        None => std::future::pending().await,
    }
}
