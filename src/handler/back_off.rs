//! The pause after a failure: of a factory, of a process.

use std::time::Duration;

use rand::RngExt;

const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A random pause after a failure: 0.5 to 1.5 times a base that doubles `doublings` times, from 100 ms to 30 s.
pub(crate) fn back_off(doublings: u32) -> Duration {
    SHORTEST_PAUSE.saturating_mul(1 << doublings.min(16)).min(LONGEST_PAUSE).mul_f64(rand::rng().random_range(0.5..1.5))
}
