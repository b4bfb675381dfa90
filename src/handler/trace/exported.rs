//! The parent of the calls of a handler: the current exported span.

use opentelemetry::{
    Context as OtelContext,
    trace::{SpanContext, TraceContextExt, TraceFlags},
};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{handler::Context, model::TraceContext};

impl Context {
    /// The trace context with the current exported span as the parent, in a sampled call.
    pub(super) fn sampled(&self) -> Option<TraceContext> {
        let span = self.child_spans().then(|| self.sampled_span())??;
        Some(TraceContext {
            traceparent: format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), TraceFlags::SAMPLED),
            tracestate: span.trace_state().header(),
            baggage: self.trace().map(|trace| trace.baggage.clone()).unwrap_or_default(),
        })
    }

    /// Id of the trace of the call's own span, if that is exported.
    pub(super) fn exported_trace_id(&self) -> Option<Box<str>> {
        let span = self.child_spans().then(|| self.sampled_span())??;
        Some(span.trace_id().to_string().into())
    }

    fn sampled_span(&self) -> Option<SpanContext> {
        let usable = |cx: OtelContext| {
            let span = cx.span().span_context().clone();
            (span.is_valid() && span.is_sampled()).then_some(span)
        };
        usable(OtelContext::current()).or_else(|| usable(self.span().context()))
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing::{Span, info_span, subscriber::DefaultGuard};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::{handler::ContextParts, model::Call};

    fn received() -> TraceContext {
        TraceContext {
            traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00".into(),
            tracestate: "a=1".into(),
            baggage: "k=v".into(),
        }
    }

    fn traced() -> DefaultGuard {
        let tracer = SdkTracerProvider::builder().build().tracer("test");
        let layer = tracing_opentelemetry::layer().with_tracer(tracer);
        tracing::subscriber::set_default(tracing_subscriber::registry().with(layer))
    }

    fn id(span: &Span) -> String {
        span.context().span().span_context().span_id().to_string()
    }

    #[test]
    fn a_call_that_is_not_traced_hands_on_what_it_got() {
        let _guard = traced();
        let other = info_span!("other").entered();
        for trace in [Some(received()), None] {
            let cx =
                Context::new(ContextParts::of(Call { trace: trace.clone(), child_spans: false, ..Call::sample() }));
            assert_eq!(cx.outgoing_trace(), trace);
        }
        drop(other);
        let cx = Context::new(ContextParts::of(Call { trace: Some(received()), ..Call::sample() }));
        assert_eq!(cx.outgoing_trace(), Some(received()), "no span is exported");
    }

    #[test]
    fn the_innermost_span_is_the_parent() {
        let _guard = traced();
        let call = info_span!("call");
        let attempt = info_span!(parent: &call, "process");
        let trace_id = call.context().span().span_context().trace_id();
        let cx = Context::new(ContextParts::of(Call { trace: Some(received()), span: call.clone(), ..Call::sample() }));
        let expected = |span: &Span| {
            let traceparent = format!("00-{trace_id}-{}-01", id(span));
            Some(TraceContext { traceparent, tracestate: String::new(), baggage: "k=v".into() })
        };
        assert_eq!(attempt.in_scope(|| cx.outgoing_trace()), expected(&attempt));
        assert_eq!(cx.outgoing_trace(), expected(&call), "in a task of its own");
    }
}
