//! What the jobs of one gRPC call share: request id, caller, trace. `src/rpc/context.rs` fills it in.

use std::sync::Arc;

use tracing::Span;

use super::{Attempt, RequestId};

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
    /// The attempt of a detached job; `None` for a caller that waits.
    pub attempt: Option<Arc<Attempt>>,
}

impl Call {
    /// A call without a name or a trace, in the current span.
    #[must_use]
    pub fn here() -> Self {
        Self { request_id: None, principal: None, trace: None, span: Span::current(), child_spans: true, attempt: None }
    }

    /// [`here`](Self::here) if a span is entered. Without one there is nothing to share.
    #[must_use]
    pub(crate) fn of_entered_span() -> Option<Arc<Self>> {
        let call = Self::here();
        (!call.span.is_none()).then(|| Arc::new(call))
    }
}

/// W3C trace context, as received or as passed on: the values of the headers `traceparent`, `tracestate` and `baggage`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceContext {
    /// `00-<trace id>-<span id>-<flags>`.
    pub traceparent: String,
    /// Vendor-specific part; empty when absent.
    pub tracestate: String,
    /// Key-value pairs of the application; empty when absent.
    pub baggage: String,
}

/// Target of exported spans: sampled calls, and the pool's work for them. They have level ERROR, so that with a log
/// level of `warn` lines still have the identity of their job.
pub const TRACE_TARGET: &str = "waterwheel::trace";

/// Target of the spans of jobs that are not traced: log lines take the identity of the job from them.
pub const JOB_TARGET: &str = "waterwheel::job";
