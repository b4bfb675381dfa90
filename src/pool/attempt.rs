//! One run of one job. `outcome.rs` turns its end into the outcome, and `running_job.rs` stops it.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::atomic::Ordering,
    task::{Poll, ready},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{sync::oneshot, time::Instant};
use tracing::Span;

use super::{
    blocking::{Done, Work},
    lease::Lease,
    outcome::{Fault, JobResult, conclude, judge},
    shard::Shared,
    trace::attempt_span,
};
use crate::{
    handler::{AsyncInstance, AsyncRun, Contained, Context, Instance, contain, panic_message},
    model::{HandlerError, Job, JobError, Outcome, Output},
    scheduler::JobKey,
};

/// The settings are read only for longer polls.
const SHORTEST_SLOW_POLL: Duration = Duration::from_millis(1);

/// One run of one job on one worker. As a future, it returns the job's result, or `None` if the outcome was decided
/// before. An asynchronous run owns its worker and may move to another task; dropping the run cuts the handler off. A
/// dropped blocking run continues, and its thread gives the worker back.
pub(super) struct Attempt {
    // Fields drop in this order: the handler, then its lease, then the context. The last clone of the context ends a
    // span, which runs code of a subscriber, and must not happen under the lock of the pool.
    run: Run,
    /// Its own span; `None` if the call's span is enough.
    span: Option<Box<Span>>,
    lease: Lease,
    pub(super) kind: usize,
    /// Time of the start or of the last poll.
    seen: Instant,
    is_polled: bool,
    pub(super) cx: Context,
}

enum Run {
    /// Its handler is new, and starts on the serving thread.
    Starting(BoxFuture<'static, Result<AsyncRun, Fault>>),
    /// On the serving thread.
    Async(Contained<AsyncRun>),
    /// On the worker's own thread, which decides the outcome.
    Blocking(oneshot::Receiver<JobResult>),
    Over,
}

impl Attempt {
    /// Starts to run `job`; an asynchronous handler starts when it is polled. Fails if the run cannot start.
    pub(super) fn new(
        mut lease: Lease,
        job: Box<Job>,
        kind: usize,
        cx: Context,
        now: Instant,
    ) -> Result<Self, JobError> {
        if lease.inner().kinds[kind].is_blocking() {
            let (inner, key) = (lease.inner().clone(), lease.key());
            let (done, ended) = Done::new(&inner);
            return match lease.thread() {
                Ok(thread) => {
                    thread.run(Work::new(lease, job, kind, cx.clone(), done));
                    Ok(Self::elsewhere(inner, key, kind, cx, ended))
                }
                Err(error) => {
                    let message = format!("the worker's thread could not be started: {error}");
                    let fault = Fault::not_begun(HandlerError::Crashed { message }, None);
                    Err(not_begun(lease, kind, &cx, now, fault))
                }
            };
        }
        let span = attempt_span(&cx, lease.worker());
        match entered(span.as_deref(), &cx, || begin_async(&mut lease, job, kind, &cx)) {
            Ok(run) => Ok(Self { run, span, lease, kind, seen: now, is_polled: false, cx }),
            Err(fault) => {
                drop(span);
                Err(not_begun(lease, kind, &cx, now, fault))
            }
        }
    }

    /// An attempt that the worker's own thread runs.
    pub(super) fn elsewhere(
        inner: Shared,
        key: JobKey,
        kind: usize,
        cx: Context,
        ended: oneshot::Receiver<JobResult>,
    ) -> Self {
        let (run, lease) = (Run::Blocking(ended), Lease::of_thread(inner, key));
        Self { run, span: None, lease, kind, seen: Instant::now(), is_polled: false, cx }
    }

    pub(super) fn inner(&self) -> &Shared {
        self.lease.inner()
    }

    pub(super) fn key(&self) -> JobKey {
        self.lease.key()
    }

    pub(super) fn is_blocking(&self) -> bool {
        self.inner().kinds[self.kind].is_blocking()
    }

    /// Time since the start of the run.
    pub(super) fn run_time(&self) -> Duration {
        self.cx.ran(Instant::now())
    }

    /// Decides the outcome of a run that has not ended. Returns false if the outcome was decided before.
    pub(super) fn decide(&self, outcome: Outcome) -> bool {
        self.inner().end(self.key(), outcome, self.run_time(), &self.cx)
    }

    fn poll_async(&mut self, task: &mut std::task::Context<'_>) -> Poll<Result<Output, Fault>> {
        if let Run::Starting(start) = &mut self.run {
            let started = ready!(entered(self.span.as_deref(), &self.cx, || start.poll_unpin(task)));
            self.run = Run::Over;
            self.run = Run::Async(Contained::new(started?));
        }
        let Run::Async(run) = &mut self.run else { unreachable!("it runs on the serving thread until it is over") };
        let _entered = self.span.as_deref().unwrap_or(self.cx.span()).enter();
        let polled = contain(|| run.get_mut().poll_unpin(task));
        let result = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready((handler, result))) => {
                let handler = Contained::new(Instance::Async(handler));
                if is_kept(&result) {
                    self.lease.put_back(self.kind, handler);
                }
                result
            }
            Err(message) => Err(HandlerError::Panicked { message }),
        };
        // A future that panicked is dropped here, in the span of its run.
        self.run = Run::Over;
        Poll::Ready(judge(result, &self.cx, self.lease.inner()))
    }

    fn warn_slow(&self, took: Duration) {
        self.inner().slow_polls.fetch_add(1, Ordering::Relaxed);
        self.cx.span().in_scope(|| {
            tracing::warn!(
                kind = %self.cx.kind(),
                job = %self.cx.job(),
                request_id = %self.cx.request_id(),
                duration_ms = took.as_millis(),
                "one poll of a handler blocked its thread; make the kind blocking",
            );
        });
    }
}

impl Future for Attempt {
    type Output = Option<JobResult>;

    fn poll(mut self: Pin<&mut Self>, task: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        if let Run::Blocking(ended) = &mut self.run {
            // A thread that sends nothing found the outcome already decided.
            let ended = ready!(ended.poll_unpin(task)).ok();
            self.run = Run::Over;
            return Poll::Ready(ended);
        }
        // The run starts with its first poll, which saves a short job one reading of the clock.
        let begin = if self.is_polled { Instant::now() } else { self.seen };
        self.is_polled = true;
        let polled = self.poll_async(task);
        self.seen = Instant::now();
        let took = self.seen - begin;
        if took > SHORTEST_SLOW_POLL && took > self.inner().settings.slow_poll {
            self.warn_slow(took);
        }
        polled.map(|result| {
            let this = &mut *self;
            this.span = None;
            conclude(&mut this.lease, this.kind, &this.cx, this.seen, result)
        })
    }
}

/// Whether the worker keeps its handler. After a crash, the worker makes a new handler, which shows whether the factory
/// still works.
pub(super) fn is_kept(result: &Result<Output, HandlerError>) -> bool {
    !matches!(result, Err(HandlerError::Crashed { .. } | HandlerError::Unavailable { .. }))
}

/// Runs `code` in the span of an attempt.
pub(super) fn entered<T>(own: Option<&Span>, cx: &Context, code: impl FnOnce() -> T) -> T {
    own.unwrap_or(cx.span()).in_scope(code)
}

/// The answer for a job whose run did not start. It is sent at once, before the headers of a stream.
fn not_begun(mut lease: Lease, kind: usize, cx: &Context, now: Instant, fault: Fault) -> JobError {
    let ended = conclude(&mut lease, kind, cx, now, Err(fault)).expect("no other decides a run that did not begin");
    ended.expect_err("it did not begin")
}

/// The handler's own code runs only when the future is polled.
fn begin_async(lease: &mut Lease, job: Box<Job>, kind: usize, cx: &Context) -> Result<Run, Fault> {
    if let Some(kept) = lease.take_handler(kind) {
        return Ok(Run::Async(Contained::new(as_async(kept).run(job, cx.clone()))));
    }
    let (inner, cx) = (lease.inner().clone(), cx.clone());
    let begun = inner.begin_to_make(kind)?;
    let made = match contain(|| inner.kinds[kind].make()) {
        Ok(Ok(made)) => as_async(made),
        failed => as_async(inner.made(kind, &begun, failed)?),
    };
    Ok(Run::Starting(Box::pin(async move {
        let site = inner.site(kind);
        let start = AssertUnwindSafe(async { Contained::new(made.start(site)).get_mut().await });
        let started = start.catch_unwind().await.map_err(panic_message);
        let handler = inner.made(kind, &begun, started.map(|(handler, result)| result.map(|()| handler)))?;
        Ok(handler.run(job, cx))
    })))
}

fn as_async(instance: Instance) -> Box<dyn AsyncInstance> {
    match instance {
        Instance::Async(handler) => handler,
        Instance::Blocking(_) => unreachable!("the kind says that it is asynchronous"),
    }
}
