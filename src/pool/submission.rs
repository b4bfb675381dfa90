//! An admitted job on its way to its outcome.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::Instant;
use tracing::debug;

use super::{
    attached::Attached,
    attempt::Attempt,
    drain::LostJob,
    inner::PoolInner,
    lease::Lease,
    outcome::{conclude_queued, milliseconds},
    permit::{Permit, Room},
    shard::Shared,
};
use crate::{
    handler::{Context, ContextParts, OutputSink, StopReason},
    model::{Call, Completed, Criticality, Job, JobError, JobId, Outcome, Rejection, RejectionReason},
};

/// A job that was admitted, or waits for capacity.
pub(super) enum Admitted {
    /// A worker was free at once.
    Granted(Granted, Instant),
    Queued(Permit),
}

impl Admitted {
    pub(super) fn admit(inner: &Shared, kind: usize, mut job: Box<Job>, output: OutputSink) -> Result<Self, Rejection> {
        check(inner, kind, &job)?;
        let now = Instant::now();
        let deadline = job.deadline.unwrap_or_else(|| inner.settings.deadline.fix(now, job.timeout));
        let cx = Context::new(ContextParts {
            job: JobId::next(),
            site: inner.site(kind),
            deadline,
            call: job.call.take().or_else(Call::of_entered_span),
            tenant: (!job.tenant.is_empty()).then(|| Arc::from(&*job.tenant)),
            output,
        });
        inner.admit(now, job, kind, cx)
    }

    pub(super) fn context(&self) -> &Context {
        match self {
            Self::Granted(granted, _) => &granted.cx,
            Self::Queued(permit) => &permit.cx,
        }
    }

    /// The capacity that the job may wait for; `None` if a worker was free.
    pub(super) fn room(&self) -> Option<Room> {
        match self {
            Self::Granted(..) => None,
            Self::Queued(permit) => Some(permit.room()),
        }
    }

    /// Runs the job to its end. With a worker, it starts at once.
    pub(super) fn submission(self) -> Submission {
        Submission(match self {
            Self::Granted(granted, _) => Progress::Granted(granted),
            Self::Queued(permit) => Progress::Queued(permit.begin().boxed()),
        })
    }

    /// Polls the job once if it has a worker. Most short jobs end here, and need nothing for a wait.
    pub(super) fn poll_once(self, task: &mut TaskContext<'_>) -> Polled {
        let (granted, at) = match self {
            Self::Granted(granted, at) => (granted, at),
            queued @ Self::Queued(_) => return Polled::Pending(queued.submission()),
        };
        // No time has passed since the admission, so that its reading of the clock is also the start.
        let mut begun = granted.start(at);
        // Polled in place, which spares most jobs a move.
        if let Ok(attached) = &mut begun
            && let Poll::Ready(outcome) = attached.poll_unpin(task)
        {
            return Polled::Ended(outcome);
        }
        match begun {
            Ok(attached) => Polled::Pending(Submission(Progress::Running(attached))),
            Err(error) => Polled::Ended(Err(error)),
        }
    }

    /// Waits for a worker, and starts the run.
    pub(super) async fn begin(self) -> Result<Attached, JobError> {
        match self {
            Self::Granted(granted, at) => granted.start(at),
            Self::Queued(permit) => permit.begin().await,
        }
    }
}

/// A job after its first poll.
#[derive(Debug)]
pub(crate) enum Polled<T = Submission> {
    Ended(Result<Completed, JobError>),
    Pending(T),
}

/// A job on its way to its outcome; dropping it cancels the job.
///
/// A job runs in the task that polls its submission: one that is neither polled nor dropped holds its worker.
#[must_use = "a submission that is dropped cancels its job"]
pub struct Submission(Progress);

enum Progress {
    /// It was not polled yet.
    Granted(Granted),
    Queued(BoxFuture<'static, Result<Attached, JobError>>),
    Running(Attached),
    /// It ended before it ran.
    Ended(JobError),
    JobResult,
}

impl Submission {
    pub(super) fn refused(rejection: Rejection) -> Self {
        Self(Progress::Ended(rejection.into()))
    }

    pub(super) fn has_begun(&self) -> bool {
        !matches!(self.0, Progress::Granted(_) | Progress::Queued(_))
    }
}

impl Future for Submission {
    type Output = Result<Completed, JobError>;

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Self::Output> {
        loop {
            if let Progress::Granted(_) = self.0
                && let Progress::Granted(granted) = std::mem::replace(&mut self.0, Progress::JobResult)
            {
                self.0 = granted.start(Instant::now()).map_or_else(Progress::Ended, Progress::Running);
            }
            let outcome = match &mut self.0 {
                Progress::Running(attached) => match attached.poll_unpin(task) {
                    Poll::Ready(outcome) => outcome,
                    Poll::Pending => return Poll::Pending,
                },
                Progress::Queued(begun) => match begun.poll_unpin(task) {
                    Poll::Ready(Ok(attached)) => {
                        self.0 = Progress::Running(attached);
                        continue;
                    }
                    Poll::Ready(Err(error)) => Err(error),
                    Poll::Pending => return Poll::Pending,
                },
                Progress::Granted(_) | Progress::Ended(_) | Progress::JobResult => {
                    match std::mem::replace(&mut self.0, Progress::JobResult) {
                        Progress::Ended(error) => Err(error),
                        _ => unreachable!("a submission is not polled after its end"),
                    }
                }
            };
            self.0 = Progress::JobResult;
            return Poll::Ready(outcome);
        }
    }
}

impl fmt::Debug for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Progress::Granted(_) | Progress::Queued(_) => "Submission(queued)",
            Progress::Running(_) => "Submission(running)",
            Progress::Ended(_) | Progress::JobResult => "Submission(ended)",
        })
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
    pub(super) fn start(self, now: Instant) -> Result<Attached, JobError> {
        let Self { kind, job, lease, cx } = self;
        if let Some(reason) = cx.cancel_token().reason() {
            // The worker came, but the job was stopped before it began: by its operator, or by the end of a drain.
            let outcome = match reason {
                StopReason::Operator => Outcome::CancelledByOperator,
                StopReason::Drain | StopReason::Deadline | StopReason::Caller => {
                    lease.inner().lost.lock().push(LostJob::new(&cx));
                    Outcome::Drained
                }
            };
            return Err(not_begun(lease, &cx, outcome, now));
        }
        if now >= cx.deadline().reply_by() {
            // The worker came, but its message took the rest of the time.
            return Err(not_begun(lease, &cx, Outcome::ExpiredInQueue, now));
        }
        cx.begin(lease.worker(), now, run_timeout(lease.inner(), kind, &job));
        Attempt::new(lease, job, kind, cx, now).map(Attached::new)
    }
}

fn not_begun(lease: Lease, cx: &Context, outcome: Outcome, now: Instant) -> JobError {
    let error = conclude_queued(lease.inner(), cx, outcome, None);
    lease.finish(outcome, Duration::ZERO, now, None);
    error
}

/// Longest run of the job, by its kind and its caller.
pub(super) fn run_timeout(inner: &PoolInner, kind: usize, job: &Job) -> Option<Duration> {
    [inner.kinds[kind].get_options().run_timeout, job.run_timeout].into_iter().flatten().min()
}

/// This line and the one of the job's end are the input of `waterwheel sim --replay`. Computed only if it is logged.
pub(super) fn log_arrival(inner: &PoolInner, kind: usize, job: &Job, cx: &Context, refused: Option<&Rejection>) {
    debug!(
        pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), request_id = %cx.request_id(), tenant = job.tenant,
        criticality = Criticality::NAMES[job.criticality.rank()], budget_ms = milliseconds(cx.deadline().budget()),
        ordering_key_hash = hash(&job.ordering_key), run_timeout_ms = run_timeout(inner, kind, job).map(milliseconds),
        refused = refused.map(|rejection| rejection.reason.reason().name()),
        retry_after_ms = refused.and_then(|rejection| rejection.retry_after).map(milliseconds), "job arrived",
    );
}

/// Keys may name people, and the log needs only equality: a hash of this process; `None` without a key.
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
