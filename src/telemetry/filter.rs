use std::sync::Arc;

use arc_swap::ArcSwap;
use tracing::{Metadata, Subscriber, level_filters::LevelFilter, subscriber::Interest};
use tracing_subscriber::{
    Layer,
    filter::{ParseError, Targets},
    layer::{Context, Filter},
    registry::LookupSpan,
};

use super::TelemetryError;
use crate::model::{JOB_TARGET, TRACE_TARGET};

/// Lets through what the operator's directives ask for, and always the spans that carry a job's identity: a line that
/// is logged must name its request, whatever the directives say about our own targets.
///
/// It stands before all layers, not around one: a filter of one layer looks each span up whenever it is entered, which
/// costs more than all the rest of a span that nobody exports.
#[derive(Debug)]
pub(super) struct LogFilter(Arc<ArcSwap<Directives>>);

/// What a [`LogFilter`] goes by.
#[derive(Debug)]
struct Directives {
    filter: Targets,
    is_logging: bool,
    exports: bool,
}

/// Replaces what is logged while the process runs.
#[derive(Debug, Clone)]
pub struct LogControl {
    directives: Arc<ArcSwap<Directives>>,
    exports: bool,
}

/// Lets through what is exported: our own spans, and what handlers add below one of them at INFO or above, as far as
/// it is logged.
///
/// Nothing of the HTTP/2 and gRPC libraries passes, so the exporter's own calls cannot feed it. The level matters as
/// much: those libraries make spans at TRACE for each frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct TraceFilter;

const LIBRARIES: [&str; 6] = ["h2", "hyper", "hyper_util", "tonic", "tower", "opentelemetry"];

impl LogControl {
    /// Logs by these directives from now on.
    ///
    /// # Errors
    /// Where they do not parse.
    pub fn set(&self, log: &str) -> Result<(), TelemetryError> {
        self.directives.store(Arc::new(Directives::parse(log, self.exports)?));
        // What was asked of each call site was kept.
        tracing::callsite::rebuild_interest_cache();
        Ok(())
    }
}

impl LogFilter {
    /// The filter by these directives, and what replaces them. A process that `exports` needs the spans of traced calls
    /// even where it logs nothing.
    pub(super) fn new(log: &str, exports: bool) -> Result<(Self, LogControl), TelemetryError> {
        let directives = Arc::new(ArcSwap::from_pointee(Directives::parse(log, exports)?));
        Ok((Self(Arc::clone(&directives)), LogControl { directives, exports }))
    }
}

impl Directives {
    fn parse(log: &str, exports: bool) -> Result<Self, TelemetryError> {
        let filter: Targets = log.parse().map_err(|error: ParseError| TelemetryError::Log {
            directives: log.to_owned(),
            reason: error.to_string(),
        })?;
        let silent = filter.iter().all(|(_, level)| level == LevelFilter::OFF)
            && filter.default_level().is_none_or(|level| level == LevelFilter::OFF);
        Ok(Self { filter, is_logging: !silent, exports })
    }

    /// Whether it is a span of a call or a job that passes in any case.
    fn keeps(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
            && match metadata.target() {
                TRACE_TARGET => self.is_logging || self.exports,
                JOB_TARGET => self.is_logging,
                _ => false,
            }
    }
}

impl<S: Subscriber> Layer<S> for LogFilter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let directives = self.0.load();
        if directives.keeps(metadata) {
            Interest::always()
        } else {
            Layer::<S>::register_callsite(&directives.filter, metadata)
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, cx: Context<'_, S>) -> bool {
        let directives = self.0.load();
        directives.keeps(metadata) || Layer::enabled(&directives.filter, metadata, cx)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let directives = self.0.load();
        let asked = Layer::<S>::max_level_hint(&directives.filter)?;
        // Spans that pass in any case are made at ERROR, which a hint of OFF would hide from this filter.
        Some(if directives.is_logging || directives.exports { asked.max(LevelFilter::ERROR) } else { asked })
    }
}

impl TraceFilter {
    /// Whether the answer depends on the span that is entered.
    fn is_open(metadata: &Metadata<'_>) -> bool {
        let family = metadata.target().split("::").next().unwrap_or_default();
        let library = LIBRARIES.iter().any(|library| family.starts_with(library));
        *metadata.level() <= LevelFilter::INFO && !library && metadata.target() != JOB_TARGET
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
