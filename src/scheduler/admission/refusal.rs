use std::time::Duration;

use crate::model::{Limiter, RejectionReason, TenantPart};

/// Why an arrival was not accepted, and when to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: RefusalReason,
    /// Before jitter, which the host adds. `None`: not here.
    pub(crate) retry_after: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    QueueFull,
    /// There are places, but queued jobs wait for too long.
    QueueTooLong {
        expected: Duration,
    },
    DeadlineUnreachable {
        expected: Duration,
        needed: Duration,
        budget: Duration,
    },
    /// Longer than the caller would.
    WaitTooLong {
        expected: Duration,
        patience: Duration,
    },
    /// The tenant has its part of the queue.
    TenantShare(TenantPart),
    LimitExceeded {
        limit: Limiter,
        expected: Duration,
        budget: Duration,
    },
    /// Its caller waited for room, and its time is over.
    NoRoomInTime,
    Draining,
    /// The operator drains this pool alone.
    PoolDraining,
}

impl RefusalReason {
    /// Its time is over before it begins.
    pub(crate) const PAST: Self =
        Self::DeadlineUnreachable { expected: Duration::ZERO, needed: Duration::ZERO, budget: Duration::ZERO };

    pub(crate) fn index(self) -> usize {
        let reason = match self {
            Self::QueueFull => RejectionReason::QueueFull,
            Self::QueueTooLong { expected } => RejectionReason::QueueTooLong { expected },
            Self::WaitTooLong { expected, patience } => RejectionReason::WaitTooLong { expected, patience },
            Self::DeadlineUnreachable { expected, needed, budget } => {
                RejectionReason::DeadlineUnreachable { expected, needed, budget }
            }
            Self::TenantShare(part) => RejectionReason::TenantShare { tenant: String::new(), part },
            Self::LimitExceeded { limit, expected, budget } => {
                RejectionReason::LimitExceeded { limit, expected, budget }
            }
            Self::NoRoomInTime => RejectionReason::NoRoomInTime,
            Self::Draining => RejectionReason::Draining,
            Self::PoolDraining => RejectionReason::PoolDraining,
        };
        reason.index()
    }
}
