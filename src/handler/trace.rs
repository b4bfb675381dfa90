use opentelemetry::{
    Context as OtelContext,
    trace::{SpanContext, TraceContextExt, TraceFlags},
};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::Context;
use crate::model::TraceContext;

impl Context {
    /// The trace context to hand on to whatever the handler calls.
    ///
    /// Where the call is sampled, its parent is the innermost exported span that is entered, which is the attempt's
    /// unless the handler made its own; outside of any, it is the call's. Where the call is not sampled it is what was
    /// received, unchanged. The baggage is always what was received.
    #[must_use]
    pub fn outgoing_trace(&self) -> Option<TraceContext> {
        let received = self.trace();
        let sampled = if self.child_spans() { self.sampled_span() } else { None };
        let Some(span) = sampled else {
            return received.cloned();
        };
        Some(TraceContext {
            traceparent: format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), TraceFlags::SAMPLED),
            tracestate: span.trace_state().header(),
            baggage: received.map(|trace| trace.baggage.clone()).unwrap_or_default(),
        })
    }

    fn sampled_span(&self) -> Option<SpanContext> {
        let usable = |cx: OtelContext| {
            let span = cx.span().span_context().clone();
            (span.is_valid() && span.is_sampled()).then_some(span)
        };
        usable(OtelContext::current()).or_else(|| usable(self.span().context()))
    }
}
