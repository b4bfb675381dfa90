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
    /// Upper bounds in nanoseconds, from 100 µs to ten minutes.
    pub const BOUNDS: [u64; 20] = [
        100_000,
        250_000,
        500_000,
        1_000_000,
        2_500_000,
        5_000_000,
        10_000_000,
        25_000_000,
        50_000_000,
        100_000_000,
        250_000_000,
        500_000_000,
        1_000_000_000,
        2_500_000_000,
        5_000_000_000,
        10_000_000_000,
        30_000_000_000,
        60_000_000_000,
        300_000_000_000,
        600_000_000_000,
    ];

    /// The index in `counts` of a duration in nanoseconds.
    #[must_use]
    pub fn place(nanos: u64) -> usize {
        Self::BOUNDS.partition_point(|bound| *bound < nanos)
    }

    /// Adds `count` durations of about `nanos` each.
    pub fn add(&mut self, nanos: u64, count: u64) {
        self.counts[Self::place(nanos)] += count;
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
        for (nanos, place) in [(0, 0), (100_000, 0), (100_001, 1), (600_000_000_000, 19), (u64::MAX, 20)] {
            assert_eq!(Durations::place(nanos), place, "{nanos}");
        }
        let mut durations = Durations::default();
        durations.add(2_000_000, 3);
        durations.add(1, 1);
        assert_eq!((durations.count(), durations.counts[4], durations.counts[0]), (4, 3, 1));
        assert_eq!(durations.sum, Duration::from_nanos(6_000_001));
    }
}
