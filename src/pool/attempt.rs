use std::{
    pin::Pin,
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{sync::oneshot, time::Instant};
use tracing::Span;

use super::{core::JobKey, lease::Lease, shell::Shell};
use crate::{
    handler::{
        AsyncRun, BlockingInstance, Context, Instance, identity,
        unwind::{Contained, contain},
    },
    model::{HandlerError, Job, Output},
};

/// A poll that takes longer holds up every call of its thread.
const SLOW_POLL: Duration = Duration::from_millis(100);

/// One run of one job on one worker. The future owns the worker, so it can move to another task while it runs;
/// dropping it cuts an asynchronous handler off. A blocking one goes on, and its thread gives the worker back.
pub(super) struct Attempt {
    // Fields drop in this order: the handler, then its lease, then the context, whose last clone ends a span and so
    // runs a subscriber's code, which must not happen under the lock of the pool.
    run: Run,
    span: Span,
    pub(super) shell: Arc<Shell>,
    pub(super) key: JobKey,
    pub(super) kind: usize,
    /// The clock, as of the begin or of the last poll.
    seen: Instant,
    pub(super) cx: Context,
}

enum Run {
    /// On the serving thread. The lease keeps the worker until the handler is gone.
    Async(Contained<AsyncRun>, Lease),
    /// On the worker's own thread, which has the lease.
    Blocking(oneshot::Receiver<Ended>),
    /// It did not begin.
    Failed(Lease, Raised),
    Over,
}

/// The end of an attempt.
pub(super) struct Ended {
    pub(super) lease: Lease,
    pub(super) result: Result<Output, Raised>,
    pub(super) kind: usize,
    pub(super) at: Instant,
    // After the lease, as in the attempt.
    pub(super) cx: Context,
}

/// How an attempt went wrong.
pub(super) enum Raised {
    Error(HandlerError),
    Panic(String),
}

impl Attempt {
    /// Begins to run `job`; an asynchronous handler does so when it is polled.
    pub(super) fn new(lease: Lease, job: Box<Job>, kind: usize, cx: Context, span: Span, now: Instant) -> Self {
        let shell = Arc::clone(lease.shell());
        let key = lease.key();
        let run = if shell.kinds[kind].is_blocking() {
            begin_blocking(lease, job, kind, cx.clone(), span.clone())
        } else {
            span.in_scope(|| begin_async(lease, job, kind, &cx))
        };
        Self { run, span, shell, key, kind, seen: now, cx }
    }

    pub(super) fn is_blocking(&self) -> bool {
        self.shell.kinds[self.kind].is_blocking()
    }

    /// Time since the run began.
    pub(super) fn run_time(&self) -> Duration {
        self.cx.start().map_or(Duration::ZERO, |start| start.at.elapsed())
    }

    fn poll_run(&mut self, task: &mut std::task::Context<'_>) -> Poll<(Lease, Result<Output, Raised>)> {
        match std::mem::replace(&mut self.run, Run::Over) {
            Run::Async(mut run, mut lease) => {
                let _entered = self.span.enter();
                match contain(|| identity::within(&self.cx, || run.get_mut().poll_unpin(task))) {
                    Ok(Poll::Pending) => {
                        self.run = Run::Async(run, lease);
                        Poll::Pending
                    }
                    Ok(Poll::Ready((handler, result))) => {
                        lease.put_back(self.kind, Instance::Async(handler));
                        Poll::Ready((lease, result.map_err(Raised::Error)))
                    }
                    Err(message) => {
                        drop(run);
                        Poll::Ready((lease, Err(Raised::Panic(message))))
                    }
                }
            }
            Run::Blocking(mut ended) => match ended.poll_unpin(task) {
                Poll::Pending => {
                    self.run = Run::Blocking(ended);
                    Poll::Pending
                }
                Poll::Ready(ended) => {
                    let ended = ended.expect("the thread sends the end of whatever it took");
                    Poll::Ready((ended.lease, ended.result))
                }
            },
            Run::Failed(lease, raised) => Poll::Ready((lease, Err(raised))),
            Run::Over => unreachable!("an attempt is not polled after its end"),
        }
    }

    fn warn_slow(&self, took: Duration) {
        self.shell.count_slow_poll();
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
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, task: &mut std::task::Context<'_>) -> Poll<Ended> {
        let first = self.cx.start().is_some_and(|start| start.at == self.seen);
        // The begin of the run is the begin of its first poll: a short job reads the clock once less.
        let begin = if first { self.seen } else { Instant::now() };
        let polled = self.poll_run(task);
        let now = Instant::now();
        self.seen = now;
        if now - begin > SLOW_POLL && !self.is_blocking() {
            self.warn_slow(now - begin);
        }
        let (lease, result) = ready!(polled);
        Poll::Ready(Ended { lease, result, kind: self.kind, at: now, cx: self.cx.clone() })
    }
}

fn begin_async(mut lease: Lease, job: Box<Job>, kind: usize, cx: &Context) -> Run {
    let handler = match contain(|| lease.take_handler(kind)) {
        Ok(Instance::Async(handler)) => handler,
        Ok(Instance::Blocking(_)) => unreachable!("the kind says that it is asynchronous"),
        Err(message) => return Run::Failed(lease, Raised::Panic(message)),
    };
    // The call itself may panic before it makes a future.
    match contain(|| identity::within(cx, || handler.run(job, cx.clone()))) {
        Ok(run) => Run::Async(Contained::new(run), lease),
        Err(message) => Run::Failed(lease, Raised::Panic(message)),
    }
}

fn begin_blocking(mut lease: Lease, job: Box<Job>, kind: usize, cx: Context, span: Span) -> Run {
    let thread = match lease.thread() {
        Ok(thread) => thread,
        Err(error) => {
            let message = format!("the worker's thread could not be started: {error}");
            return Run::Failed(lease, Raised::Error(HandlerError::Crashed { message }));
        }
    };
    let (done, ended) = oneshot::channel();
    let taken = thread.run(move || {
        let scope = cx.clone();
        let ended = identity::within(&scope, || span.in_scope(|| run_on_thread(lease, job, kind, cx)));
        // The attempt's span ends before the call that it belongs to is answered, and the call's own with the answer.
        drop((span, scope));
        // Where nobody waits any more, dropping the end gives the worker back.
        let _ = done.send(ended);
    });
    debug_assert!(taken, "a worker's thread is free while its lease is");
    Run::Blocking(ended)
}

fn run_on_thread(mut lease: Lease, job: Box<Job>, kind: usize, cx: Context) -> Ended {
    let at = Instant::now();
    let mut handler = match contain(|| lease.take_handler(kind)) {
        Ok(handler) => Contained::new(handler),
        Err(message) => return Ended { lease, result: Err(Raised::Panic(message)), kind, at, cx },
    };
    let Instance::Blocking(running) = handler.get_mut() else { unreachable!("the kind says that it is blocking") };
    let result = match contain(|| BlockingInstance::run(&mut **running, job, cx.clone())) {
        Ok(result) => {
            lease.put_back(kind, handler.into_inner());
            result.map_err(Raised::Error)
        }
        Err(message) => Err(Raised::Panic(message)),
    };
    Ended { lease, result, kind, at, cx }
}
