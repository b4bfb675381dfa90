use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    JobStream, PoolBuilder, PoolStats,
    attached::Attached,
    attempt::Attempt,
    conclude::conclude_queued,
    core::{Ending, QueueEnd},
    drain::LostJob,
    lease::Lease,
    shell::Shell,
    stream::stream,
    trace::{attempt_span, queue_span},
    turn::{Room, Turn},
};
use crate::{
    handler::{CancelToken, Context, ContextParts, OutputSink, RunStart},
    model::{Completed, Job, JobError, JobId, Rejection, RejectionReason, RequestId},
    phase::Phase,
};

/// A bounded queue in front of a bounded set of workers. Clones share the pool.
///
/// ```
/// # use std::num::NonZeroUsize;
/// use waterwheel::{Job, Output, Pool, handler::{Context, Handler, Kind}, model::HandlerError};
///
/// struct Upper;
///
/// impl Handler for Upper {
///     async fn handle(&mut self, job: Job, _cx: Context) -> Result<Output, HandlerError> {
///         Ok(Output::new(job.payload.to_ascii_uppercase()))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = Pool::builder("text").workers(NonZeroUsize::MIN).kind(Kind::new("upper", || Upper)).build();
/// let done = pool.submit(Job::new("upper", "hello")).await?;
/// assert_eq!(done.output.bytes, "HELLO");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pool(Arc<Shell>);

/// An accepted job; await it for its outcome, drop it to cancel the job.
///
/// A job runs in the task that polls its ticket: one that is neither polled nor dropped holds its worker.
#[must_use = "a ticket that is dropped cancels its job"]
pub struct Ticket {
    job: JobId,
    room: Option<Room>,
    outcome: BoxFuture<'static, Result<Completed, JobError>>,
}

impl Pool {
    /// Starts to build a pool.
    #[must_use]
    pub fn builder(name: impl Into<Arc<str>>) -> PoolBuilder {
        PoolBuilder::new(name.into())
    }

    /// Name of the pool.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.0.name
    }

    /// Runs `job` and returns its result. Dropping the future cancels the job.
    ///
    /// # Errors
    /// [`JobError::Rejected`] where the job was not accepted, [`JobError::Failed`] where it did not complete.
    pub async fn submit(&self, job: Job) -> Result<Completed, JobError> {
        let kind = self.locate(&job)?;
        self.submit_at(kind, job).await
    }

    /// Asks for room, without waiting for the outcome.
    ///
    /// ```
    /// # use waterwheel::{Job, Output, Pool, handler::{Context, Handler, Kind}, model::HandlerError};
    /// # struct Echo;
    /// # impl Handler for Echo {
    /// #     async fn handle(&mut self, job: Job, _cx: Context) -> Result<Output, HandlerError> {
    /// #         Ok(Output::new(job.payload))
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = Pool::builder("text").kind(Kind::new("echo", || Echo)).build();
    /// let ticket = pool.try_submit(Job::new("echo", "hi"))?;
    /// println!("accepted as {}", ticket.job());
    /// assert_eq!(ticket.await?.output.bytes, "hi");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Why the job was not accepted.
    pub fn try_submit(&self, job: Job) -> Result<Ticket, Rejection> {
        let kind = self.locate(&job)?;
        self.try_submit_at(kind, job)
    }

    /// Runs `job` without a caller: fire and forget. Its failure is in the log and in the counters.
    ///
    /// ```
    /// # use waterwheel::{Job, Output, Pool, handler::{Context, Handler, Kind}, model::HandlerError};
    /// # struct Echo;
    /// # impl Handler for Echo {
    /// #     async fn handle(&mut self, job: Job, _cx: Context) -> Result<Output, HandlerError> {
    /// #         Ok(Output::new(job.payload))
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = Pool::builder("text").kind(Kind::new("echo", || Echo)).build();
    /// pool.send(Job::new("echo", "hi"))?;
    /// pool.drain();
    /// pool.wait().await;
    /// assert_eq!(pool.stats().counts.completed, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Why the job was not accepted.
    pub fn send(&self, job: Job) -> Result<JobId, Rejection> {
        let kind = self.locate(&job)?;
        let admitted = self.admit(kind, job)?;
        let cx = admitted.cx.clone();
        let id = cx.job();
        self.0.tasks.spawn(async move {
            if let Err(error) = admitted.run().await {
                tracing::warn!(job = %cx.job(), request_id = %cx.request_id(), %error, "a job without a caller failed");
            }
        });
        Ok(id)
    }

    /// Runs `job` and returns its output as it is made. Returns once the job runs.
    ///
    /// # Errors
    /// As for [`submit`](Self::submit), for whatever happens before the job runs.
    pub async fn stream(&self, job: Job) -> Result<JobStream, JobError> {
        let kind = self.locate(&job)?;
        self.stream_at(kind, job).await
    }

    /// Number of workers that could run a job: all but the stuck ones.
    #[must_use]
    pub fn worker_count(&self) -> usize {
        self.0.read(super::core::Core::live_workers)
    }

    /// Whether stuck jobs have made the pool smaller than it was configured.
    #[must_use]
    pub fn is_impaired(&self) -> bool {
        self.0.read(|core| core.unreplaced() > 0)
    }

    /// Whether the queue was filled to four fifths and has not been under one fifth since.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.0.read(super::core::Core::is_saturated)
    }

    /// A snapshot. Workers go on meanwhile.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        PoolStats::of(&self.0)
    }

    /// Phase of the pool.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.0.phase.get()
    }

    pub(super) fn shell(&self) -> &Arc<Shell> {
        &self.0
    }

    pub(super) async fn submit_at(&self, kind: usize, job: Job) -> Result<Completed, JobError> {
        self.admit(kind, job)?.run().await
    }

    pub(super) fn try_submit_at(&self, kind: usize, job: Job) -> Result<Ticket, Rejection> {
        let admitted = self.admit(kind, job)?;
        let (job, room) = (admitted.cx.job(), admitted.turn.room());
        Ok(Ticket { job, room, outcome: admitted.run().boxed() })
    }

    pub(super) async fn stream_at(&self, kind: usize, job: Job) -> Result<JobStream, JobError> {
        stream(&self.0, kind, job).await
    }

    pub(super) fn kind_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.kinds.iter().map(crate::handler::Kind::name)
    }

    fn locate(&self, job: &Job) -> Result<usize, Rejection> {
        self.0.kind_index(&job.kind).ok_or_else(|| {
            let suggestion = super::pools::closest(&job.kind, self.kind_names());
            self.0.reject(job.kind.as_str().into(), RejectionReason::UnknownKind { suggestion })
        })
    }

    fn admit(&self, kind: usize, job: Job) -> Result<Admitted, Rejection> {
        let limit = self.0.kinds[kind].get_options().max_output.unwrap_or(self.0.settings.max_output);
        Admitted::admit(&self.0, kind, job, OutputSink::collect(limit))
    }
}

/// A job that has room, or waits for it.
pub(super) struct Admitted {
    shell: Arc<Shell>,
    kind: usize,
    job: Job,
    turn: Turn,
    // After the turn: the last of a context ends its span, which must not happen under the lock of the pool.
    cx: Context,
}

impl Admitted {
    pub(super) fn admit(shell: &Arc<Shell>, kind: usize, mut job: Job, output: OutputSink) -> Result<Self, Rejection> {
        check(shell, kind, &job)?;
        let deadline = job.deadline.unwrap_or_else(|| shell.settings.deadline.fix(Instant::now(), job.timeout));
        let cx = Context::new(ContextParts {
            job: JobId::next(),
            kind: Arc::clone(shell.kinds[kind].name()),
            pool: Arc::clone(&shell.name),
            request_id: job.request_id.get_or_insert_with(RequestId::generate).clone(),
            deadline,
            trace: job.trace.take(),
            span: std::mem::replace(&mut job.span, tracing::Span::none()),
            child_spans: job.child_spans,
            cancel: CancelToken::default(),
            output,
            tasks: shell.tasks.clone(),
        });
        let turn = shell.admit(&job, kind, &cx)?;
        Ok(Self { shell: Arc::clone(shell), kind, job, turn, cx })
    }

    pub(super) fn context(&self) -> &Context {
        &self.cx
    }

    pub(super) async fn run(self) -> Result<Completed, JobError> {
        self.begin().await?.finish().await
    }

    /// Waits for a worker, and begins to run.
    pub(super) async fn begin(self) -> Result<Attached, JobError> {
        let Self { shell, kind, job, turn, cx } = self;
        let lease = match turn {
            Turn::Now(lease) => lease,
            Turn::Later(permit) => {
                let turn = permit.turn().instrument(queue_span(&cx)).await;
                turn.map_err(|end| conclude_queued(&shell, &cx, end))?
            }
        };
        if cx.is_cancelled() {
            // The worker came, but the drain was over before its message.
            shell.lost.lock().push(LostJob::new(&cx));
            lease.finish(Ending::Cancelled, Duration::ZERO);
            return Err(conclude_queued(&shell, &cx, QueueEnd::Drained));
        }
        let now = Instant::now();
        if now >= cx.deadline().reply_by() {
            // The worker came, but its message took the rest of the time.
            lease.finish(Ending::Expired, Duration::ZERO);
            return Err(conclude_queued(&shell, &cx, QueueEnd::Expired));
        }
        begin_run(&shell, kind, &job, &cx, &lease, now);
        let span = attempt_span(&cx, lease.worker());
        Ok(Attached::new(Attempt::new(lease, job, kind, cx, span)))
    }
}

fn begin_run(shell: &Shell, kind: usize, job: &Job, cx: &Context, lease: &Lease, now: Instant) {
    let limits = [shell.kinds[kind].get_options().run_timeout, job.run_timeout];
    let until = limits
        .into_iter()
        .flatten()
        .filter_map(|limit| now.checked_add(limit))
        .fold(cx.deadline().reply_by(), Instant::min);
    cx.begin(RunStart { worker: lease.worker(), at: now, until });
    shell.meters.record_queue(kind, now.saturating_duration_since(cx.deadline().arrival()));
}

fn check(shell: &Shell, kind: usize, job: &Job) -> Result<(), Rejection> {
    let name = || Arc::clone(shell.kinds[kind].name());
    let limit = shell.settings.max_payload.min(shell.settings.queue_bytes);
    if job.payload.len() > limit {
        return Err(shell.reject(name(), RejectionReason::PayloadTooLarge { size: job.payload.len(), limit }));
    }
    let violations = job.violations();
    if !violations.is_empty() {
        return Err(shell.reject(name(), RejectionReason::Invalid { violations }));
    }
    Ok(())
}

impl Ticket {
    /// Id of the job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.job
    }

    /// The room that the job may have to wait for; `None` where a worker was free.
    #[must_use]
    pub fn room(&self) -> Option<Room> {
        self.room.clone()
    }
}

impl Future for Ticket {
    type Output = Result<Completed, JobError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        self.outcome.poll_unpin(cx)
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("job", &self.job).finish_non_exhaustive()
    }
}

impl From<Arc<Shell>> for Pool {
    fn from(shell: Arc<Shell>) -> Self {
        Self(shell)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("name", &self.0.name).field("phase", &self.phase()).finish_non_exhaustive()
    }
}
