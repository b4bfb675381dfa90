//! A histogram of durations with fixed bounds.

use std::time::Duration;

/// A histogram of durations: a count for each bound, and the sum.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Durations {
    /// Durations above the previous bound and up to this one; the last count is for those above all bounds.
    pub counts: [u64; Self::BOUNDS.len() + 1],
    /// Sum of all durations.
    pub sum: Duration,
}

impl Durations {
    /// Upper bounds in seconds, from 100 µs to ten minutes.
    pub const BOUNDS: [f64; 20] = [
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
        60.0, 300.0, 600.0,
    ];

    /// The index in `counts` of a duration in nanoseconds.
    #[must_use]
    pub fn bucket(nanos: u64) -> usize {
        let seconds = nanos as f64 / 1e9;
        Self::BOUNDS.partition_point(|bound| *bound < seconds)
    }

    /// Adds `count` durations, taken as `nanos` each.
    pub fn add(&mut self, nanos: u64, count: u64) {
        self.counts[Self::bucket(nanos)] += count;
        self.sum += Duration::from_nanos(nanos.saturating_mul(count));
    }

    /// Number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_at_most_its_bound() {
        for (nanos, bucket) in [(0, 0), (100_000, 0), (100_001, 1), (600_000_000_000, 19), (u64::MAX, 20)] {
            assert_eq!(Durations::bucket(nanos), bucket, "{nanos}");
        }
        let mut durations = Durations::default();
        durations.add(2_000_000, 3);
        durations.add(1, 1);
        assert_eq!((durations.count(), durations.counts[4], durations.counts[0]), (4, 3, 1));
        assert_eq!(durations.sum, Duration::from_nanos(6_000_001));
    }
}
