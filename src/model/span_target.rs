//! Targets of spans, which `src/telemetry/filter.rs` lets through whatever the log level.

/// Target of exported spans: sampled calls, and the pool's work for them. They have level ERROR, so that with a log
/// level of `warn` lines still have the identity of their job.
pub const TRACE_TARGET: &str = "waterwheel::trace";

/// Target of the spans of jobs that are not traced: log lines take the identity of the job from them.
pub const JOB_TARGET: &str = "waterwheel::job";
