/// Target of the spans that are exported: calls that a sampler chose, and what the pool does for them.
///
/// They are made at level ERROR, so that a log level of `warn` keeps the identity of its lines.
pub const TRACE_TARGET: &str = "waterwheel::trace";

/// Target of the spans of jobs that are not traced: log lines take the identity of the job from them.
pub const JOB_TARGET: &str = "waterwheel::job";
