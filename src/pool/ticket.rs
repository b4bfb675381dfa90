//! A job from its admission to its outcome: one future with one state. `queued_job.rs` waits for a worker, `run.rs`
//! runs the handler, and `stop.rs` has the stop ladder.

use std::{
    fmt,
    future::poll_fn,
    hash::{BuildHasher, RandomState},
    mem,
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context as TaskContext, Poll, ready},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Either, ready as ready_now},
};
use tokio::{sync::oneshot, time::Instant};
use tracing::{Span, debug};

use super::{
    inner::{PoolInner, Shared, jittered},
    lease::Lease,
    outcome::milliseconds,
    queued_job::{CapacityWait, QueuedJob},
    shard::shard,
};
use crate::{
    handler::{AsyncRun, Contained, Context, ContextParts, OutputSink, StopReason},
    model::{Call, Criticality, Failure, Job, JobError, JobId, JobResult, KindId, Outcome, Rejection, RejectionReason},
    scheduler::{Arrival, Refusal, Verdict},
};

/// A job that was admitted, or waits for capacity. Awaiting it returns the outcome; dropping it cancels the job.
///
/// The task that polls the ticket also runs the job. A ticket that is neither polled nor dropped keeps its worker busy.
#[must_use = "a ticket that is dropped cancels its job"]
pub struct Ticket {
    // Fields drop in this order: the handler, its span, the lease, then the context. The last clone of the context ends
    // a span, which runs code of a subscriber, and must not happen under the lock of the pool.
    pub(super) state: State,
    /// Span of the run; `None` if the call's span is enough.
    pub(super) span: Option<Box<Span>>,
    /// The job and its worker. It has no worker, and only the id of the job, while the job is queued, or while a thread
    /// of the worker has its lease.
    pub(super) lease: Lease,
    /// A reason to stop. Most short jobs end at their first poll, so it is made only for jobs that are still pending.
    stop: Option<BoxFuture<'static, StopReason>>,
    /// Time of the start or of the last poll of the handler.
    pub(super) seen: Instant,
    pub(super) is_polled: bool,
    pub(super) cx: Context,
}

/// Where a job is.
pub(super) enum State {
    /// It has a worker, and was not polled yet.
    Granted(Box<Job>),
    /// It waits for capacity or for a worker. The future returns its next state, with its worker.
    Queued(BoxFuture<'static, Result<(State, Lease), JobError>>),
    /// Its handler is new, and starts on the serving thread.
    Starting(BoxFuture<'static, Result<AsyncRun, Box<Failure>>>),
    /// Its handler runs on the serving thread.
    Running(Contained<AsyncRun>),
    /// Its handler runs on the worker's own thread, which decides the outcome.
    Blocking(oneshot::Receiver<JobResult>),
    /// It must stop. The future has the run.
    Stopping(BoxFuture<'static, JobResult>),
    /// It ended, or its run was passed on.
    Done,
}

impl Ticket {
    /// Asks the pool to admit a job.
    pub(super) fn admit(
        inner: &Shared,
        kind: KindId,
        mut job: Box<Job>,
        output: OutputSink,
    ) -> Result<Self, Rejection> {
        check(inner, kind, &job)?;
        let now = Instant::now();
        let cx = context(inner, kind, now, &mut job, output);
        Self::offer(inner, now, job, cx, inner.kind(kind).is_blocking())
    }

    /// Offers a checked job to the scheduler. If it has to wait, it later starts on a thread of its worker with
    /// `on_thread`, and else in the task of this ticket, even if its kind is blocking.
    pub(super) fn offer(
        inner: &Shared,
        now: Instant,
        job: Box<Job>,
        cx: Context,
        on_thread: bool,
    ) -> Result<Self, Rejection> {
        let deadline = cx.deadline();
        let queue_end = job.queue_timeout.and_then(|timeout| deadline.arrival().checked_add(timeout));
        let start_by = queue_end.map_or(deadline.reply_by(), |end| end.min(deadline.reply_by()));
        let arrival = Arrival {
            job: cx.clone(),
            kind: cx.kind_id(),
            class: job.criticality,
            bytes: job.payload.len(),
            start_by,
            finish_by: deadline.reply_by(),
            tenant: &job.tenant,
            ordering_key: &job.ordering_key,
            limit_key: &job.limit_key,
            when_full: job.when_full.unwrap_or(inner.settings.when_full),
            shard: shard(),
        };
        let mut queued = None;
        let waiter = |key| {
            let (waiter, job) = QueuedJob::new(inner.clone(), key, start_by, cx.clone(), on_thread);
            queued = Some(job);
            waiter
        };
        match inner.drive(|core, effects| core.offer(now, arrival, waiter, effects)) {
            Verdict::Start(grant) => {
                let lease = Lease::new(inner.clone(), grant);
                log_arrival(inner, &job, &cx, None);
                Ok(Self::new(State::Granted(job), lease, cx))
            }
            Verdict::Queued(key) | Verdict::Waiting(key) => {
                log_arrival(inner, &job, &cx, None);
                let queued = queued.expect("a job that does not start at once has a waiter");
                let state = State::Queued(queued.next(job).boxed());
                Ok(Self::new(state, Lease::naming(inner.clone(), key), cx))
            }
            Verdict::Refused(refusal) => {
                let rejection = refuse(inner, &cx, refusal);
                log_arrival(inner, &job, &cx, Some(&rejection));
                Err(rejection)
            }
        }
    }

    pub(super) fn new(state: State, lease: Lease, cx: Context) -> Self {
        Self { state, span: None, lease, stop: None, seen: cx.deadline().arrival(), is_polled: false, cx }
    }

    /// Id of the job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.cx.job()
    }

    /// The wait of a queued job, which may be one for capacity.
    #[must_use]
    pub fn capacity_wait(&self) -> Option<CapacityWait> {
        matches!(self.state, State::Queued(_)).then(|| CapacityWait::of(self.lease.inner().clone(), self.lease.key()))
    }

    /// Whether the job runs or has ended, as of the last poll.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.state, State::Granted(_) | State::Queued(_))
    }

    /// Returns when the job runs. Dropping the future cancels the job.
    pub(super) async fn begin(mut self) -> Result<Self, JobError> {
        poll_fn(|task| self.poll_begun(task)).await?;
        Ok(self)
    }

    /// Waits for a worker in the job's own task. Dropping the future cancels the job.
    pub(super) async fn worker(mut self) -> Result<Lease, JobError> {
        poll_fn(|task| self.poll_granted(task)).await?;
        self.state = State::Done;
        Ok(self.lease.take())
    }

    fn poll_begun(&mut self, task: &mut TaskContext<'_>) -> Poll<Result<(), JobError>> {
        ready!(self.poll_granted(task))?;
        Poll::Ready(match mem::replace(&mut self.state, State::Done) {
            State::Granted(job) => self.start(job),
            begun => {
                self.state = begun;
                Ok(())
            }
        })
    }

    fn poll_granted(&mut self, task: &mut TaskContext<'_>) -> Poll<Result<(), JobError>> {
        if let State::Queued(queued) = &mut self.state {
            let next = ready!(queued.poll_unpin(task));
            self.state = State::Done;
            (self.state, self.lease) = next?;
        }
        Poll::Ready(Ok(()))
    }

    /// Passes the run on. Only the id of the job is left here.
    pub(super) fn take(&mut self) -> Self {
        Self {
            state: mem::replace(&mut self.state, State::Done),
            span: self.span.take(),
            lease: self.lease.take(),
            stop: None,
            cx: self.cx.clone(),
            ..*self
        }
    }
}

impl Future for Ticket {
    type Output = JobResult;

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<JobResult> {
        let this = &mut *self;
        ready!(this.poll_begun(task))?;
        loop {
            if let State::Stopping(stopping) = &mut this.state {
                let ended = ready!(stopping.poll_unpin(task));
                this.state = State::Done;
                return Poll::Ready(ended);
            }
            if let Poll::Ready(ended) = this.poll_run(task) {
                return Poll::Ready(ended.expect(REPORTED));
            }
            let stop = this.stop.get_or_insert_with(|| super::stop::reason(this.cx.clone()).boxed());
            let reason = ready!(stop.poll_unpin(task));
            this.state = State::Stopping(this.take().stop(reason).boxed());
        }
    }
}

/// The task of a job, or the worker's thread, decides the outcome. The thread reports it to the task.
pub(super) const REPORTED: &str = "the outcome of a job comes to its own task";

impl Drop for Ticket {
    /// The caller left. A queued job leaves the queue with its future, and the stop ladder stops a running one.
    fn drop(&mut self) {
        let runs = matches!(self.state, State::Starting(_) | State::Running(_) | State::Blocking(_));
        if runs && self.decide(Outcome::Cancelled) {
            drop(self.take().detach(StopReason::Caller, Outcome::Cancelled));
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("job", &self.job()).finish_non_exhaustive()
    }
}

/// The context of a job that arrives now.
pub(super) fn context(inner: &PoolInner, kind: KindId, now: Instant, job: &mut Job, output: OutputSink) -> Context {
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

impl PoolInner {
    /// Collects the output of a job of `kind`, up to its limit.
    pub(super) fn collector(&self, kind: KindId) -> OutputSink {
        OutputSink::collect(self.kind(kind).get_options().max_output.unwrap_or(self.settings.max_output))
    }
}

fn refuse(inner: &PoolInner, cx: &Context, refusal: Refusal) -> Rejection {
    let Refusal { mut reason, retry_after } = refusal;
    // To the scheduler a job ends when its answer must be sent, which is earlier than the timeout of its caller.
    if let RejectionReason::DeadlineUnreachable { needed, .. } = &mut reason {
        *needed = inner.settings.deadline.timeout_for(*needed);
    }
    let (pool, kind) = (Some(Arc::clone(cx.pool())), Arc::clone(cx.kind()));
    Rejection { reason, pool, kind, retry_after: retry_after.map(jittered) }
}

/// Longest run of the job, by its kind and its caller.
pub(super) fn run_timeout(inner: &PoolInner, job: &Job, cx: &Context) -> Option<Duration> {
    [inner.kind(cx.kind_id()).get_options().run_timeout, job.run_timeout].into_iter().flatten().min()
}

/// `waterwheel sim --replay` reads this line and the line at the job's end. The fields are computed only if the line is
/// logged.
pub(super) fn log_arrival(inner: &PoolInner, job: &Job, cx: &Context, refused: Option<&Rejection>) {
    debug!(
        pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), request_id = %cx.request_id(), tenant = job.tenant,
        criticality = Criticality::NAMES[job.criticality.rank()], budget_ms = milliseconds(cx.deadline().budget()),
        ordering_key_hash = hash(&job.ordering_key), run_timeout_ms = run_timeout(inner, job, cx).map(milliseconds),
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
pub(super) fn check(inner: &PoolInner, kind: KindId, job: &Job) -> Result<(), Rejection> {
    let name = || Arc::clone(inner.kind(kind).name());
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
