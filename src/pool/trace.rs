use tracing::{Span, error_span};

use crate::{handler::Context, model::TRACE_TARGET};

/// Span of a job's wait in the queue, to be held until the wait ends; nothing where child spans are off.
pub(super) fn queue_span(cx: &Context) -> Span {
    if !cx.child_spans() {
        return Span::none();
    }
    error_span!(
        target: TRACE_TARGET,
        parent: cx.span(),
        "queue",
        otel.kind = "internal",
        request_id = cx.request_id().as_str(),
        job = %cx.job(),
        kind = &**cx.kind(),
        pool = &**cx.pool(),
    )
}

/// Span that one run of a job is polled in; the span of the call itself where child spans are off.
pub(super) fn attempt_span(cx: &Context, worker: u32) -> Span {
    if !cx.child_spans() {
        return cx.span().clone();
    }
    error_span!(
        target: TRACE_TARGET,
        parent: cx.span(),
        "process",
        otel.name = format!("process {}", cx.kind()),
        otel.kind = "consumer",
        messaging.operation.type = "process",
        messaging.destination.name = &**cx.pool(),
        request_id = cx.request_id().as_str(),
        job = %cx.job(),
        kind = &**cx.kind(),
        pool = &**cx.pool(),
        worker,
    )
}
