use tracing::{
    Event, Metadata, Subscriber,
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
    subscriber::Interest,
};
use tracing_subscriber::{
    EnvFilter,
    layer::{Context, Filter},
    registry::LookupSpan,
};

use crate::model::{CALL_TARGET, TRACE_TARGET};

/// Lets through what the operator's directives ask for, and always the spans that carry a job's identity: a line that
/// is logged must name its request, whatever the directives say about our own targets.
#[derive(Debug)]
pub(super) struct LogFilter {
    directives: EnvFilter,
    off: bool,
}

/// Lets through what is exported: our own spans, and what handlers add below one of them at INFO or above.
///
/// Nothing of the HTTP/2 and gRPC libraries passes, so the exporter's own calls cannot feed it. The level matters as
/// much: those libraries make spans at TRACE for each frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct TraceFilter;

const LIBRARIES: [&str; 6] = ["h2", "hyper", "hyper_util", "tonic", "tower", "opentelemetry"];

impl LogFilter {
    pub(super) fn new(directives: EnvFilter) -> Self {
        let off = directives.max_level_hint() == Some(LevelFilter::OFF);
        Self { directives, off }
    }

    fn keeps(&self, metadata: &Metadata<'_>) -> bool {
        !self.off && metadata.is_span() && [TRACE_TARGET, CALL_TARGET].contains(&metadata.target())
    }
}

impl<S: Subscriber> Filter<S> for LogFilter {
    fn enabled(&self, metadata: &Metadata<'_>, cx: &Context<'_, S>) -> bool {
        self.keeps(metadata) || Filter::enabled(&self.directives, metadata, cx)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Asked in any case, for directives on fields of spans learn of their call sites here.
        let asked = Filter::<S>::callsite_enabled(&self.directives, metadata);
        if self.keeps(metadata) { Interest::always() } else { asked }
    }

    fn event_enabled(&self, event: &Event<'_>, cx: &Context<'_, S>) -> bool {
        Filter::event_enabled(&self.directives, event, cx)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Filter::<S>::max_level_hint(&self.directives)
    }

    fn on_new_span(&self, attrs: &Attributes<'_>, id: &Id, cx: Context<'_, S>) {
        Filter::on_new_span(&self.directives, attrs, id, cx);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, cx: Context<'_, S>) {
        Filter::on_record(&self.directives, id, values, cx);
    }

    fn on_enter(&self, id: &Id, cx: Context<'_, S>) {
        Filter::on_enter(&self.directives, id, cx);
    }

    fn on_exit(&self, id: &Id, cx: Context<'_, S>) {
        Filter::on_exit(&self.directives, id, cx);
    }

    fn on_close(&self, id: Id, cx: Context<'_, S>) {
        Filter::on_close(&self.directives, id, cx);
    }
}

impl TraceFilter {
    /// Whether the answer depends on the span that is entered.
    fn is_open(metadata: &Metadata<'_>) -> bool {
        let family = metadata.target().split("::").next().unwrap_or_default();
        let library = LIBRARIES.iter().any(|library| family.starts_with(library));
        *metadata.level() <= LevelFilter::INFO && metadata.target() != CALL_TARGET && !library
    }

    fn is_own(metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == TRACE_TARGET
    }
}

impl<S> Filter<S> for TraceFilter
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    fn enabled(&self, metadata: &Metadata<'_>, cx: &Context<'_, S>) -> bool {
        // The context knows this filter: the current span is the innermost one that is exported.
        Self::is_own(metadata) || Self::is_open(metadata) && cx.lookup_current().is_some()
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if Self::is_own(metadata) {
            Interest::always()
        } else if Self::is_open(metadata) {
            Interest::sometimes()
        } else {
            Interest::never()
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }
}
