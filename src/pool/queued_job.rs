//! A queued job. Dropping it, for example when the caller leaves, takes the job out of the queue.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};
use tracing::Span;

use super::{
    blocking::{Done, Reports},
    inner::Shared,
    lease::{Lease, Signal, StartOnThread, Waiter},
    outcome::{record, refuse_waiting},
    run::run_on_thread,
    ticket::{State, Ticket},
    trace::queue_span,
};
use crate::{
    handler::Context,
    model::{Failure, Job, JobError, JobResult, Outcome, RecordedEnd, RejectionReason},
    scheduler::{JobKey, Withdrawal, Withdrawn},
};

/// A queued job, and its capacity. Dropping it gives the capacity back at once.
#[must_use = "dropping it takes the job out of the queue"]
pub(super) struct QueuedJob {
    inner: Shared,
    key: JobKey,
    signal: oneshot::Receiver<Signal>,
    blocking: Option<Arc<BlockingJob>>,
    /// The job, unless `blocking` has it.
    job: Option<Box<Job>>,
    /// The outcome of a job that `blocking` starts.
    ended: Option<oneshot::Receiver<JobResult>>,
    start_by: Instant,
    cx: Context,
}

/// A queued job that its worker's own thread starts.
struct BlockingJob {
    /// `None` before the job is queued, and after the job was taken out.
    queued: Mutex<Option<(Box<Job>, Done)>>,
    cx: Context,
}

impl StartOnThread for BlockingJob {
    fn start(&self, mut lease: Lease) -> Result<Option<Reports>, Lease> {
        let (cx, now) = (&self.cx, Instant::now());
        if cx.is_cancelled() || now >= cx.deadline().reply_by() {
            return Err(lease);
        }
        let Ok(thread) = lease.thread() else { return Err(lease) };
        let Some((job, done)) = self.queued.lock().take() else { return Err(lease) };
        cx.begin(lease.worker(), lease.since(), now, lease.inner().run_timeout(cx.kind_id(), &job));
        let reports = done.reports().cloned();
        run_on_thread(&thread, lease, job, cx.clone(), done);
        Ok(reports)
    }
}

impl QueuedJob {
    /// A job without its content, and the scheduler's way to it.
    pub(super) fn new(inner: Shared, key: JobKey, start_by: Instant, cx: Context, on_thread: bool) -> (Waiter, Self) {
        let (sender, signal) = oneshot::channel();
        let blocking = on_thread.then(|| Arc::new(BlockingJob { queued: Mutex::new(None), cx: cx.clone() }));
        let waiter = Waiter { signal: sender, blocking: blocking.clone().map(|blocking| blocking as _) };
        (waiter, Self { inner, key, signal, blocking, job: None, ended: None, start_by, cx })
    }

    /// Waits for a worker until it is too late to start. Returns the next state of the job, and its worker. Dropping
    /// the future takes the job out of the queue, even before its first poll.
    pub(super) fn next(
        mut self,
        job: Box<Job>,
    ) -> impl Future<Output = Result<(State, Lease), JobError>> + Send + use<> {
        let span = queue_span(&self.cx);
        match &self.blocking {
            Some(blocking) => {
                let (done, ended) = Done::new(&self.inner);
                *blocking.queued.lock() = Some((job, done));
                self.ended = Some(ended);
            }
            None => self.job = Some(job),
        }
        self.wait(span)
    }

    /// `span` is the span of the wait in the queue.
    async fn wait(mut self, span: Span) -> Result<(State, Lease), JobError> {
        self.inner.keep_time();
        let signal = tokio::select! {
            biased;
            signal = &mut self.signal => signal,
            () = tokio::time::sleep_until(self.start_by) => {
                match self.inner.withdraw(self.key, Withdrawal::Expired) {
                    Withdrawn::Queued => Ok(Signal::Ended(Outcome::ExpiredInQueue, None)),
                    Withdrawn::Waiting => Ok(Signal::Refused(RejectionReason::NoRoomInTime)),
                    // The scheduler has already sent a signal.
                    Withdrawn::Gone => (&mut self.signal).await,
                }
            }
        };
        drop(span);
        let (job, ended) = (self.job.take(), self.ended.take());
        match signal.expect("the scheduler signals every waiter once") {
            Signal::Start(lease) => {
                let job = job.or_else(|| self.blocking.as_ref()?.take());
                Ok((State::Granted(job.expect("only a worker takes the job away")), lease))
            }
            Signal::Began => Ok((State::Blocking(ended.expect("it is a blocking job")), self.naming())),
            Signal::Ended(outcome, retry_after) => Err(self.ended(outcome, retry_after)),
            Signal::Refused(reason) => Err(refuse_waiting(&self.inner, &self.cx, reason)),
        }
    }

    /// The job ended before it had a worker.
    fn ended(&self, outcome: Outcome, retry_after: Option<Duration>) -> JobError {
        let mut failure = Failure::of(&self.cx, outcome);
        failure.retry_after = retry_after;
        record(&self.inner, &self.cx, failure)
    }

    fn naming(&self) -> Lease {
        Lease::naming(self.inner.clone(), self.key)
    }
}

impl BlockingJob {
    fn take(&self) -> Option<Box<Job>> {
        self.queued.lock().take().map(|(job, _)| job)
    }
}

impl Drop for QueuedJob {
    fn drop(&mut self) {
        // A lease that was sent meanwhile is dropped with the channel, which gives its worker back.
        let (job, ended) = (self.job.take(), self.ended.take());
        if job.is_none() && ended.is_none() {
            return;
        }
        let withdrawn = self.inner.withdraw(self.key, Withdrawal::Cancelled);
        if withdrawn == Withdrawn::Gone
            && let (Some(blocking), Some(ended)) = (&self.blocking, ended)
            && blocking.take().is_none()
        {
            // The job runs, and its caller has left.
            return drop(Ticket::new(State::Blocking(ended), self.naming(), self.cx.clone()));
        }
        let outcome = match (withdrawn, self.signal.try_recv()) {
            (Withdrawn::Waiting, _) | (Withdrawn::Gone, Ok(Signal::Refused(_))) => {
                return self.inner.recorder.record(&self.cx, Instant::now(), RecordedEnd::Cut);
            }
            (Withdrawn::Gone, Ok(Signal::Ended(outcome, _))) => outcome,
            (Withdrawn::Queued | Withdrawn::Gone, _) => Outcome::Cancelled,
        };
        self.ended(outcome, None);
    }
}
