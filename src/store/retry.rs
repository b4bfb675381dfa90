//! Whether and when a failed attempt is tried again. `src/detached/run.rs` says which failures may be.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Claimed, Next};
use crate::model::Reason;

/// Longest delay, whatever the policy of the kind.
const MAX_DELAY: Duration = Duration::from_secs(366 * 24 * 3600);
/// Crashes in a row, of workers or of servers, after which a job becomes a dead letter, whatever its policy.
pub(super) const MAX_CRASHES: u32 = 3;

/// Number and delays of the retries of a failed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Maximum number of attempts that count; drains and lost leases do not. Default 5.
    pub max_attempts: u32,
    /// Upper limit of the delay after the first failure; it doubles with each further one. Default 1 s.
    pub initial: Duration,
    /// Upper limit of all delays. Default 10 min.
    pub max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_attempts: 5, initial: Duration::from_secs(1), max: Duration::from_secs(600) }
    }
}

impl RetryPolicy {
    /// What follows a failed attempt. `jitter` is a random number from 0 to 1. The delay has "full jitter", as in
    /// Amazon's "Exponential Backoff And Jitter".
    #[must_use]
    pub fn next(&self, claimed: &Claimed, reason: Reason, retryable: bool, jitter: f64) -> Next {
        let is_crash = matches!(reason, Reason::WorkerCrashed | Reason::WorkerLost);
        let is_poison = is_crash && claimed.crashes + 1 >= MAX_CRASHES;
        // The attempt does not count.
        if reason == Reason::WorkerLost && !is_poison {
            return Next::GiveBack;
        }
        if !retryable || is_poison || claimed.failures + 1 >= self.max_attempts {
            return Next::Failed;
        }
        let ceiling = self.initial.saturating_mul(2_u32.saturating_pow(claimed.failures)).min(self.max).min(MAX_DELAY);
        Next::Retry { after: ceiling.mul_f64(jitter.clamp(0.0, 1.0)) }
    }
}
