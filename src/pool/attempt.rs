use std::{
    pin::Pin,
    task::{Poll, ready},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{sync::oneshot, time::Instant};
use tracing::Span;

use super::{
    core::{Ending, JobKey},
    home::Shared,
    lease::Lease,
    trace::attempt_span,
};
use crate::{
    handler::{
        AsyncRun, BlockingInstance, Context, Instance, identity,
        unwind::{Contained, contain},
    },
    model::{FailureCause, HandlerError, Job, Output},
};

/// A poll that takes longer holds up every call of its thread.
const SLOW_POLL: Duration = Duration::from_millis(100);

/// One run of one job on one worker; as a future, what the handler made of it. It owns the worker, so it can move to
/// another task while it runs; dropping it cuts an asynchronous handler off. A blocking one goes on, and its thread gives
/// the worker back.
pub(super) struct Attempt {
    // Fields drop in this order: the handler, then its lease, then the context, whose last clone ends a span and so
    // runs a subscriber's code, which must not happen under the lock of the pool.
    run: Run,
    /// Its own span; the call's where there is none.
    span: Option<Box<Span>>,
    hold: Hold,
    pub(super) kind: usize,
    /// The clock, as of the begin or of the last poll.
    seen: Instant,
    is_polled: bool,
    pub(super) cx: Context,
}

enum Run {
    /// On the serving thread.
    Async(Contained<AsyncRun>),
    /// On the worker's own thread, which has the lease and sends it with the result.
    Blocking(oneshot::Receiver<Ended>),
    /// It did not begin.
    Failed(Raised),
    Over,
}

/// Who has the worker.
enum Hold {
    Lease(Lease),
    Thread(Shared, JobKey),
}

/// The end of a run on a worker's own thread.
struct Ended {
    lease: Lease,
    result: Result<Output, Raised>,
    // After the lease, as in the attempt: where nobody waits for the end, it is dropped on the thread.
    _cx: Context,
}

/// How an attempt went wrong.
pub(super) enum Raised {
    Error(HandlerError),
    Panic(String),
    /// There is no handler, or nothing to run it on: the job did not start.
    BeforeBegin(FailureCause),
}

impl Attempt {
    /// Begins to run `job`; an asynchronous handler does so when it is polled.
    pub(super) fn new(mut lease: Lease, job: Box<Job>, kind: usize, cx: Context, now: Instant) -> Self {
        let span = attempt_span(&cx, lease.worker());
        let blocking = lease.shell().kinds[kind].is_blocking();
        let (run, hold) = if blocking {
            begin_blocking(lease, job, kind, cx.clone(), span.clone())
        } else {
            let run = entered(span.as_deref(), &cx, || begin_async(&mut lease, job, kind, &cx));
            (run, Hold::Lease(lease))
        };
        Self { run, span, hold, kind, seen: now, is_polled: false, cx }
    }

    pub(super) fn shell(&self) -> &Shared {
        match &self.hold {
            Hold::Lease(lease) => lease.shell(),
            Hold::Thread(shell, _) => shell,
        }
    }

    pub(super) fn key(&self) -> JobKey {
        match &self.hold {
            Hold::Lease(lease) => lease.key(),
            Hold::Thread(_, key) => *key,
        }
    }

    pub(super) fn is_blocking(&self) -> bool {
        self.shell().kinds[self.kind].is_blocking()
    }

    /// Why it did not begin, where that is known without a poll: only a blocking handler is made later, on its thread.
    /// Such an attempt is over.
    pub(super) fn take_failure(&mut self) -> Option<Raised> {
        if !matches!(self.run, Run::Failed(_)) {
            return None;
        }
        match std::mem::replace(&mut self.run, Run::Over) {
            Run::Failed(raised) => Some(raised),
            Run::Async(_) | Run::Blocking(_) | Run::Over => unreachable!("it was seen to have failed"),
        }
    }

    /// Time since the run began.
    pub(super) fn run_time(&self) -> Duration {
        self.cx.ran(Instant::now())
    }

    /// The clock, as of the begin or of the last poll.
    pub(super) fn seen(&self) -> Instant {
        self.seen
    }

    /// Gives the worker of an attempt that is over back with the outcome of its job.
    pub(super) fn finish(self, ending: Ending, run: Duration) {
        let Self { run: _, span, hold, kind: _, seen, is_polled: _, cx } = self;
        drop(span);
        if let Hold::Lease(lease) = hold {
            lease.finish(ending, run, seen);
        }
        drop(cx);
    }

    fn poll_run(&mut self, task: &mut std::task::Context<'_>) -> Poll<Result<Output, Raised>> {
        let result = match &mut self.run {
            Run::Async(run) => {
                let _entered = self.span.as_deref().unwrap_or(self.cx.span()).enter();
                let polled = contain(|| identity::within(&self.cx, || run.get_mut().poll_unpin(task)));
                let result = match polled {
                    Ok(Poll::Pending) => return Poll::Pending,
                    Ok(Poll::Ready((handler, result))) => {
                        let handler = Contained::new(Instance::Async(handler));
                        if let Hold::Lease(lease) = &mut self.hold
                            && is_kept(&result)
                        {
                            lease.put_back(self.kind, handler.into_inner());
                        }
                        result.map_err(Raised::Error)
                    }
                    Err(message) => Err(Raised::Panic(message)),
                };
                // A future that panicked is dropped here, in the span of its run.
                self.run = Run::Over;
                return Poll::Ready(result);
            }
            Run::Blocking(ended) => {
                let ended = ready!(ended.poll_unpin(task)).expect("the thread sends the end of what it took");
                let Ended { lease, result, _cx } = ended;
                self.hold = Hold::Lease(lease);
                result
            }
            Run::Failed(_) | Run::Over => unreachable!("an attempt is not polled after its end"),
        };
        self.run = Run::Over;
        Poll::Ready(result)
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
    type Output = Result<Output, Raised>;

    fn poll(mut self: Pin<&mut Self>, task: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        // The begin of the run is the begin of its first poll: a short job reads the clock once less.
        let begin = if self.is_polled { Instant::now() } else { self.seen };
        self.is_polled = true;
        let polled = self.poll_run(task);
        self.seen = Instant::now();
        let took = self.seen - begin;
        if took > SLOW_POLL && !self.is_blocking() {
            self.warn_slow(took);
        }
        polled
    }
}

/// Whether the worker keeps its handler. After a crash it makes a new one, so that its factory finds out whether it can.
fn is_kept(result: &Result<Output, HandlerError>) -> bool {
    !matches!(result, Err(HandlerError::Crashed { .. } | HandlerError::Unavailable { .. }))
}

/// Runs `code` in the span of an attempt.
fn entered<T>(own: Option<&Span>, cx: &Context, code: impl FnOnce() -> T) -> T {
    own.unwrap_or(cx.span()).in_scope(code)
}

fn begin_async(lease: &mut Lease, job: Box<Job>, kind: usize, cx: &Context) -> Run {
    match lease.take_handler(kind) {
        // The handler's own code runs when its future is polled.
        Ok(Instance::Async(handler)) => Run::Async(Contained::new(handler.run(job, cx.clone()))),
        Ok(Instance::Blocking(_)) => unreachable!("the kind says that it is asynchronous"),
        Err(raised) => Run::Failed(raised),
    }
}

fn begin_blocking(mut lease: Lease, job: Box<Job>, kind: usize, cx: Context, span: Option<Box<Span>>) -> (Run, Hold) {
    let hold = Hold::Thread(lease.shell().clone(), lease.key());
    let thread = match lease.thread() {
        Ok(thread) => thread,
        Err(error) => {
            let message = format!("the worker's thread could not be started: {error}");
            let cause = FailureCause::Handler(HandlerError::Crashed { message });
            return (Run::Failed(Raised::BeforeBegin(cause)), Hold::Lease(lease));
        }
    };
    let (done, ended) = oneshot::channel();
    let taken = thread.run(move || {
        let run = || run_on_thread(&mut lease, job, kind, &cx);
        let result = identity::within(&cx, || entered(span.as_deref(), &cx, run));
        // The attempt's span ends before the call that it belongs to is answered, and the call's own with the answer.
        drop(span);
        // Where nobody waits any more, dropping the end gives the worker back.
        let _ = done.send(Ended { lease, result, _cx: cx });
    });
    debug_assert!(taken, "a worker's thread is free while its lease is");
    (Run::Blocking(ended), hold)
}

fn run_on_thread(lease: &mut Lease, job: Box<Job>, kind: usize, cx: &Context) -> Result<Output, Raised> {
    let mut handler = Contained::new(lease.take_handler(kind)?);
    let Instance::Blocking(running) = handler.get_mut() else { unreachable!("the kind says that it is blocking") };
    match contain(|| BlockingInstance::run(&mut **running, job, cx.clone())) {
        Ok(result) => {
            if is_kept(&result) {
                lease.put_back(kind, handler.into_inner());
            }
            result.map_err(Raised::Error)
        }
        Err(message) => Err(Raised::Panic(message)),
    }
}
