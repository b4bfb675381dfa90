//! The token bucket of a rate.

use tokio::time::Instant;

use crate::model::Rate;

/// A token bucket, full at first. It stores only the instant at which it will be full again (the generic cell rate
/// algorithm, ITU-T I.371), so that it needs no timer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bucket {
    full_at: Option<Instant>,
}

impl Bucket {
    /// Whether it has so many tokens.
    pub(crate) fn has(&self, rate: Rate, tokens: u32, now: Instant) -> bool {
        tokens <= rate.burst.get() && self.when(rate, tokens).is_none_or(|at| at <= now)
    }

    /// When it has so many tokens, perhaps in the past; `None` means always. At most the burst may be requested.
    pub(crate) fn when(&self, rate: Rate, tokens: u32) -> Option<Instant> {
        self.full_at?.checked_sub(rate.interval * (rate.burst.get() - tokens))
    }

    /// Takes the token of a start.
    pub(crate) fn take(&mut self, rate: Rate, now: Instant) {
        self.full_at = Some(self.full_at.map_or(now, |full_at| full_at.max(now)) + rate.interval);
    }

    /// When it is full, perhaps in the past; `None` means always.
    pub(crate) fn full_at(&self) -> Option<Instant> {
        self.full_at
    }

    /// Seconds until a start that has `before` others before it.
    pub(crate) fn wait(&self, rate: Rate, before: f64, now: Instant) -> f64 {
        let full_in = self.full_at.map_or(0.0, |at| at.saturating_duration_since(now).as_secs_f64());
        let missing = before + 1.0 - f64::from(rate.burst.get());
        (full_in + missing * rate.interval.as_secs_f64()).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU32, time::Duration};

    use super::*;

    #[test]
    fn tokens_come_one_by_one_and_no_more_than_the_burst() {
        let rate = Rate { interval: Duration::from_millis(100), burst: NonZeroU32::new(3).expect("three") };
        let start = Instant::now() + Duration::from_secs(10);
        let at = |ms| start + Duration::from_millis(ms);
        let mut bucket = Bucket::default();
        for _ in 0..3 {
            assert!(bucket.has(rate, 1, start));
            bucket.take(rate, start);
        }
        assert!(!bucket.has(rate, 1, at(99)) && bucket.has(rate, 1, at(100)) && !bucket.has(rate, 2, at(199)));
        assert_eq!(bucket.when(rate, 2), Some(at(200)));
        assert!(bucket.has(rate, 3, at(900)) && !bucket.has(rate, 4, at(900)));
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(bucket.wait(rate, 0.0, at(40)), 0.06) && near(bucket.wait(rate, 2.0, at(40)), 0.26));
        // A clock that is read before the lock may be a little late.
        bucket.take(rate, at(900));
        bucket.take(rate, at(899));
        assert_eq!(bucket.full_at(), Some(at(1100)));
    }
}
