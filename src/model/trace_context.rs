//! The W3C trace context of a call. `src/rpc/trace.rs` parses it.

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
