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
    conclude::{Told, conclude},
    core::JobKey,
    factories::Try,
    home::Shared,
    lease::Lease,
    trace::attempt_span,
};
use crate::{
    handler::{
        AsyncRun, Context, Instance,
        unwind::{Contained, contain},
    },
    model::{HandlerError, Job, JobError, Outcome, Output},
};

/// A poll that takes longer holds up every call of its thread.
const SLOW_POLL: Duration = Duration::from_millis(100);

/// One run of one job on one worker; as a future, the job's outcome, or `None` where that was decided before. An
/// asynchronous one owns the worker, so it can move to another task while it runs; dropping it cuts the handler off. A
/// blocking one goes on when it is dropped, and its thread gives the worker back.
pub(super) struct Attempt {
    // Fields drop in this order: the handler, then its lease, then the context, whose last clone ends a span and so
    // runs a subscriber's code, which must not happen under the lock of the pool.
    run: Run,
    /// Its own span; the call's where there is none.
    span: Option<Box<Span>>,
    hold: Holder,
    pub(super) kind: usize,
    /// The clock, as of the begin or of the last poll.
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
    Blocking(oneshot::Receiver<Told>),
    Over,
}

/// The start of a new handler, and the job that waits for it.
struct Starting {
    start: Contained<AsyncRun<()>>,
    job: Box<Job>,
    begun: Try,
}

/// Who has the worker.
enum Holder {
    Lease(Lease),
    /// The worker's thread, or the pool again.
    Elsewhere(Shared, JobKey),
}

/// How an attempt went wrong.
pub(super) enum Raised {
    Error(HandlerError),
    /// There is no handler, or nothing to run it on: the job did not start. With when to come back.
    BeforeBegin(HandlerError, Option<Duration>),
}

impl Attempt {
    /// Begins to run `job`; an asynchronous handler does so when it is polled. What is known at once not to begin is
    /// over.
    pub(super) fn new(
        mut lease: Lease,
        job: Box<Job>,
        kind: usize,
        cx: Context,
        now: Instant,
    ) -> Result<Self, JobError> {
        if lease.shell().kinds[kind].is_blocking() {
            let (shell, key) = (lease.shell().clone(), lease.key());
            let (done, told) = Done::new(&shell);
            return match lease.thread() {
                Ok(thread) => {
                    thread.run(Work::new(lease, job, kind, cx.clone(), done));
                    Ok(Self::elsewhere(shell, key, kind, cx, told))
                }
                Err(error) => {
                    let message = format!("the worker's thread could not be started: {error}");
                    let raised = Raised::BeforeBegin(HandlerError::Crashed { message }, None);
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

    /// One that the worker's own thread runs.
    pub(super) fn elsewhere(
        shell: Shared,
        key: JobKey,
        kind: usize,
        cx: Context,
        told: oneshot::Receiver<Told>,
    ) -> Self {
        let (run, hold) = (Run::Blocking(told), Holder::Elsewhere(shell, key));
        Self { run, span: None, hold, kind, seen: Instant::now(), is_polled: false, cx }
    }

    pub(super) fn shell(&self) -> &Shared {
        match &self.hold {
            Holder::Lease(lease) => lease.shell(),
            Holder::Elsewhere(shell, _) => shell,
        }
    }

    pub(super) fn key(&self) -> JobKey {
        match &self.hold {
            Holder::Lease(lease) => lease.key(),
            Holder::Elsewhere(_, key) => *key,
        }
    }

    pub(super) fn is_blocking(&self) -> bool {
        self.shell().kinds[self.kind].is_blocking()
    }

    /// Time since the run began.
    pub(super) fn run_time(&self) -> Duration {
        self.cx.ran(Instant::now())
    }

    /// Decides the outcome of a run that is not over. Returns whether it was open until then.
    pub(super) fn decide(&self, outcome: Outcome) -> bool {
        self.shell().end(self.key(), outcome, self.run_time(), &self.cx)
    }

    fn poll_async(&mut self, task: &mut std::task::Context<'_>) -> Poll<Result<Output, Raised>> {
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
                result.map_err(Raised::Error)
            }
            Err(message) => Err(Raised::Error(HandlerError::Panicked { message })),
        };
        // A future that panicked is dropped here, in the span of its run.
        self.run = Run::Over;
        Poll::Ready(result)
    }

    /// Begins to run once the handler has started.
    fn poll_start(&mut self, task: &mut std::task::Context<'_>) -> Poll<Result<(), Raised>> {
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
        let handler = self.shell().made(self.kind, &begun, started)?;
        self.run = Run::Async(Contained::new(handler.run(job, self.cx.clone())));
        Poll::Ready(Ok(()))
    }

    /// Gives the worker back, with the outcome of the job where it was not decided before.
    fn end(&mut self, result: Result<Output, Raised>) -> Option<Told> {
        self.span = None;
        let elsewhere = Holder::Elsewhere(self.shell().clone(), self.key());
        match std::mem::replace(&mut self.hold, elsewhere) {
            Holder::Lease(lease) => conclude(lease, self.kind, &self.cx, self.seen, result),
            Holder::Elsewhere(..) => unreachable!("what runs on a serving thread has its worker"),
        }
    }

    fn warn_slow(&self, took: Duration) {
        self.shell().count_slow_poll();
        self.cx.span().in_scope(|| {
            tracing::warn!(
                kind = %self.cx.kind(),
                job = %self.cx.job(),
                request_id = %self.cx.request_id(),
                duration_ms = took.as_millis(),
                "a handler held up its thread in one poll; make the kind blocking",
            );
        });
    }
}

impl Future for Attempt {
    type Output = Option<Told>;

    fn poll(mut self: Pin<&mut Self>, task: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        if let Run::Blocking(told) = &mut self.run {
            // A thread that tells nothing found the outcome decided.
            let told = ready!(told.poll_unpin(task)).ok();
            self.run = Run::Over;
            return Poll::Ready(told);
        }
        // The begin of the run is the begin of its first poll: a short job reads the clock once less.
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

/// Whether the worker keeps its handler. After a crash it makes a new one, so that its factory finds out whether it can.
pub(super) fn is_kept(result: &Result<Output, HandlerError>) -> bool {
    !matches!(result, Err(HandlerError::Crashed { .. } | HandlerError::Unavailable { .. }))
}

/// Runs `code` in the span of an attempt.
pub(super) fn entered<T>(own: Option<&Span>, cx: &Context, code: impl FnOnce() -> T) -> T {
    own.unwrap_or(cx.span()).in_scope(code)
}

/// Nothing runs: its caller is told at once, before the headers of a stream.
fn not_begun(lease: Lease, kind: usize, cx: &Context, now: Instant, raised: Raised) -> JobError {
    let told = conclude(lease, kind, cx, now, Err(raised)).expect("nobody decides for what did not begin");
    told.expect_err("it did not begin")
}

/// The handler's own code runs when its future is polled.
fn begin_async(lease: &mut Lease, job: Box<Job>, kind: usize, cx: &Context) -> Result<Run, Raised> {
    let kept = lease.take_handler(kind);
    let shell = lease.shell();
    let (instance, begun) = match kept {
        Some(instance) => (instance, None),
        None => {
            let begun = shell.begin_to_make(kind)?;
            match contain(|| shell.kinds[kind].make()) {
                Ok(Ok(instance)) => (instance, Some(begun)),
                failed => (shell.made(kind, &begun, failed)?, None),
            }
        }
    };
    let Instance::Async(handler) = instance else { unreachable!("the kind says that it is asynchronous") };
    Ok(match begun {
        None => Run::Async(Contained::new(handler.run(job, cx.clone()))),
        Some(begun) => {
            let start = Contained::new(handler.start(shell.site(kind)));
            Run::Starting(Box::new(Starting { start, job, begun }))
        }
    })
}
