//! The filters of log lines and of exported spans.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tracing::{Metadata, Subscriber, level_filters::LevelFilter, subscriber::Interest};
use tracing_subscriber::{
    Layer,
    filter::{ParseError, Targets, dynamic_filter_fn},
    layer::{Context, Filter},
    registry::LookupSpan,
};

use super::TelemetryError;
use crate::model::{JOB_TARGET, TRACE_TARGET};

/// The replaceable filter of log lines. Clones share it.
///
/// It passes what the operator's directives select. It also always passes the spans with a job's identity, because each
/// log line must name its request, whatever the directives say.
///
/// It applies to all layers. A filter of a single layer would look up each span whenever the span is entered. That
/// would cost more than everything else about a span that is not exported.
#[derive(Debug, Clone)]
pub struct LogControl {
    directives: Arc<ArcSwap<Directives>>,
}

/// The directives of a [`LogControl`].
#[derive(Debug)]
struct Directives {
    filter: Targets,
    is_logging: bool,
    /// Whether spans are exported. If so, spans of traced calls pass even if nothing is logged.
    exports: bool,
}

/// The client of the database, which logs each notice at INFO. Its lines pass only if the filter asks for DEBUG, or
/// names it.
const DATABASE: &str = "tokio_postgres";

/// Libraries for HTTP/2, gRPC and the export itself.
const LIBRARIES: [&str; 6] = ["h2", "hyper", "hyper_util", "tonic", "tower", "opentelemetry"];

impl LogControl {
    pub(super) fn new(log: &str, exports: bool) -> Result<Self, TelemetryError> {
        Ok(Self { directives: Arc::new(ArcSwap::from_pointee(Directives::parse(log, exports)?)) })
    }

    /// Replaces the directives.
    ///
    /// # Errors
    /// If they do not parse.
    pub fn set(&self, log: &str) -> Result<(), TelemetryError> {
        let directives = Directives::parse(log, self.directives.load().exports)?;
        self.directives.store(Arc::new(directives));
        // Each call site has cached the previous answer.
        tracing::callsite::rebuild_interest_cache();
        Ok(())
    }
}

impl Directives {
    fn parse(log: &str, exports: bool) -> Result<Self, TelemetryError> {
        let filter: Targets = log.parse().map_err(|error: ParseError| TelemetryError::Log {
            directives: log.to_owned(),
            reason: error.to_string(),
        })?;
        let is_named = filter.iter().any(|(target, _)| target.starts_with(DATABASE));
        let filter = match filter.default_level() {
            Some(LevelFilter::INFO) if !is_named => filter.with_target(DATABASE, LevelFilter::WARN),
            _ => filter,
        };
        let silent = filter.iter().all(|(_, level)| level == LevelFilter::OFF)
            && filter.default_level().is_none_or(|level| level == LevelFilter::OFF);
        Ok(Self { filter, is_logging: !silent, exports })
    }

    /// Whether a span always passes, as those of calls and jobs do.
    fn keeps(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
            && match metadata.target() {
                TRACE_TARGET => self.is_logging || self.exports,
                JOB_TARGET => self.is_logging,
                _ => false,
            }
    }
}

impl<S: Subscriber> Layer<S> for LogControl {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let directives = self.directives.load();
        if directives.keeps(metadata) {
            Interest::always()
        } else {
            Layer::<S>::register_callsite(&directives.filter, metadata)
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, cx: Context<'_, S>) -> bool {
        let directives = self.directives.load();
        directives.keeps(metadata) || Layer::enabled(&directives.filter, metadata, cx)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let directives = self.directives.load();
        let asked = Layer::<S>::max_level_hint(&directives.filter)?;
        // Spans that always pass have level ERROR. A hint of OFF would hide them from this filter.
        Some(if directives.is_logging || directives.exports { asked.max(LevelFilter::ERROR) } else { asked })
    }
}

/// Passes the spans to export: those of this crate, and those that handlers add below them at INFO or above.
///
/// Nothing of the HTTP/2 and gRPC libraries passes, because the exporter's own calls must not create spans.
pub(super) fn exported<S>() -> impl Filter<S>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    let is_own = |metadata: &Metadata<'_>| metadata.is_span() && metadata.target() == TRACE_TARGET;
    let is_library = |target: &str| LIBRARIES.iter().any(|library| target.starts_with(library));
    // Whether the answer depends on the current span.
    let is_open = move |metadata: &Metadata<'_>| {
        let target = metadata.target();
        *metadata.level() <= LevelFilter::INFO && !is_library(target) && target != JOB_TARGET
    };
    dynamic_filter_fn(move |metadata, cx: &Context<'_, S>| {
        // The context includes this filter, so the current span is the innermost exported one.
        is_own(metadata) || is_open(metadata) && cx.lookup_current().is_some()
    })
    .with_callsite_filter(move |metadata| {
        if is_own(metadata) {
            Interest::always()
        } else if is_open(metadata) {
            Interest::sometimes()
        } else {
            Interest::never()
        }
    })
    .with_max_level_hint(LevelFilter::INFO)
}
