//! What the jobs of one gRPC call share: request id, caller, trace. `src/rpc/context.rs` fills it in.

use std::sync::Arc;

use tracing::Span;

use super::{RequestId, TraceContext};

/// What the jobs of one call share: their names in logs, and the trace that they belong to.
#[derive(Debug, Clone)]
pub struct Call {
    /// Correlation id. If absent, one is generated for each job that needs it.
    pub request_id: Option<RequestId>,
    /// Name of the caller, cut to 256 bytes; `None` without authentication.
    pub principal: Option<Arc<str>>,
    /// The trace context that came with the call.
    pub trace: Option<TraceContext>,
    /// Parent of the jobs' spans and log lines.
    pub span: Span,
    /// Whether the pool makes spans of its own below `span`; off for calls that are not sampled. Default true.
    pub child_spans: bool,
}

impl Call {
    /// A call without a name or a trace, in the current span.
    #[must_use]
    pub fn here() -> Self {
        Self { request_id: None, principal: None, trace: None, span: Span::current(), child_spans: true }
    }

    /// [`here`](Self::here) if a span is entered. Without one there is nothing to share.
    #[must_use]
    pub(crate) fn of_entered_span() -> Option<Arc<Self>> {
        let call = Self::here();
        (!call.span.is_none()).then(|| Arc::new(call))
    }
}
