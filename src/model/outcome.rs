//! How jobs end: results, failures and what handlers return. `reason.rs` has the texts.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{JobId, Reason, Rejection};

/// What a handler gives back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// The bytes. They follow any chunks that the handler wrote before.
    pub bytes: Bytes,
    /// Media type of all of the output; empty when unspecified.
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
}

/// A job that completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// Id of the job.
    pub job: JobId,
    /// What the handler gave.
    pub output: Output,
    /// How the budget was used.
    pub waterfall: Waterfall,
}

/// How the budget of a job was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Why a call to a pool has no result. Boxed, so that results are small.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// The job was not accepted.
    #[error(transparent)]
    Rejected(Box<Rejection>),
    /// The job was accepted and did not complete.
    #[error(transparent)]
    Failed(Box<Failure>),
}

impl From<Rejection> for JobError {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(Box::new(rejection))
    }
}

impl From<Failure> for JobError {
    fn from(failure: Failure) -> Self {
        Self::Failed(Box::new(failure))
    }
}

/// An accepted job that did not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", error.as_ref().map_or_else(|| outcome.to_string(), ToString::to_string))]
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
    /// When a retry may succeed, if known.
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
    /// The worker that ran it is not attached any more.
    WorkerLost {
        /// Whether the kind is marked safe to run twice.
        idempotent: bool,
    },
    /// The output was larger than allowed.
    OutputTooLarge,
    /// No handler could be made for it. It did not start.
    HandlerUnavailable,
    /// The handler panicked; or its factory did, and the job did not start.
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

/// Whether the handler had begun when the job ended. It decides whether a retry is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Execution {
    /// It had not; a retry is safe.
    NotStarted,
    /// It had.
    Started,
}

/// A rung of the stop ladder: ask, wait the grace, force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rung {
    /// The handler was asked to stop; the answer did not wait for it.
    Asked,
    /// The handler stopped by itself within the grace.
    Yielded,
    /// The handler was forced to stop after the grace.
    Forced,
    /// The handler cannot be stopped, and still runs.
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

/// How a handler fails: its refusal, its panic, or the crash of its process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// The handler refuses the job.
    #[error("{message}")]
    Refused {
        /// Code of the status.
        code: FailureCode,
        /// What went wrong, for people. On the wire, its middle is cut if the status would exceed 4 KiB.
        message: String,
        /// Whether another attempt of a detached job may do better; `None` where the code decides.
        retryable: Option<bool>,
    },
    /// The job could not start, for example because its program could not be started. The worker gets a new handler,
    /// and the caller may retry.
    #[error("{message}")]
    Unavailable {
        /// What was missing.
        message: String,
    },
    /// The process of the job was ended by a signal. The worker gets a new handler.
    #[error("{message}")]
    Crashed {
        /// What happened.
        message: String,
    },
    /// The worker that ran the job is not attached any more.
    #[error("{message}")]
    Lost {
        /// Which worker it was.
        message: String,
    },
    /// The handler wrote more output than its kind allows.
    #[error("{}", Reason::OutputTooLarge.words())]
    OutputTooLarge {
        /// Most bytes allowed.
        limit: usize,
    },
    /// The handler stopped when asked to.
    #[error("stopped on request")]
    Stopped,
    /// The handler panicked. Only the pool makes this error.
    #[error("the handler panicked: {message}")]
    Panicked {
        /// Message of the panic, shortened.
        message: String,
    },
}

impl HandlerError {
    /// A refusal with `code`.
    #[must_use]
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self::Refused { code, message: message.into(), retryable: None }
    }

    /// A refusal, and whether another attempt of a detached job may do better. Other errors stay as they are.
    #[must_use]
    pub fn retryable(self, retryable: bool) -> Self {
        match self {
            Self::Refused { code, message, .. } => Self::Refused { code, message, retryable: Some(retryable) },
            other => other,
        }
    }

    /// The outcome of a job with this error, of a kind that is not marked as idempotent.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Refused { .. } => Outcome::HandlerFailed,
            Self::Unavailable { .. } => Outcome::HandlerUnavailable,
            Self::Crashed { .. } => Outcome::WorkerCrashed,
            Self::Lost { .. } => Outcome::WorkerLost { idempotent: false },
            Self::OutputTooLarge { .. } => Outcome::OutputTooLarge,
            Self::Stopped => Outcome::Cancelled,
            Self::Panicked { .. } => Outcome::HandlerPanicked,
        }
    }

    /// A refusal because the payload makes no sense.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(FailureCode::InvalidArgument, message)
    }
}

/// Codes that a handler may answer with, by their number on the wire. They describe the handler's own work, never the
/// pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FailureCode {
    /// No better code fits.
    #[default]
    Unknown = 2,
    /// The payload makes no sense, whatever the state of the system.
    InvalidArgument = 3,
    /// What the job names does not exist.
    NotFound = 5,
    /// What the job would make exists.
    AlreadyExists = 6,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// The system is not in the state that the job needs.
    FailedPrecondition = 9,
    /// The job points past a valid range.
    OutOfRange = 11,
    /// The handler does not do that.
    Unimplemented = 12,
    /// Something that the handler needs is away; a retry may help.
    Unavailable = 14,
    /// Data is lost or damaged.
    DataLoss = 15,
}

/// The end of a job's program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramEnd {
    /// A sentence for people, without the program's own output.
    pub told: String,
    /// Its exit code; `None` if a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The end of its standard error.
    pub stderr: String,
}
