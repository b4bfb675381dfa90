//! Why a job was not accepted, with its figures. The texts are in `reason.rs`; `src/rpc/status/job.rs` encodes the
//! status.

use std::{fmt, sync::Arc, time::Duration};

use super::{FieldViolation, Limiter, Reason};

/// Longest retry time.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// A job that was not accepted. It did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Rejection {
    /// The reason.
    pub reason: RejectionReason,
    /// The pool that refused; `None` if no pool was found.
    pub pool: Option<Arc<str>>,
    /// The kind in the job.
    pub kind: Arc<str>,
    /// Retry time. `None` means not on this server, or not with this job.
    pub retry_after: Option<Duration>,
}

/// Why a job was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RejectionReason {
    /// The queue is full, by jobs or by payload bytes.
    QueueFull,
    /// The queue has capacity, but the expected wait is longer than the pool allows.
    QueueTooLong {
        /// Predicted wait.
        expected: Duration,
    },
    /// The job waited for capacity until its deadline or queue timeout.
    NoRoomInTime,
    /// The job would not start in time.
    DeadlineUnreachable {
        /// Predicted wait.
        expected: Duration,
        /// Smallest timeout that is enough at present.
        needed: Duration,
        /// Time left of the budget.
        budget: Duration,
    },
    /// The job would wait longer than its queue timeout.
    WaitTooLong {
        /// Predicted wait.
        expected: Duration,
        /// The queue timeout.
        patience: Duration,
    },
    /// The tenant has reached its share of the queue, and other tenants are present.
    TenantShare {
        /// The tenant.
        tenant: String,
        /// Its use of the queue, and its bounds.
        part: TenantPart,
    },
    /// The job would wait too long for a limit of its kind.
    LimitExceeded {
        /// The limit.
        limit: Limiter,
        /// Predicted wait.
        expected: Duration,
        /// Time left of the budget.
        budget: Duration,
    },
    /// The tenant sent more jobs than its rate allows.
    OverRate {
        /// Allowed jobs per second.
        rate: u32,
    },
    /// The tenant has reached its limit of queued and running jobs.
    OverInFlight {
        /// Allowed jobs.
        limit: usize,
    },
    /// The server is draining, so the pool accepts no more jobs.
    Draining,
    /// An operator is draining the pool.
    PoolDraining,
    /// Attached workers run the kind, and none is attached: the caller does not wait, or its deadline is too short for
    /// the usual start of a worker.
    NoWorkers {
        /// Predicted wait.
        expected: Duration,
        /// Smallest timeout with which it would be held until a worker attaches; zero before the first start.
        needed: Duration,
        /// Time left of the budget.
        budget: Duration,
    },
    /// No handler has that name.
    UnknownKind {
        /// The closest name that exists.
        suggestion: Option<Arc<str>>,
    },
    /// Fields are out of bounds.
    Invalid {
        /// All violations.
        violations: Vec<FieldViolation>,
    },
    /// The payload is larger than allowed.
    PayloadTooLarge {
        /// Bytes of the payload.
        size: usize,
        /// Maximum bytes allowed.
        limit: usize,
    },
}

/// A tenant's use of a queue. Jobs that are less important than the arriving one do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantPart {
    /// Its queued jobs.
    pub jobs: usize,
    /// Their payload bytes.
    pub bytes: usize,
    /// Maximum number of queued jobs that are allowed at present.
    pub most_jobs: usize,
    /// Maximum payload bytes that are allowed at present.
    pub most_bytes: usize,
}

fn describe(violations: &[FieldViolation]) -> String {
    let texts: Vec<_> = violations.iter().map(|v| format!("{}: {}", v.field, v.description)).collect();
    texts.join("; ")
}

impl RejectionReason {
    /// The deadline had passed when the job arrived.
    pub(crate) const PAST: Self =
        Self::DeadlineUnreachable { expected: Duration::ZERO, needed: Duration::ZERO, budget: Duration::ZERO };

    /// The reason in statuses and counters. Its position in [`Reason::REFUSALS`] is [`index`](Self::index).
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::QueueFull | Self::QueueTooLong { .. } | Self::NoRoomInTime => Reason::QueueFull,
            Self::DeadlineUnreachable { .. } | Self::WaitTooLong { .. } => Reason::DeadlineUnreachable,
            Self::OverRate { .. } | Self::OverInFlight { .. } => Reason::QuotaExceeded,
            Self::Draining | Self::PoolDraining => Reason::Draining,
            Self::NoWorkers { .. } => Reason::NoWorkers,
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
