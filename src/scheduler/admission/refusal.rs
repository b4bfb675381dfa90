use std::time::Duration;

use crate::model::RejectionReason;

/// Why an arrival was not accepted, and when to come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: RejectionReason,
    /// Before jitter, which the host adds. `None`: not here.
    pub(crate) retry_after: Option<Duration>,
}
