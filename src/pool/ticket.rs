//! A job from its admission to its outcome. If the caller of a queued job leaves, dropping the job (`queued_job.rs`)
//! takes the job out of the queue.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context as TaskContext, Poll, ready},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Either, ready as ready_now},
};
use tokio::time::Instant;
use tracing::debug;

use super::{
    attempt::Attempt,
    drain::LostJob,
    inner::PoolInner,
    lease::Lease,
    outcome::{JobResult, conclude_queued, milliseconds},
    queued_job::{QueuedJob, Room},
    running_job::RunningJob,
    shard::Shared,
};
use crate::{
    handler::{Context, ContextParts, OutputSink, StopReason},
    model::{Call, Criticality, Job, JobError, JobId, Outcome, Rejection, RejectionReason},
};

/// A job that was admitted, or waits for capacity. Awaiting it returns the outcome; dropping it cancels the job.
///
/// The task that polls the ticket also runs the job. A ticket that is neither polled nor dropped keeps its worker busy.
#[must_use = "a ticket that is dropped cancels its job"]
pub struct Ticket {
    progress: Progress,
    room: Option<Room>,
    cx: Context,
}

enum Progress {
    /// The job has a worker, but was not polled yet.
    Granted(Granted),
    Queued(BoxFuture<'static, Result<RunningJob, JobError>>),
    Running(RunningJob),
    Ended,
}

impl Ticket {
    /// Asks the pool to admit a job.
    pub(super) fn admit(inner: &Shared, kind: usize, mut job: Box<Job>, output: OutputSink) -> Result<Self, Rejection> {
        check(inner, kind, &job)?;
        let now = Instant::now();
        let cx = context(inner, kind, now, &mut job, output);
        inner.admit(now, job, kind, cx)
    }

    pub(super) fn granted(granted: Granted) -> Self {
        let cx = granted.cx.clone();
        Self { progress: Progress::Granted(granted), room: None, cx }
    }

    pub(super) fn queued(job: QueuedJob) -> Self {
        let (room, cx) = (Some(job.room()), job.cx.clone());
        Self { progress: Progress::Queued(job.begin().boxed()), room, cx }
    }

    /// Id of the job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.cx.job()
    }

    /// The capacity that the job may wait for; `None` if a worker was free.
    #[must_use]
    pub fn room(&self) -> Option<Room> {
        self.room.clone()
    }

    /// Whether the job runs or has ended, as of the last poll.
    pub(crate) fn has_begun(&self) -> bool {
        matches!(self.progress, Progress::Running(_) | Progress::Ended)
    }

    pub(super) fn context(&self) -> &Context {
        &self.cx
    }

    /// Returns when the job runs. Dropping the future cancels the job.
    pub(super) async fn begin(mut self) -> Result<RunningJob, JobError> {
        std::future::poll_fn(|task| self.poll_begin(task)).await?;
        let Progress::Running(attached) = self.progress else { unreachable!("it has just begun") };
        Ok(attached)
    }

    fn poll_begin(&mut self, task: &mut TaskContext<'_>) -> Poll<Result<(), JobError>> {
        let begun = match &mut self.progress {
            Progress::Queued(begun) => ready!(begun.poll_unpin(task)),
            Progress::Granted(_) => match std::mem::replace(&mut self.progress, Progress::Ended) {
                Progress::Granted(granted) => granted.start(Instant::now()),
                _ => unreachable!("it was granted a line before"),
            },
            Progress::Running(_) | Progress::Ended => return Poll::Ready(Ok(())),
        };
        self.progress = Progress::Ended;
        self.progress = Progress::Running(begun?);
        Poll::Ready(Ok(()))
    }
}

impl Future for Ticket {
    type Output = JobResult;

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<JobResult> {
        ready!(self.poll_begin(task))?;
        let Progress::Running(attached) = &mut self.progress else { panic!("a ticket is not polled after its end") };
        let outcome = ready!(attached.poll_unpin(task));
        self.progress = Progress::Ended;
        Poll::Ready(outcome)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("job", &self.job()).finish_non_exhaustive()
    }
}

/// The context of a job that arrives now.
pub(super) fn context(inner: &PoolInner, kind: usize, now: Instant, job: &mut Job, output: OutputSink) -> Context {
    Context::new(ContextParts {
        job: JobId::next(),
        site: inner.site(kind),
        deadline: job.deadline.unwrap_or_else(|| inner.settings.deadline.fix(now, job.timeout)),
        call: job.call.take().or_else(Call::of_entered_span),
        tenant: (!job.tenant.is_empty()).then(|| Arc::from(&*job.tenant)),
        output,
    })
}

/// The outcome of a job that may have been refused.
pub(super) fn outcome(ticket: Result<Ticket, Rejection>) -> impl Future<Output = JobResult> + Send + Unpin + use<> {
    match ticket {
        Ok(ticket) => Either::Left(ticket),
        Err(rejection) => Either::Right(ready_now(Err(rejection.into()))),
    }
}

/// A job with its worker.
pub(super) struct Granted {
    pub(super) kind: usize,
    pub(super) job: Box<Job>,
    pub(super) lease: Lease,
    // Dropped after the lease: the last clone of the context ends its span, which must not happen under the lock of the
    // pool.
    pub(super) cx: Context,
}

impl Granted {
    /// Starts the run, unless it is too late.
    pub(super) fn start(self, now: Instant) -> Result<RunningJob, JobError> {
        let Self { kind, job, lease, cx } = self;
        if let Some(reason) = cx.stop_reason() {
            // An operator, or the end of a drain, stopped the job before it began.
            let outcome = match reason {
                StopReason::Operator => Outcome::CancelledByOperator,
                StopReason::Drain | StopReason::Deadline | StopReason::Caller => {
                    lease.inner().lost.lock().push(LostJob::new(&cx));
                    Outcome::Drained
                }
            };
            return Err(not_begun(lease, kind, &cx, outcome, now));
        }
        if now >= cx.deadline().reply_by() {
            // The worker was granted too late: passing the grant on took the remaining time.
            return Err(not_begun(lease, kind, &cx, Outcome::ExpiredInQueue, now));
        }
        cx.begin(lease.worker(), now, run_timeout(lease.inner(), kind, &job));
        Attempt::new(lease, job, kind, cx, now).map(RunningJob::new)
    }
}

fn not_begun(mut lease: Lease, kind: usize, cx: &Context, outcome: Outcome, now: Instant) -> JobError {
    let error = conclude_queued(lease.inner(), kind, cx, outcome, None);
    lease.finish(outcome, Duration::ZERO, now, None);
    error
}

/// Longest run of the job, by its kind and its caller.
pub(super) fn run_timeout(inner: &PoolInner, kind: usize, job: &Job) -> Option<Duration> {
    [inner.kinds[kind].get_options().run_timeout, job.run_timeout].into_iter().flatten().min()
}

/// `waterwheel sim --replay` reads this line and the line at the job's end. The fields are computed only if the line is
/// logged.
pub(super) fn log_arrival(inner: &PoolInner, kind: usize, job: &Job, cx: &Context, refused: Option<&Rejection>) {
    debug!(
        pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), request_id = %cx.request_id(), tenant = job.tenant,
        criticality = Criticality::NAMES[job.criticality.rank()], budget_ms = milliseconds(cx.deadline().budget()),
        ordering_key_hash = hash(&job.ordering_key), run_timeout_ms = run_timeout(inner, kind, job).map(milliseconds),
        refused = refused.map(|rejection| rejection.reason.reason().name()),
        retry_after_ms = refused.and_then(|rejection| rejection.retry_after).map(milliseconds), "job arrived",
    );
}

/// Keys may identify people, and the log only needs equality, so keys are logged as hashes with a per-process seed.
/// `None` without a key.
fn hash(key: &str) -> Option<String> {
    static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    (!key.is_empty()).then(|| format!("{:016x}", STATE.hash_one(key)))
}

/// Whether the job fits the bounds that do not depend on the load.
pub(super) fn check(inner: &PoolInner, kind: usize, job: &Job) -> Result<(), Rejection> {
    let name = || Arc::clone(inner.kinds[kind].name());
    let limit = inner.settings.max_payload.min(inner.settings.queue_bytes);
    if job.payload.len() > limit {
        return Err(inner.reject(name(), RejectionReason::PayloadTooLarge { size: job.payload.len(), limit }));
    }
    let violations = job.violations();
    if !violations.is_empty() {
        return Err(inner.reject(name(), RejectionReason::Invalid { violations }));
    }
    Ok(())
}
