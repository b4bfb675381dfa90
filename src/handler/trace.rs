//! The trace context that a handler passes on.

#[cfg(feature = "server")]
mod exported;

use super::Context;
use crate::model::TraceContext;

impl Context {
    /// The trace context for calls that the handler makes.
    ///
    /// In a sampled call, the parent is the current exported span: the span of the attempt, one that the handler
    /// created, or else the span of the call. Otherwise this is the received context, unchanged. The baggage is always
    /// the received one.
    pub fn outgoing_trace(&self) -> Option<TraceContext> {
        // Only the service exports spans.
        #[cfg(feature = "server")]
        if let Some(sampled) = self.sampled() {
            return Some(sampled);
        }
        self.trace().cloned()
    }

    /// Id of the trace of the call, as 32 hexadecimal digits; `None` if it is not traced.
    pub(crate) fn trace_id(&self) -> Option<Box<str>> {
        let received = self.trace().and_then(|trace| trace.traceparent.get(3..35)).map(Box::from);
        #[cfg(feature = "server")]
        return received.or_else(|| self.exported_trace_id());
        #[cfg(not(feature = "server"))]
        received
    }
}
