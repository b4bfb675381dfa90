//! How jobs end: results, failures, and the output of handlers. `reason.rs` has the texts.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{HandlerError, JobId, Reason, Rejection, text};

/// The output of a handler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// The bytes. They follow the chunks that the handler wrote before.
    pub bytes: Bytes,
    /// Media type of the whole output; empty when unspecified.
    pub content_type: String,
}

impl Output {
    /// Output of unspecified type.
    #[must_use]
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: bytes.into(), content_type: String::new() }
    }

    /// Output of the given media type.
    #[must_use]
    pub fn typed(bytes: impl Into<Bytes>, content_type: impl Into<String>) -> Self {
        Self { bytes: bytes.into(), content_type: content_type.into() }
    }

    /// The same output, with a media type within the bounds of a caller's.
    pub(crate) fn bounded(self) -> Self {
        Self { content_type: text::content_type(self.content_type), ..self }
    }
}

impl<T: Into<Bytes>> From<T> for Output {
    fn from(bytes: T) -> Self {
        Self::new(bytes)
    }
}

/// A job that completed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completed {
    /// Id of the job.
    pub job: JobId,
    /// The output of the handler.
    pub output: Output,
    /// Durations of its phases.
    pub waterfall: Waterfall,
}

/// How a job used its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waterfall {
    /// From arrival to the deadline.
    pub budget: Duration,
    /// From arrival to the start of the run.
    pub queue: Duration,
    /// The run.
    pub run: Duration,
    /// Time left at the end.
    pub left: Duration,
    /// Id of the worker, unique in its pool.
    pub worker: u32,
}

/// The result that the caller of a job gets.
pub type JobResult = Result<Completed, JobError>;

/// Why a call to a pool has no result. Boxed, so that results are small.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The job was not accepted.
    #[error(transparent)]
    Rejected(Box<Rejection>),
    /// The job was accepted, but did not complete.
    #[error(transparent)]
    Failed(Box<Failure>),
}

impl From<Rejection> for JobError {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(Box::new(rejection))
    }
}

/// An accepted job that did not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", error.as_ref().map_or_else(|| outcome.to_string(), ToString::to_string))]
#[non_exhaustive]
pub struct Failure {
    /// Id of the job.
    pub job: JobId,
    /// Kind of the job.
    pub kind: Arc<str>,
    /// Pool that held the job.
    pub pool: Arc<str>,
    /// How it ended.
    pub outcome: Outcome,
    /// The handler's error, if the job ended with one.
    pub error: Option<HandlerError>,
    /// Retry time, if known.
    pub retry_after: Option<Duration>,
    /// Whether the handler had begun.
    pub execution: Execution,
    /// Time in the queue.
    pub queue: Duration,
    /// Time of the run.
    pub run: Duration,
    /// Rung of the stop ladder that ended the run; `None` if the run was not stopped.
    pub rung: Option<Rung>,
}

/// How an accepted job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler returned a result in time.
    Completed,
    /// The handler returned an error.
    HandlerFailed,
    /// The handler's process crashed.
    WorkerCrashed,
    /// The worker that ran it is no longer attached.
    WorkerLost {
        /// Whether the kind is marked safe to run twice.
        idempotent: bool,
    },
    /// The output was larger than allowed.
    OutputTooLarge,
    /// No handler could be made, so the job did not start.
    HandlerUnavailable,
    /// The handler panicked. If its factory panicked instead, the job did not start.
    HandlerPanicked,
    /// The deadline passed while the handler ran.
    DeadlineExceeded,
    /// The limit on the run passed before the deadline.
    RunTimeout,
    /// The deadline, or a limit on the wait, passed while the job was queued.
    ExpiredInQueue,
    /// The caller left, or cancelled the job.
    Cancelled,
    /// The operator cancelled it.
    CancelledByOperator,
    /// A more important job took its place in the queue.
    Shed,
    /// A newer job of its tenant took its place in the queue.
    Replaced,
    /// The drain ended before the job began.
    Drained,
    /// The drain stopped the running handler.
    DrainKilled {
        /// Whether the kind is marked safe to run twice.
        idempotent: bool,
    },
}

impl Outcome {
    /// The reason in statuses and counters.
    #[must_use]
    pub const fn reason(self) -> Reason {
        match self {
            Self::Completed => Reason::Completed,
            Self::HandlerFailed => Reason::HandlerFailed,
            Self::WorkerCrashed => Reason::WorkerCrashed,
            Self::WorkerLost { .. } => Reason::WorkerLost,
            Self::OutputTooLarge => Reason::OutputTooLarge,
            Self::HandlerUnavailable => Reason::HandlerUnavailable,
            Self::HandlerPanicked => Reason::HandlerPanicked,
            Self::DeadlineExceeded | Self::RunTimeout => Reason::RunTimeout,
            Self::ExpiredInQueue => Reason::ExpiredInQueue,
            Self::Cancelled => Reason::Cancelled,
            Self::CancelledByOperator => Reason::CancelledByOperator,
            Self::Shed => Reason::Shed,
            Self::Replaced => Reason::Replaced,
            Self::Drained => Reason::Draining,
            Self::DrainKilled { .. } => Reason::DrainKilled,
        }
    }

    /// Whether the deadline, or a limit on the wait, ended the job.
    #[must_use]
    pub const fn is_expired(self) -> bool {
        matches!(self, Self::DeadlineExceeded | Self::ExpiredInQueue)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Drained => "the server drained before the job began",
            other => other.reason().words(),
        })
    }
}

/// Whether the handler had begun when the job ended, which decides whether a retry is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Execution {
    /// The handler had not begun, so a retry is safe.
    NotStarted,
    /// The handler had begun.
    Started,
}

/// A rung of the stop ladder: ask, wait the grace, force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rung {
    /// The handler was asked to stop. The answer did not wait for it.
    Asked,
    /// The handler stopped by itself within the grace.
    Yielded,
    /// The handler was forced to stop after the grace.
    Forced,
    /// The handler cannot be stopped, and is still running.
    Stuck,
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "asked",
            Self::Yielded => "yielded",
            Self::Forced => "forced",
            Self::Stuck => "stuck",
        })
    }
}

/// The end of a job's program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramEnd {
    /// A sentence that excludes the program's own output.
    pub summary: String,
    /// Its exit code; `None` if a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The end of its standard error.
    pub stderr: String,
}
