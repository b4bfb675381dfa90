//! The run of a job: starts its handler, polls it once, and names its end. `outcome.rs` makes the outcome of the end.

use std::{
    panic::AssertUnwindSafe,
    sync::atomic::Ordering,
    task::{Context as TaskContext, Poll, ready},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::{Span, warn};

use super::{
    blocking::{Done, Thread},
    factories::{BackOff, Try},
    inner::PoolInner,
    lease::Lease,
    outcome::{conclude, judge, stopped},
    ticket::{State, Ticket, run_timeout},
    trace::attempt_span,
};
use crate::{
    handler::{AsyncInstance, Contained, Context, Instance, contain, panic_message},
    model::{Failure, HandlerError, Job, JobError, JobResult, Outcome, Output},
};

/// The settings are read only for longer polls.
const SHORTEST_SLOW_POLL: Duration = Duration::from_millis(1);

impl Ticket {
    /// Starts the run of a job that has its worker, unless it is too late. An asynchronous handler starts when it is
    /// polled.
    pub(super) fn start(&mut self, job: Box<Job>) -> Result<(), JobError> {
        self.seen = Instant::now();
        match self.begin_run(job) {
            Ok(state) => {
                self.state = state;
                Ok(())
            }
            Err(failure) => {
                // The answer is sent at once, before the headers of a stream.
                let ended = self.conclude(Err(failure)).expect("no other decides a run that did not begin");
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
        cx.begin(lease.worker(), self.seen, run_timeout(lease.inner(), &job, cx));
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
        polled.map(|result| self.conclude(result))
    }

    fn conclude(&mut self, result: Result<Output, Box<Failure>>) -> Option<JobResult> {
        self.span = None;
        conclude(&mut self.lease, &self.cx, self.seen, result)
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
                if is_kept(&result) {
                    self.lease.put_back(self.cx.kind_id(), handler);
                }
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
                request_id = %self.cx.request_id(),
                duration_ms = took.as_millis(),
                "one poll of a handler blocked its thread; make the kind blocking",
            );
        });
    }
}

/// Runs a job of a blocking kind on the thread of its worker. The thread decides the outcome and gives the worker back
/// under one lock of the pool.
pub(super) fn run_on_thread(thread: &Thread, lease: Lease, job: Box<Job>, cx: Context, done: Done) {
    let span = attempt_span(&cx, lease.worker());
    thread.run(Box::new(move || {
        // In the order in which they drop if the thread is gone: the last clone of the context ends its span, which
        // must not happen under the lock of the pool.
        let (mut lease, cx) = (lease, cx);
        let result = entered(span.as_deref(), &cx, || run_blocking(&mut lease, job, &cx));
        drop(span);
        let ended = cx.span().in_scope(|| conclude(&mut lease, &cx, Instant::now(), result));
        drop(lease);
        // By now the thread holds neither the pool nor the job. The job's span ends with the answer, and the process
        // may exit right after it.
        drop(cx);
        if let Some(ended) = ended {
            done.send(ended);
        }
    }));
}

/// Runs `code` in the span of a run.
fn entered<T>(own: Option<&Span>, cx: &Context, code: impl FnOnce() -> T) -> T {
    own.unwrap_or(cx.span()).in_scope(code)
}

/// Whether the worker keeps its handler. After a crash, the worker makes a new handler, which shows whether the factory
/// still works.
fn is_kept(result: &Result<Output, HandlerError>) -> bool {
    !matches!(result, Err(HandlerError::Crashed { .. } | HandlerError::Unavailable { .. }))
}

fn run_blocking(lease: &mut Lease, job: Box<Job>, cx: &Context) -> Result<Output, Box<Failure>> {
    let kind = cx.kind_id();
    let handler = match lease.take_handler(kind) {
        Some(handler) => handler,
        None => {
            let inner = lease.inner();
            let begun = begin_to_make(inner, cx)?;
            made(inner, cx, &begun, contain(|| inner.kind(kind).make()))?
        }
    };
    let mut handler = Contained::new(handler);
    let Instance::Blocking(running) = handler.get_mut() else { unreachable!("the kind says that it is blocking") };
    let result = match contain(|| running.handle(job, cx.clone())) {
        Ok(result) => {
            if is_kept(&result) {
                lease.put_back(kind, handler);
            }
            result
        }
        Err(message) => Err(HandlerError::Panicked { message }),
    };
    judge(result, cx, lease.inner())
}

/// The handler's own code runs only when the future is polled.
fn begin_async(lease: &mut Lease, job: Box<Job>, cx: &Context) -> Result<State, Box<Failure>> {
    let kind = cx.kind_id();
    if let Some(kept) = lease.take_handler(kind) {
        return Ok(State::Running(Contained::new(as_async(kept).run(job, cx.clone()))));
    }
    let (inner, cx) = (lease.inner().clone(), cx.clone());
    let begun = begin_to_make(&inner, &cx)?;
    let new = match contain(|| inner.kind(kind).make()) {
        Ok(Ok(new)) => as_async(new),
        failed => as_async(made(&inner, &cx, &begun, failed)?),
    };
    Ok(State::Starting(Box::pin(async move {
        let site = inner.site(kind);
        let start = AssertUnwindSafe(async { Contained::new(new.start(site)).get_mut().await });
        let started = start.catch_unwind().await.map_err(panic_message);
        let handler = made(&inner, &cx, &begun, started.map(|(handler, result)| result.map(|()| handler)))?;
        Ok(handler.run(job, cx))
    })))
}

fn as_async(instance: Instance) -> Box<dyn AsyncInstance> {
    match instance {
        Instance::Async(handler) => handler,
        Instance::Blocking(_) => unreachable!("the kind says that it is asynchronous"),
    }
}

/// Starts to make a handler for a job, unless that failed a short while ago.
fn begin_to_make(inner: &PoolInner, cx: &Context) -> Result<Try, Box<Failure>> {
    inner.factories.begin(cx.kind_id(), Instant::now()).map_err(|BackOff { left, last }| {
        let message = format!("no handler of kind {} could be made; the next attempt is later: {last}", cx.kind());
        Failure::without_handler(cx, HandlerError::Unavailable { message }, Some(left))
    })
}

/// Records the result of making a handler for a job: the handler, an error, or the message of a panic.
fn made<T>(
    inner: &PoolInner,
    cx: &Context,
    begun: &Try,
    made: Result<Result<T, HandlerError>, String>,
) -> Result<T, Box<Failure>> {
    let kind = cx.kind_id();
    let (cause, is_panic) = match made {
        Ok(Ok(made)) => {
            inner.factories.succeed(kind, begun);
            return Ok(made);
        }
        Ok(Err(error)) => (error.to_string(), false),
        Err(message) => (message, true),
    };
    let left = inner.factories.fail(kind, begun, Instant::now(), &cause);
    let retry_ms = left.as_millis();
    warn!(pool = %inner.name, kind = %cx.kind(), retry_ms, cause, "a handler could not be made");
    Err(if is_panic {
        Failure::without_handler(cx, HandlerError::Panicked { message: cause }, None)
    } else {
        let message = format!("no handler of kind {} could be made: {cause}", cx.kind());
        Failure::without_handler(cx, HandlerError::Unavailable { message }, Some(left))
    })
}
