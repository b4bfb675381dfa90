//! Limits log lines that peers could cause in any number.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

const INTERVAL: Duration = Duration::from_secs(10);

/// Passes one log line in ten seconds, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<Passed>);

#[derive(Debug, Default)]
struct Passed {
    last: Option<Instant>,
    held_back: u64,
}

impl Throttle {
    /// If this line may pass, the number of lines held back before it.
    pub(crate) fn pass(&self) -> Option<u64> {
        let mut passed = self.0.lock();
        let now = Instant::now();
        if passed.last.is_some_and(|last| now - last < INTERVAL) {
            passed.held_back += 1;
            return None;
        }
        passed.last = Some(now);
        Some(std::mem::take(&mut passed.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_in_ten_seconds_passes_and_tells_of_the_others() {
        let throttle = Throttle::default();
        assert_eq!((throttle.pass(), throttle.pass(), throttle.pass()), (Some(0), None, None));
        tokio::time::advance(INTERVAL).await;
        assert_eq!((throttle.pass(), throttle.pass()), (Some(2), None));
    }
}
