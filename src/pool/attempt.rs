use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Poll, ready},
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{sync::oneshot, time::Instant};
use tracing::{Instrument, Span};

use super::{
    core::JobKey,
    lease::Lease,
    shell::Shell,
    unwind::{Contained, contain, message},
};
use crate::{
    handler::{BlockingInstance, Context, Instance},
    model::{HandlerError, Job, Output},
};

/// A poll that takes longer holds up every call of its thread.
const SLOW_POLL: Duration = Duration::from_millis(100);

/// One run of one job on one worker. The future owns the worker, so it can move to another task while it runs;
/// dropping it cuts an asynchronous handler off. A blocking one goes on, and its thread gives the worker back.
pub(super) struct Attempt {
    future: BoxFuture<'static, Ended>,
    pub(super) shell: Arc<Shell>,
    pub(super) key: JobKey,
    pub(super) kind: usize,
    pub(super) cx: Context,
}

/// The end of an attempt.
pub(super) struct Ended {
    pub(super) lease: Lease,
    pub(super) result: Result<Output, Raised>,
    // After the lease: the last of a context ends its span, which runs a subscriber's code and must not happen under
    // the lock of the pool.
    pub(super) cx: Context,
}

/// How an attempt went wrong.
pub(super) enum Raised {
    Error(HandlerError),
    Panic(String),
}

impl Attempt {
    pub(super) fn new(lease: Lease, job: Job, kind: usize, cx: Context, span: Span) -> Self {
        let shell = Arc::clone(lease.shell());
        let key = lease.key();
        let future = if shell.kinds[kind].is_blocking() {
            run_blocking(lease, job, kind, cx.clone(), span).boxed()
        } else {
            run_async(lease, job, kind, cx.clone()).instrument(span).boxed()
        };
        Self { future, shell, key, kind, cx }
    }

    pub(super) fn is_blocking(&self) -> bool {
        self.shell.kinds[self.kind].is_blocking()
    }

    /// Time since the run began.
    pub(super) fn run_time(&self) -> Duration {
        self.cx.start().map_or(Duration::ZERO, |start| start.at.elapsed())
    }
}

impl Future for Attempt {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, task: &mut std::task::Context<'_>) -> Poll<Ended> {
        let begin = Instant::now();
        let polled = self.future.poll_unpin(task);
        let took = begin.elapsed();
        if took > SLOW_POLL {
            self.shell.count_slow_poll();
            let span = self.cx.span().clone();
            span.in_scope(|| {
                tracing::warn!(
                    kind = %self.cx.kind(),
                    job = %self.cx.job(),
                    request_id = %self.cx.request_id(),
                    duration_ms = took.as_millis(),
                    "a handler held up its thread in one poll; make the kind blocking",
                );
            });
        }
        Poll::Ready(ready!(polled))
    }
}

async fn run_async(mut lease: Lease, job: Job, kind: usize, cx: Context) -> Ended {
    let mut handler = match contain(|| lease.take_handler(kind)) {
        Ok(handler) => Contained::new(handler),
        Err(message) => return Ended { lease, result: Err(Raised::Panic(message)), cx },
    };
    let Instance::Async(running) = handler.get_mut() else { unreachable!("the kind says that it is asynchronous") };
    // The call itself may panic before it makes a future.
    let outcome = match contain(|| running.run(job, cx.clone())) {
        Ok(future) => {
            let mut future = Contained::new(future);
            AssertUnwindSafe(future.get_mut()).catch_unwind().await.map_err(message)
        }
        Err(message) => Err(message),
    };
    let result = match outcome {
        Ok(result) => {
            lease.put_back(kind, handler.into_inner());
            result.map_err(Raised::Error)
        }
        Err(message) => Err(Raised::Panic(message)),
    };
    Ended { lease, result, cx }
}

async fn run_blocking(mut lease: Lease, job: Job, kind: usize, cx: Context, span: Span) -> Ended {
    let thread = match lease.thread() {
        Ok(thread) => thread,
        Err(error) => {
            let message = format!("the worker's thread could not be started: {error}");
            return Ended { lease, result: Err(Raised::Error(HandlerError::Crashed { message })), cx };
        }
    };
    let (done, ended) = oneshot::channel();
    let taken = thread.run(move || {
        let ended = span.in_scope(|| run_on_thread(lease, job, kind, cx));
        // The attempt's span ends before the call that it belongs to is answered.
        drop(span);
        // Where nobody waits any more, dropping the end gives the worker back.
        let _ = done.send(ended);
    });
    debug_assert!(taken, "a worker's thread is free while its lease is");
    ended.await.expect("the thread sends the end of whatever it took")
}

fn run_on_thread(mut lease: Lease, job: Job, kind: usize, cx: Context) -> Ended {
    let mut handler = match contain(|| lease.take_handler(kind)) {
        Ok(handler) => Contained::new(handler),
        Err(message) => return Ended { lease, result: Err(Raised::Panic(message)), cx },
    };
    let Instance::Blocking(running) = handler.get_mut() else { unreachable!("the kind says that it is blocking") };
    let result = match contain(|| BlockingInstance::run(&mut **running, job, cx.clone())) {
        Ok(result) => {
            lease.put_back(kind, handler.into_inner());
            result.map_err(Raised::Error)
        }
        Err(message) => Err(Raised::Panic(message)),
    };
    Ended { lease, result, cx }
}
