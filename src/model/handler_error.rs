//! How handlers fail, and what they say about the next attempt.

use std::{error::Error, fmt, mem, time::Duration};

use super::{Limiter, Outcome, Reason, text};

/// Longest time that a handler may set until the next attempt, and for which it may hold its kind or its limit key.
const MAX_AFTER: Duration = Duration::from_secs(3600);

/// How a handler fails: it refuses the job, panics, or its process crashes.
///
/// In a handler, `?` makes a [refusal](Self::Refused) of any [`Error`]: with its message, those of its sources, and
/// [`FailureCode::Unknown`]. So that it can, this type is no [`Error`] itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandlerError {
    /// The handler refuses the job.
    Refused {
        /// Code of the status.
        code: FailureCode,
        /// Error message. Its middle is cut if it has more than 4 KiB, or if the whole status would on the wire.
        message: String,
        /// What it says about the next attempt.
        next: NextAttempt,
    },
    /// The job could not start, for example because its program is missing. The worker gets a new handler, and the
    /// caller may retry.
    Unavailable {
        /// What was missing.
        message: String,
    },
    /// A signal ended the process of the job. The worker gets a new handler.
    Crashed {
        /// What happened.
        message: String,
    },
    /// The worker that ran the job is no longer attached.
    Lost {
        /// The worker.
        message: String,
    },
    /// The handler wrote more output than its kind allows.
    OutputTooLarge {
        /// Maximum bytes allowed.
        limit: usize,
    },
    /// The handler stopped when asked to.
    Stopped,
    /// The handler panicked. Only the pool makes this error.
    Panicked {
        /// Message of the panic, shortened.
        message: String,
    },
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { message, .. }
            | Self::Unavailable { message }
            | Self::Crashed { message }
            | Self::Lost { message } => f.write_str(message),
            Self::OutputTooLarge { .. } => f.write_str(Reason::OutputTooLarge.words()),
            Self::Stopped => f.write_str("stopped on request"),
            Self::Panicked { message } => write!(f, "the handler panicked: {message}"),
        }
    }
}

impl<E: Error> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let causes = std::iter::successors(error.source(), |&cause| cause.source());
        let message = causes.fold(error.to_string(), |message, cause| format!("{message}: {cause}"));
        Self::new(FailureCode::Unknown, message)
    }
}

impl HandlerError {
    /// A refusal with `code`.
    #[must_use]
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self::Refused { code, message: message.into(), next: NextAttempt::default() }
    }

    /// The same error, with a message of at most 4 KiB and without control characters, and within the longest delay.
    pub(crate) fn bounded(mut self) -> Self {
        if let Self::Refused { next, .. } = &mut self {
            next.after = next.after.map(|after| after.min(MAX_AFTER));
        }
        match &mut self {
            Self::Refused { message, .. }
            | Self::Unavailable { message }
            | Self::Crashed { message }
            | Self::Lost { message }
            | Self::Panicked { message } => *message = text::message(mem::take(message)),
            Self::OutputTooLarge { .. } | Self::Stopped => {}
        }
        self
    }

    /// Sets whether another attempt of a detached job may succeed. Changes only refusals.
    #[must_use]
    pub fn retryable(self, retryable: bool) -> Self {
        self.saying(|next| next.retryable = Some(retryable))
    }

    /// Sets when to try again. A detached job is tried then, if attempts are left, and a caller is told so. At most
    /// an hour. Changes only refusals.
    #[must_use]
    pub fn retry_after(self, delay: Duration) -> Self {
        self.saying(|next| next.after = Some(delay))
    }

    /// The attempt does not count: the job was not tried. Changes only refusals.
    #[must_use]
    pub fn uncounted(self) -> Self {
        self.saying(|next| next.is_uncounted = true)
    }

    /// Until the [time to try again](Self::retry_after), no job of the same kind ([`Limiter::Hold`]) or limit key
    /// ([`Limiter::KeyHold`]) starts. The kind must have a limit, or a limit per key. Changes only refusals.
    #[must_use]
    pub fn holding(self, scope: Limiter) -> Self {
        self.saying(|next| next.hold = Some(scope))
    }

    fn saying(mut self, say: impl FnOnce(&mut NextAttempt)) -> Self {
        if let Self::Refused { next, .. } = &mut self {
            say(next);
        }
        self
    }

    /// The outcome of a job with this error, if its kind is not marked as idempotent.
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

    /// A refusal of an invalid payload.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(FailureCode::InvalidArgument, message)
    }
}

/// What a handler says about the next attempt of a job that it refuses.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NextAttempt {
    /// Whether it may succeed; if `None`, the code decides.
    pub retryable: Option<bool>,
    /// When it may begin.
    pub after: Option<Duration>,
    /// Whether this attempt does not count.
    pub is_uncounted: bool,
    /// What starts no job until then.
    pub hold: Option<Limiter>,
}

/// Codes that a handler may answer with, by their number on the wire. They describe the handler's own work, never the
/// pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "programs", derive(serde::Deserialize), serde(rename_all = "SCREAMING_SNAKE_CASE"))]
#[non_exhaustive]
pub enum FailureCode {
    /// No better code fits.
    #[default]
    Unknown = 2,
    /// The payload is invalid, whatever the state of the system.
    InvalidArgument = 3,
    /// Something that the job refers to does not exist.
    NotFound = 5,
    /// Something that the job would create exists already.
    AlreadyExists = 6,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// The system is not in the state that the job needs.
    FailedPrecondition = 9,
    /// The job refers to a position outside of the valid range.
    OutOfRange = 11,
    /// The handler does not support the operation.
    Unimplemented = 12,
    /// A dependency of the handler is not available; a retry may help.
    Unavailable = 14,
    /// Data was lost or damaged.
    DataLoss = 15,
}
