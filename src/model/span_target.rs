/// Target of the spans that are exported: calls that a sampler chose, and what the pool does for them.
///
/// They, and those of [`CALL_TARGET`], are made at level ERROR, so that a log level of `warn` keeps the identity of
/// its lines.
pub const TRACE_TARGET: &str = "waterwheel::trace";

/// Target of the spans that only give log lines their request id: calls that no sampler chose. They are never
/// exported.
pub const CALL_TARGET: &str = "waterwheel::call";
