//! A queued job. Dropping it, for example when the caller leaves, takes the job out of the queue. `running_job.rs`
//! handles running jobs.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};
use tracing::Span;

use super::{
    attempt::Attempt,
    blocking::{Done, Reports, Work},
    lease::Lease,
    outcome::{JobResult, conclude_queued, refuse_waiting},
    running_job::RunningJob,
    shard::Shared,
    ticket::{Granted, run_timeout},
    trace::queue_span,
};
use crate::{
    handler::Context,
    model::{Job, JobError, Outcome, RejectionReason},
    scheduler::{JobKey, Withdrawal, Withdrawn},
};

/// The scheduler's signal to a queued job.
pub(super) enum Signal {
    Start(Lease),
    /// The job runs on its worker's own thread.
    Began,
    /// The job ended. Includes the retry time.
    Ended(Outcome, Option<Duration>),
    /// The job never got capacity.
    Refused(RejectionReason),
}

/// The scheduler's way to reach a queued job.
pub(super) struct Waiter {
    pub(super) signal: oneshot::Sender<Signal>,
    /// For a job of a blocking kind.
    pub(super) blocking: Option<Arc<BlockingJob>>,
}

/// A queued job of a blocking kind. The worker's thread starts it directly, so that no serving thread is involved
/// between two jobs of a worker.
pub(super) struct BlockingJob {
    kind: usize,
    /// `None` before the job is queued, and after the job was taken out.
    queued: Mutex<Option<(Box<Job>, Done)>>,
    cx: Context,
}

/// A queued job, and its capacity. Dropping it gives the capacity back at once.
#[must_use = "dropping it takes the job out of the queue"]
pub(super) struct QueuedJob {
    inner: Shared,
    key: JobKey,
    kind: usize,
    place: Claim,
    work: QueuedWork,
    /// Span of the wait in the queue; dropping it ends the wait.
    span: Span,
    start_by: Instant,
    pub(super) cx: Context,
}

/// The job's side of its [`Waiter`].
pub(super) struct Claim {
    signal: oneshot::Receiver<Signal>,
    blocking: Option<Arc<BlockingJob>>,
}

/// A job that is not queued any more.
pub(super) enum Begun {
    /// It has a worker.
    Granted(Granted),
    /// Its worker's own thread runs it.
    Running(RunningJob),
}

/// The job of a [`QueuedJob`].
enum QueuedWork {
    Job(Box<Job>),
    BlockingJob(Arc<BlockingJob>, oneshot::Receiver<JobResult>),
    /// The job was passed on.
    Gone,
}

impl Waiter {
    /// The two sides of a job's wait.
    pub(super) fn new(kind: usize, is_blocking: bool, cx: &Context) -> (Self, Claim) {
        let (sender, signal) = oneshot::channel();
        let blocking = is_blocking.then(|| Arc::new(BlockingJob { kind, queued: Mutex::new(None), cx: cx.clone() }));
        (Self { signal: sender, blocking: blocking.clone() }, Claim { signal, blocking })
    }
}

impl BlockingJob {
    /// Starts the job on the thread of its worker. Returns the way to the task that waits.
    ///
    /// # Errors
    /// Returns the worker if the job's own task must handle it: the job is not queued yet, too late, stopped, or gone.
    pub(super) fn begin(&self, mut lease: Lease) -> Result<Option<Reports>, Lease> {
        let (cx, now) = (&self.cx, Instant::now());
        if cx.is_cancelled() || now >= cx.deadline().reply_by() {
            return Err(lease);
        }
        let Ok(thread) = lease.thread() else { return Err(lease) };
        let Some((job, done)) = self.queued.lock().take() else { return Err(lease) };
        cx.begin(lease.worker(), now, run_timeout(lease.inner(), self.kind, &job));
        let reports = done.reports().cloned();
        thread.run(Work::new(lease, job, self.kind, cx.clone(), done));
        Ok(reports)
    }
}

/// The wait of a job for capacity.
#[derive(Clone)]
pub struct Room {
    inner: Shared,
    key: JobKey,
}

impl Room {
    /// Whether the job is still waiting for capacity.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.inner.read(|core| core.is_waiting(self.key))
    }

    /// Returns when the job has capacity or has ended. Cancel safe.
    pub async fn wait(&self) {
        let mut ended = std::pin::pin!(self.inner.room.notified());
        loop {
            // The waiter registers before the check, so that it misses no change in between.
            ended.as_mut().enable();
            if !self.is_awaited() {
                return;
            }
            ended.as_mut().await;
            ended.set(self.inner.room.notified());
        }
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("key", &self.key).finish_non_exhaustive()
    }
}

impl QueuedJob {
    pub(super) fn new(
        inner: Shared,
        key: JobKey,
        kind: usize,
        place: Claim,
        start_by: Instant,
        job: Box<Job>,
        cx: Context,
    ) -> Self {
        let span = queue_span(&cx);
        let work = match &place.blocking {
            Some(blocking) => {
                let (done, ended) = Done::new(&inner);
                *blocking.queued.lock() = Some((job, done));
                QueuedWork::BlockingJob(Arc::clone(blocking), ended)
            }
            None => QueuedWork::Job(job),
        };
        Self { inner, key, kind, place, work, span, start_by, cx }
    }

    /// The capacity that the job may be waiting for.
    pub(super) fn room(&self) -> Room {
        Room { inner: self.inner.clone(), key: self.key }
    }

    /// Waits for a worker until it is too late to start, and starts the run. Dropping the future takes the job out of
    /// the queue.
    pub(super) async fn begin(self) -> Result<RunningJob, JobError> {
        match self.next().await? {
            Begun::Granted(granted) => granted.start(Instant::now()),
            Begun::Running(running) => Ok(running),
        }
    }

    /// Waits for a worker until it is too late to start. Dropping the future takes the job out of the queue.
    pub(super) async fn next(mut self) -> Result<Begun, JobError> {
        self.inner.keep_time();
        let signal = tokio::select! {
            biased;
            signal = &mut self.place.signal => signal,
            () = tokio::time::sleep_until(self.start_by) => {
                match self.inner.withdraw(self.key, Withdrawal::Expired) {
                    Withdrawn::Queued => Ok(Signal::Ended(Outcome::ExpiredInQueue, None)),
                    Withdrawn::Waiting => Ok(Signal::Refused(RejectionReason::NoRoomInTime)),
                    // The scheduler has already sent a signal.
                    Withdrawn::Gone => (&mut self.place.signal).await,
                }
            }
        };
        drop(std::mem::replace(&mut self.span, Span::none()));
        let work = std::mem::replace(&mut self.work, QueuedWork::Gone);
        let (lease, job) = match (signal, work) {
            (Ok(Signal::Ended(outcome, retry_after)), _) => {
                return Err(conclude_queued(&self.inner, self.kind, &self.cx, outcome, retry_after));
            }
            (Ok(Signal::Refused(reason)), _) => return Err(refuse_waiting(&self.inner, &self.cx, reason)),
            (Ok(Signal::Began), QueuedWork::BlockingJob(blocking, ended)) => {
                return Ok(Begun::Running(RunningJob::new(self.attempt(&blocking, ended))));
            }
            (Ok(Signal::Start(lease)), QueuedWork::Job(job)) => (lease, job),
            (Ok(Signal::Start(lease)), QueuedWork::BlockingJob(blocking, _)) => {
                let (job, _) = blocking.queued.lock().take().expect("only a worker takes the job away");
                (lease, job)
            }
            _ => unreachable!("the scheduler signals every waiter once"),
        };
        Ok(Begun::Granted(Granted { kind: self.kind, job, lease, cx: self.cx.clone() }))
    }

    fn attempt(&self, blocking: &BlockingJob, ended: oneshot::Receiver<JobResult>) -> Attempt {
        Attempt::elsewhere(self.inner.clone(), self.key, blocking.kind, self.cx.clone(), ended)
    }
}

impl Drop for QueuedJob {
    fn drop(&mut self) {
        // A lease that was sent meanwhile is dropped with the channel, which gives its worker back.
        let work = std::mem::replace(&mut self.work, QueuedWork::Gone);
        if matches!(work, QueuedWork::Gone) {
            return;
        }
        let withdrawn = self.inner.withdraw(self.key, Withdrawal::Cancelled);
        if let QueuedWork::BlockingJob(blocking, ended) = work
            && withdrawn == Withdrawn::Gone
            && blocking.queued.lock().take().is_none()
        {
            // The job runs, and its caller has left.
            return drop(RunningJob::new(self.attempt(&blocking, ended)));
        }
        let outcome = match (withdrawn, self.place.signal.try_recv()) {
            (Withdrawn::Waiting, _) | (Withdrawn::Gone, Ok(Signal::Refused(_))) => return,
            (Withdrawn::Gone, Ok(Signal::Ended(outcome, _))) => outcome,
            (Withdrawn::Queued | Withdrawn::Gone, _) => Outcome::Cancelled,
        };
        conclude_queued(&self.inner, self.kind, &self.cx, outcome, None);
    }
}
