//! A refusal of the scheduler, with the time of a retry, which `src/scheduler/admission.rs` computes.

use std::time::Duration;

use crate::model::RejectionReason;

/// Why an arrival was not accepted, and when to retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: RejectionReason,
    /// Before jitter, which the host adds. `None` means not on this server.
    pub(crate) retry_after: Option<Duration>,
}
