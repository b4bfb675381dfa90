use std::{fmt, sync::Arc, time::Duration};

use super::{FieldViolation, Limiter, Reason};

/// Longest time after which a caller is asked to come back.
pub const LONGEST_HINT: Duration = Duration::from_secs(60);

/// Why a job was not accepted. Nothing of it ran.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Rejection {
    /// What stood in the way.
    pub reason: RejectionReason,
    /// The pool that refused; `None` where no pool was found.
    pub pool: Option<Arc<str>>,
    /// The kind that the caller named.
    pub kind: Arc<str>,
    /// When to come back. `None` means: not here, or not with this job.
    pub retry_after: Option<Duration>,
}

/// What stood in the way of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RejectionReason {
    /// The queue holds as many jobs, or as many payload bytes, as it may.
    QueueFull,
    /// There is room, but a job that is queued now would wait for longer than the pool lets any wait.
    QueueTooLong {
        /// Predicted wait.
        expected: Duration,
    },
    /// The job waited for room until its time was up.
    NoRoomInTime,
    /// The job would not start in time.
    DeadlineUnreachable {
        /// Predicted wait.
        expected: Duration,
        /// The least budget that would do now.
        needed: Duration,
        /// What is left of the budget.
        budget: Duration,
    },
    /// The job would wait for longer than its caller would.
    WaitTooLong {
        /// Predicted wait.
        expected: Duration,
        /// What the caller would wait at most.
        patience: Duration,
    },
    /// The tenant holds its share of the queue, and others are present.
    TenantShare {
        /// The tenant.
        tenant: String,
        /// What it holds, and what it may.
        part: TenantPart,
    },
    /// The job would wait too long for its turn within a limit of its kind.
    LimitExceeded {
        /// The limit.
        limit: Limiter,
        /// Predicted wait.
        expected: Duration,
        /// What is left of the budget.
        budget: Duration,
    },
    /// The tenant sent more jobs than its rate allows.
    OverRate {
        /// Jobs per second that are allowed.
        rate: u32,
    },
    /// The tenant has as many jobs queued and running as it may.
    OverInFlight {
        /// Jobs that are allowed.
        limit: usize,
    },
    /// The pool takes no more jobs.
    Draining,
    /// The operator drains the pool.
    PoolDraining,
    /// No handler has that name.
    UnknownKind {
        /// The closest name that exists.
        suggestion: Option<Arc<str>>,
    },
    /// Fields are out of their bounds.
    Invalid {
        /// Each of them.
        violations: Vec<FieldViolation>,
    },
    /// The payload is larger than allowed.
    PayloadTooLarge {
        /// Bytes of the payload.
        size: usize,
        /// Most bytes allowed.
        limit: usize,
    },
}

/// What a tenant has of a queue, not counting jobs that are less important than the one that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantPart {
    /// Its queued jobs.
    pub jobs: usize,
    /// Payload bytes of these.
    pub bytes: usize,
    /// Jobs that it may have there at present.
    pub most_jobs: usize,
    /// Payload bytes likewise.
    pub most_bytes: usize,
}

fn describe(violations: &[FieldViolation]) -> String {
    let texts: Vec<_> = violations.iter().map(|v| format!("{}: {}", v.field, v.description)).collect();
    texts.join("; ")
}

impl RejectionReason {
    /// The time of the job was up when it arrived.
    pub(crate) const PAST: Self =
        Self::DeadlineUnreachable { expected: Duration::ZERO, needed: Duration::ZERO, budget: Duration::ZERO };

    /// What callers and counters are told; its [`index`](Self::index) is that in [`Reason::REFUSALS`].
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::QueueFull | Self::QueueTooLong { .. } | Self::NoRoomInTime => Reason::QueueFull,
            Self::DeadlineUnreachable { .. } | Self::WaitTooLong { .. } => Reason::DeadlineUnreachable,
            Self::OverRate { .. } | Self::OverInFlight { .. } => Reason::QuotaExceeded,
            Self::Draining | Self::PoolDraining => Reason::Draining,
            Self::UnknownKind { .. } => Reason::UnknownKind,
            Self::Invalid { .. } => Reason::InvalidField,
            Self::PayloadTooLarge { .. } => Reason::PayloadTooLarge,
            Self::LimitExceeded { .. } => Reason::LimitExceeded,
            Self::TenantShare { .. } => Reason::TenantShare,
        }
    }

    /// Position in [`Reason::REFUSALS`].
    #[must_use]
    pub fn index(&self) -> usize {
        self.reason() as usize
    }
}

impl fmt::Display for RejectionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PoolDraining => f.write_str("the pool is draining, until its operator resumes it"),
            Self::UnknownKind { suggestion: Some(kind) } => write!(f, "unknown kind; did you mean {kind:?}?"),
            Self::Invalid { violations } => write!(f, "invalid job: {}", describe(violations)),
            other => f.write_str(other.reason().words()),
        }
    }
}

impl std::error::Error for RejectionReason {}
