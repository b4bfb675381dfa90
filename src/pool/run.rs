//! Runs the handlers of blocking kinds on the threads of their workers, and makes handlers of all kinds. `ticket.rs`
//! polls those of asynchronous kinds.

use tokio::time::Instant;
use tracing::{Span, warn};

use super::{
    blocking::{Done, Thread},
    factories::{BackOff, Try},
    inner::PoolInner,
    lease::Lease,
    outcome::{conclude, judge},
    trace::attempt_span,
};
use crate::{
    handler::{Contained, Context, Instance, contain},
    model::{Failure, HandlerError, Job, Output},
};

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

fn run_blocking(lease: &mut Lease, job: Box<Job>, cx: &Context) -> Result<Output, Box<Failure>> {
    let kind = cx.kind_id();
    let handler = match lease.take_handler(kind) {
        Some(handler) => handler,
        None => {
            let inner = lease.inner();
            let begun = begin_to_make(inner, cx)?;
            end_making(inner, cx, &begun, contain(|| inner.kind(kind).make()))?
        }
    };
    let mut handler = Contained::new(handler);
    let Instance::Blocking(running) = handler.get_mut() else { unreachable!("the kind says that it is blocking") };
    let result = match contain(|| running.handle(job, cx.clone())) {
        Ok(result) => {
            lease.put_back(kind, handler, &result);
            result
        }
        Err(message) => Err(HandlerError::Panicked { message }),
    };
    judge(result, cx, lease.inner())
}

/// Runs `code` in the span of a run.
pub(super) fn entered<T>(own: Option<&Span>, cx: &Context, code: impl FnOnce() -> T) -> T {
    own.unwrap_or(cx.span()).in_scope(code)
}

/// Starts to make a handler for a job, unless that failed a short while ago.
pub(super) fn begin_to_make(inner: &PoolInner, cx: &Context) -> Result<Try, Box<Failure>> {
    inner.factories.begin(cx.kind_id(), Instant::now()).map_err(|BackOff { left, last }| {
        let message = format!("no handler of kind {} could be made; the next attempt is later: {last}", cx.kind());
        Failure::without_handler(cx, HandlerError::Unavailable { message }, Some(left))
    })
}

/// Records the result of making a handler for a job: the handler, an error, or the message of a panic.
pub(super) fn end_making<T>(
    inner: &PoolInner,
    cx: &Context,
    begun: &Try,
    result: Result<Result<T, HandlerError>, String>,
) -> Result<T, Box<Failure>> {
    let kind = cx.kind_id();
    let (cause, is_panic) = match result {
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
