//! A job from its arrival to its outcome: one future with one state. `arrival.rs` makes it, `queued_job.rs` waits for a
//! worker, `run.rs` runs handlers of blocking kinds, and `stop.rs` has the stop ladder.

use std::{
    fmt,
    future::poll_fn,
    mem,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context as TaskContext, Poll, ready},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Either, ready as ready_now},
};
use tokio::{sync::oneshot, time::Instant};
use tracing::{Span, warn};

use super::{
    blocking::Done,
    capacity_wait::CapacityWait,
    lease::Lease,
    outcome::{conclude, judge, stopped},
    run::{begin_to_make, end_making, entered, run_on_thread},
    trace::attempt_span,
};
use crate::{
    handler::{AsyncRun, Contained, Context, Instance, StopReason, contain, panic_message},
    model::{Failure, HandlerError, Job, JobError, JobId, JobResult, Outcome, Output, Rejection},
};

/// The settings are read only for longer polls.
const SHORTEST_SLOW_POLL: Duration = Duration::from_millis(1);

/// A job that was admitted, or waits for capacity. Awaiting it returns the outcome; dropping it cancels the job.
///
/// The task that polls the ticket also runs the job. A ticket that is neither polled nor dropped keeps its worker busy.
#[must_use = "a ticket that is dropped cancels its job"]
pub struct Ticket {
    // Fields drop in this order: the handler, its span, the lease, then the context. The last clone of the context ends
    // a span, which runs code of a subscriber, and must not happen under the lock of the pool.
    pub(super) state: State,
    /// Span of the run; `None` if the call's span is enough.
    span: Option<Box<Span>>,
    /// The job and its worker. It has no worker, and only the id of the job, while the job is queued, or while a thread
    /// of the worker has its lease.
    pub(super) lease: Lease,
    /// A reason to stop. Most short jobs end at their first poll, so it is made only for jobs that are still pending.
    stop: Option<BoxFuture<'static, StopReason>>,
    /// Time of the start or of the last poll of the handler.
    seen: Instant,
    is_polled: bool,
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
    pub(super) fn new(state: State, lease: Lease, cx: Context) -> Self {
        Self { state, span: None, lease, stop: None, seen: cx.deadline().arrival(), is_polled: false, cx }
    }

    /// Id of the job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.cx.job()
    }

    /// What the handler of the job sees of it.
    pub(crate) fn context(&self) -> &Context {
        &self.cx
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
            let stop = this.stop.get_or_insert_with(|| super::stop_ladder::reason(this.cx.clone()).boxed());
            let reason = ready!(stop.poll_unpin(task));
            this.state = State::Stopping(this.take().stop(reason).boxed());
        }
    }
}

/// The task of a job, or the worker's thread, decides the outcome. The thread reports it to the task.
pub(super) const REPORTED: &str = "the outcome of a job comes to its own task";

/// The steps from state to state, in order.
impl Ticket {
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

    /// Starts the run of a job that has its worker, unless it is too late. An asynchronous handler starts when it is
    /// polled.
    fn start(&mut self, job: Box<Job>) -> Result<(), JobError> {
        self.seen = Instant::now();
        match self.begin_run(job) {
            Ok(state) => {
                self.state = state;
                Ok(())
            }
            Err(failure) => {
                // The answer is sent at once, before the headers of a stream.
                self.span = None;
                let ended = conclude(&mut self.lease, &self.cx, self.seen, Err(failure));
                let ended = ended.expect("no other decides a run that did not begin");
                Err(ended.expect_err("it did not begin"))
            }
        }
    }

    fn begin_run(&mut self, job: Box<Job>) -> Result<State, Box<Failure>> {
        let Self { lease, cx, .. } = self;
        if cx.is_cancelled() {
            // An operator, or the end of a drain, stopped the job before it began.
            return Err(Failure::of(cx, stopped(cx, lease.inner())));
        }
        if self.seen >= cx.deadline().reply_by() {
            // The worker was granted too late: passing the grant on took the remaining time.
            return Err(Failure::of(cx, Outcome::ExpiredInQueue));
        }
        cx.begin(lease.worker(), lease.since(), self.seen, lease.inner().run_timeout(cx.kind_id(), &job));
        if lease.inner().kind(cx.kind_id()).is_blocking() {
            let thread = lease.thread().map_err(|error| {
                let message = format!("the worker's thread could not be started: {error}");
                Failure::without_handler(cx, HandlerError::Crashed { message }, None)
            })?;
            let (done, ended) = Done::new(lease.inner());
            run_on_thread(&thread, lease.take(), job, cx.clone(), done);
            return Ok(State::Blocking(ended));
        }
        self.span = attempt_span(cx, lease.worker());
        entered(self.span.as_deref(), cx, || begin_async(lease, job, cx))
    }

    /// Polls the run once. Returns the job's result, or `None` if the outcome was decided before.
    pub(super) fn poll_run(&mut self, task: &mut TaskContext<'_>) -> Poll<Option<JobResult>> {
        if let State::Blocking(ended) = &mut self.state {
            // A thread that sends nothing found the outcome already decided.
            let ended = ready!(ended.poll_unpin(task)).ok();
            self.state = State::Done;
            return Poll::Ready(ended);
        }
        // The run starts with its first poll, which saves a short job one reading of the clock.
        let begin = if self.is_polled { Instant::now() } else { self.seen };
        self.is_polled = true;
        let polled = self.poll_handler(task);
        self.seen = Instant::now();
        let took = self.seen - begin;
        if took > SHORTEST_SLOW_POLL && took > self.lease.inner().settings.slow_poll {
            self.warn_slow(took);
        }
        let result = ready!(polled);
        self.span = None;
        Poll::Ready(conclude(&mut self.lease, &self.cx, self.seen, result))
    }

    fn poll_handler(&mut self, task: &mut TaskContext<'_>) -> Poll<Result<Output, Box<Failure>>> {
        if let State::Starting(start) = &mut self.state {
            let started = ready!(entered(self.span.as_deref(), &self.cx, || start.poll_unpin(task)));
            self.state = State::Done;
            self.state = State::Running(Contained::new(started?));
        }
        let State::Running(run) = &mut self.state else { panic!("a ticket is not polled after its end") };
        let _entered = self.span.as_deref().unwrap_or(self.cx.span()).enter();
        let polled = contain(|| run.get_mut().poll_unpin(task));
        let result = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready((handler, result))) => {
                let handler = Contained::new(Instance::Async(handler));
                self.lease.put_back(self.cx.kind_id(), handler, &result);
                result
            }
            Err(message) => Err(HandlerError::Panicked { message }),
        };
        // A future that panicked is dropped here, in the span of its run.
        self.state = State::Done;
        Poll::Ready(judge(result, &self.cx, self.lease.inner()))
    }

    fn warn_slow(&self, took: Duration) {
        self.lease.inner().slow_polls.fetch_add(1, Ordering::Relaxed);
        self.cx.span().in_scope(|| {
            warn!(
                kind = %self.cx.kind(),
                job = %self.cx.job(),
                detached_job = self.cx.detached_job(),
                request_id = %self.cx.request_id(),
                duration_ms = took.as_millis(),
                "one poll of a handler blocked its thread; make the kind blocking",
            );
        });
    }
}

/// The handler's own code runs only when the future is polled.
fn begin_async(lease: &mut Lease, job: Box<Job>, cx: &Context) -> Result<State, Box<Failure>> {
    const ASYNC: &str = "the kind says that it is asynchronous";
    let kind = cx.kind_id();
    if let Some(kept) = lease.take_handler(kind) {
        let Instance::Async(kept) = kept else { unreachable!("{ASYNC}") };
        return Ok(State::Running(Contained::new(kept.run(job, cx.clone()))));
    }
    let (inner, cx) = (lease.inner().clone(), cx.clone());
    let begun = begin_to_make(&inner, &cx)?;
    let new = match contain(|| inner.kind(kind).make()) {
        Ok(Ok(new)) => new,
        failed => end_making(&inner, &cx, &begun, failed)?,
    };
    let Instance::Async(new) = new else { unreachable!("{ASYNC}") };
    Ok(State::Starting(Box::pin(async move {
        let site = inner.site(kind);
        let start = AssertUnwindSafe(async { Contained::new(new.start(site)).get_mut().await });
        let started = start.catch_unwind().await.map_err(panic_message);
        let handler = end_making(&inner, &cx, &begun, started.map(|(handler, result)| result.map(|()| handler)))?;
        Ok(handler.run(job, cx))
    })))
}

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

/// The result of a job that may have been refused.
pub(super) fn result_of(ticket: Result<Ticket, Rejection>) -> impl Future<Output = JobResult> + Send + Unpin + use<> {
    match ticket {
        Ok(ticket) => Either::Left(ticket),
        Err(rejection) => Either::Right(ready_now(Err(rejection.into()))),
    }
}
