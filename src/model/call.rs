use std::sync::Arc;

use tracing::Span;

use super::{RequestId, TraceContext};

/// What the jobs of one call share: how it is named, and the trace that it belongs to.
#[derive(Debug, Clone)]
pub struct Call {
    /// Correlation id; made for each job that is asked for it when absent.
    pub request_id: Option<RequestId>,
    /// Name of the caller, at most 256 bytes of it; `None` where callers are not told apart.
    pub principal: Option<Arc<str>>,
    /// The trace context that came with the call.
    pub trace: Option<TraceContext>,
    /// Span that the spans and the log lines of the jobs hang under.
    pub span: Span,
    /// Whether the pool makes spans of its own below `span`; off for calls that no sampler chose. Default true.
    pub child_spans: bool,
}

impl Call {
    /// A call without a name or a trace, in the span that is entered.
    #[must_use]
    pub fn here() -> Self {
        Self { request_id: None, principal: None, trace: None, span: Span::current(), child_spans: true }
    }

    /// [`here`](Self::here), where a span is entered: without one there is nothing to share.
    #[must_use]
    pub(crate) fn of_entered_span() -> Option<Arc<Self>> {
        let call = Self::here();
        (!call.span.is_none()).then(|| Arc::new(call))
    }
}
