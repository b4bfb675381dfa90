use std::{sync::Arc, time::Duration};

use super::{FieldViolation, Limiter};

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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectionReason {
    /// The queue holds as many jobs, or as many payload bytes, as it may.
    #[error("the pool is full")]
    QueueFull,
    /// There is room, but a job that is queued now would wait for longer than the pool lets any wait.
    #[error("the queue is as long as it may be")]
    QueueTooLong {
        /// Predicted wait.
        expected: Duration,
    },
    /// The job waited for room until its time was up.
    #[error("the pool was full for all of the time that the caller gave")]
    NoRoomInTime,
    /// The job would not start in time.
    #[error("the job would not be done within the time that it has left")]
    DeadlineUnreachable {
        /// Predicted wait.
        expected: Duration,
        /// The least budget that would do now.
        needed: Duration,
        /// What is left of the budget.
        budget: Duration,
    },
    /// The job would wait for longer than its caller would.
    #[error("the job would wait for longer than its queue timeout")]
    WaitTooLong {
        /// Predicted wait.
        expected: Duration,
        /// What the caller would wait at most.
        patience: Duration,
    },
    /// The tenant holds its share of the queue, and others are present.
    #[error("the tenant holds its share of the queue")]
    TenantShare {
        /// The tenant.
        tenant: String,
        /// What it holds, and what it may.
        part: TenantPart,
    },
    /// The job would wait too long for its turn within a limit of its kind.
    #[error("{limit}, and the job would wait too long for its turn")]
    LimitExceeded {
        /// The limit.
        limit: Limiter,
        /// Predicted wait.
        expected: Duration,
        /// What is left of the budget.
        budget: Duration,
    },
    /// The tenant sent more jobs than its rate allows.
    #[error("the tenant sent more jobs than its quota allows in a second")]
    OverRate {
        /// Jobs per second that are allowed.
        rate: u32,
    },
    /// The tenant has as many jobs queued and running as it may.
    #[error("the tenant has as many jobs queued and running as its quota allows; send the next when one ends")]
    OverInFlight {
        /// Jobs that are allowed.
        limit: usize,
    },
    /// The pool takes no more jobs.
    #[error("the server is draining")]
    Draining,
    /// The operator drains the pool.
    #[error("the pool is draining, until its operator resumes it")]
    PoolDraining,
    /// No handler has that name.
    #[error("unknown kind{}", suggestion.as_ref().map(|kind| format!("; did you mean {kind:?}?")).unwrap_or_default())]
    UnknownKind {
        /// The closest name that exists.
        suggestion: Option<Arc<str>>,
    },
    /// Fields are out of their bounds.
    #[error("invalid job: {}", describe(violations))]
    Invalid {
        /// Each of them.
        violations: Vec<FieldViolation>,
    },
    /// The payload is larger than allowed.
    #[error("{}", Self::TOO_LARGE)]
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
    /// The sentence for a payload over its limit, whichever check finds it.
    pub const TOO_LARGE: &str = "the message is larger than the server takes; its payload, or what is beside that";

    /// All reasons as `google.rpc.ErrorInfo` names them, in the order of [`index`](Self::index).
    pub const NAMES: [&str; 9] = [
        "QUEUE_FULL",
        "DEADLINE_UNREACHABLE",
        "QUOTA_EXCEEDED",
        "DRAINING",
        "UNKNOWN_KIND",
        "INVALID_FIELD",
        "PAYLOAD_TOO_LARGE",
        "LIMIT_EXCEEDED",
        "TENANT_SHARE",
    ];

    /// Position in [`NAMES`](Self::NAMES).
    #[must_use]
    pub fn index(&self) -> usize {
        match self {
            Self::QueueFull | Self::QueueTooLong { .. } | Self::NoRoomInTime => 0,
            Self::DeadlineUnreachable { .. } | Self::WaitTooLong { .. } => 1,
            Self::OverRate { .. } | Self::OverInFlight { .. } => 2,
            Self::Draining | Self::PoolDraining => 3,
            Self::UnknownKind { .. } => 4,
            Self::Invalid { .. } => 5,
            Self::PayloadTooLarge { .. } => 6,
            Self::LimitExceeded { .. } => 7,
            Self::TenantShare { .. } => 8,
        }
    }

    /// Name in `google.rpc.ErrorInfo` and in the counters.
    #[must_use]
    pub fn name(&self) -> &'static str {
        Self::NAMES[self.index()]
    }
}
