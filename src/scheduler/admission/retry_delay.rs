//! The retry delay of a refusal.

use std::time::Duration;

use super::{Expected, Refusal, seconds};
use crate::model::RejectionReason;

const MIN_DELAY: Duration = Duration::from_millis(10);
const MAX_DELAY: Duration = Duration::from_secs(5);
/// Longest retry delay for a limit. It is longer because the time of a limit is certain.
const MAX_LIMIT_DELAY: Duration = Duration::from_secs(60);

impl Expected {
    /// A refusal. The retry delay ends when the wait has fallen to `allowed` seconds and a job has run. If the queue is
    /// full, `allowed` is 0.
    pub(super) fn refuse(self, reason: RejectionReason, allowed: f64) -> Refusal {
        // The time of a limit is certain.
        let longest = if self.by.is_some() { MAX_LIMIT_DELAY } else { MAX_DELAY };
        let delay = seconds(self.wait - allowed + self.service).clamp(MIN_DELAY, longest);
        Refusal { reason, retry_after: Some(delay) }
    }
}

/// The retry delay after an expected wait of `wait` seconds.
pub(in crate::scheduler) fn retry_delay(wait: f64) -> Duration {
    seconds(wait).clamp(MIN_DELAY, MAX_DELAY)
}
