//! One run of one job. `outcome.rs` turns its end into the outcome, and `stop.rs` stops it.

use std::{
    pin::Pin,
    task::{Poll, ready},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{sync::oneshot, time::Instant};
use tracing::Span;

use super::{
    blocking::{Done, Work},
    factories::Try,
    lease::Lease,
    outcome::{JobResult, conclude},
    shard::Shared,
    trace::attempt_span,
};
use crate::{
    handler::{AsyncRun, Contained, Context, Instance, contain},
    model::{HandlerError, Job, JobError, Outcome, Output},
    scheduler::JobKey,
};

/// A longer poll delays every call of its thread.
const SLOW_POLL: Duration = Duration::from_millis(100);

/// One run of one job on one worker. As a future, it returns the job's result, or `None` if the outcome was decided
/// before. An asynchronous run owns its worker and may move to another task; dropping the run cuts the handler off. A
/// dropped blocking run continues, and its thread gives the worker back.
pub(super) struct Attempt {
    // Fields drop in this order: the handler, then its lease, then the context. The last clone of the context ends a
    // span, which runs code of a subscriber, and must not happen under the lock of the pool.
    run: Run,
    /// Its own span; `None` if the call's span is enough.
    span: Option<Box<Span>>,
    hold: Holder,
    pub(super) kind: usize,
    /// Time of the start or of the last poll.
    seen: Instant,
    is_polled: bool,
    pub(super) cx: Context,
}

enum Run {
    /// Its handler is new, and starts on the serving thread.
    Starting(Box<Starting>),
    /// On the serving thread.
    Async(Contained<AsyncRun>),
    /// On the worker's own thread, which decides the outcome.
    Blocking(oneshot::Receiver<JobResult>),
    Over,
}

/// The start of a new handler, and the job that waits for it.
struct Starting {
    start: Contained<AsyncRun<()>>,
    job: Box<Job>,
    begun: Try,
}

/// The owner of the worker.
enum Holder {
    Lease(Lease),
    /// The worker's thread, or the pool again.
    Elsewhere(Shared, JobKey),
}

/// Why an attempt failed.
pub(super) enum AttemptError {
    Error(HandlerError),
    /// There is no handler, or no thread for it, so the job did not start. Includes the retry time.
    BeforeBegin(HandlerError, Option<Duration>),
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
                    let raised = AttemptError::BeforeBegin(HandlerError::Crashed { message }, None);
                    Err(not_begun(lease, kind, &cx, now, raised))
                }
            };
        }
        let span = attempt_span(&cx, lease.worker());
        match entered(span.as_deref(), &cx, || begin_async(&mut lease, job, kind, &cx)) {
            Ok(run) => {
                let hold = Holder::Lease(lease);
                Ok(Self { run, span, hold, kind, seen: now, is_polled: false, cx })
            }
            Err(raised) => {
                drop(span);
                Err(not_begun(lease, kind, &cx, now, raised))
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
        let (run, hold) = (Run::Blocking(ended), Holder::Elsewhere(inner, key));
        Self { run, span: None, hold, kind, seen: Instant::now(), is_polled: false, cx }
    }

    pub(super) fn inner(&self) -> &Shared {
        match &self.hold {
            Holder::Lease(lease) => lease.inner(),
            Holder::Elsewhere(inner, _) => inner,
        }
    }

    pub(super) fn key(&self) -> JobKey {
        match &self.hold {
            Holder::Lease(lease) => lease.key(),
            Holder::Elsewhere(_, key) => *key,
        }
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

    fn poll_async(&mut self, task: &mut std::task::Context<'_>) -> Poll<Result<Output, AttemptError>> {
        if let Run::Starting(_) = self.run {
            ready!(self.poll_start(task))?;
        }
        let Run::Async(run) = &mut self.run else { unreachable!("it runs on the serving thread until it is over") };
        let _entered = self.span.as_deref().unwrap_or(self.cx.span()).enter();
        let polled = contain(|| run.get_mut().poll_unpin(task));
        let result = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready((handler, result))) => {
                let handler = Contained::new(Instance::Async(handler));
                if let Holder::Lease(lease) = &mut self.hold
                    && is_kept(&result)
                {
                    lease.put_back(self.kind, handler);
                }
                result.map_err(AttemptError::Error)
            }
            Err(message) => Err(AttemptError::Error(HandlerError::Panicked { message })),
        };
        // A future that panicked is dropped here, in the span of its run.
        self.run = Run::Over;
        Poll::Ready(result)
    }

    /// Starts the run once the handler has started.
    fn poll_start(&mut self, task: &mut std::task::Context<'_>) -> Poll<Result<(), AttemptError>> {
        let Run::Starting(mut starting) = std::mem::replace(&mut self.run, Run::Over) else {
            return Poll::Ready(Ok(()));
        };
        let polled = entered(self.span.as_deref(), &self.cx, || contain(|| starting.start.get_mut().poll_unpin(task)));
        let started = match polled {
            Ok(Poll::Pending) => {
                self.run = Run::Starting(starting);
                return Poll::Pending;
            }
            Ok(Poll::Ready((handler, result))) => Ok(result.map(|()| handler)),
            Err(panic) => Err(panic),
        };
        let Starting { start: _, job, begun } = *starting;
        let handler = self.inner().made(self.kind, &begun, started)?;
        self.run = Run::Async(Contained::new(handler.run(job, self.cx.clone())));
        Poll::Ready(Ok(()))
    }

    /// Gives the worker back, with the job's outcome unless it was decided before.
    fn end(&mut self, result: Result<Output, AttemptError>) -> Option<JobResult> {
        self.span = None;
        let elsewhere = Holder::Elsewhere(self.inner().clone(), self.key());
        match std::mem::replace(&mut self.hold, elsewhere) {
            Holder::Lease(lease) => conclude(lease, self.kind, &self.cx, self.seen, result),
            Holder::Elsewhere(..) => unreachable!("a run on a serving thread has its worker"),
        }
    }

    fn warn_slow(&self, took: Duration) {
        self.inner().count_slow_poll();
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
        if took > SLOW_POLL {
            self.warn_slow(took);
        }
        polled.map(|result| self.end(result))
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
fn not_begun(lease: Lease, kind: usize, cx: &Context, now: Instant, raised: AttemptError) -> JobError {
    let ended = conclude(lease, kind, cx, now, Err(raised)).expect("no other decides a run that did not begin");
    ended.expect_err("it did not begin")
}

/// The handler's own code runs only when the future is polled.
fn begin_async(lease: &mut Lease, job: Box<Job>, kind: usize, cx: &Context) -> Result<Run, AttemptError> {
    let kept = lease.take_handler(kind);
    let inner = lease.inner();
    let (instance, begun) = match kept {
        Some(instance) => (instance, None),
        None => {
            let begun = inner.begin_to_make(kind)?;
            match contain(|| inner.kinds[kind].make()) {
                Ok(Ok(instance)) => (instance, Some(begun)),
                failed => (inner.made(kind, &begun, failed)?, None),
            }
        }
    };
    let Instance::Async(handler) = instance else { unreachable!("the kind says that it is asynchronous") };
    Ok(match begun {
        None => Run::Async(Contained::new(handler.run(job, cx.clone()))),
        Some(begun) => {
            let start = Contained::new(handler.start(inner.site(kind)));
            Run::Starting(Box::new(Starting { start, job, begun }))
        }
    })
}
