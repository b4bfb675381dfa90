//! A small histogram of durations, of which many can be kept and subtracted: eight buckets for each power of two.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::Distribution;

/// Buckets for each power of two of microseconds.
const PARTS: u64 = 8;
/// Up to 71 minutes, more than the longest recorded duration.
const BUCKETS: usize = 32 * PARTS as usize;

/// Durations within six per cent, from a microsecond to an hour. An empty one takes no memory for its buckets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spread(Vec<u64>);

impl Spread {
    /// Adds the durations of a histogram in nanoseconds.
    pub(super) fn add_all(&mut self, histogram: &Histogram<u64>) {
        for recorded in histogram.iter_recorded() {
            let nanos = histogram.median_equivalent(recorded.value_iterated_to());
            self.add(Duration::from_nanos(nanos), recorded.count_at_value());
        }
    }

    /// Adds `count` durations.
    pub(crate) fn add(&mut self, duration: Duration, count: u64) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).max(1);
        let exponent = micros.ilog2();
        // The three bits below the highest one.
        let part = ((u128::from(micros) * u128::from(PARTS)) >> exponent) as u64 % PARTS;
        let bucket = (u64::from(exponent) * PARTS + part) as usize;
        self.0.resize(BUCKETS, 0);
        self.0[bucket.min(BUCKETS - 1)] += count;
    }

    /// Number of durations.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The durations that were added since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let counts = self.0.iter().enumerate();
        Self(counts.map(|(at, count)| count.saturating_sub(earlier.0.get(at).copied().unwrap_or(0))).collect())
    }

    /// The duration that `share` of all do not exceed; zero without any.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let rank = (share * self.count() as f64).ceil().max(1.0);
        let mut seen = 0.0;
        let bucket = self.0.iter().position(|count| {
            seen += *count as f64;
            seen >= rank
        });
        bucket.map_or(Duration::ZERO, middle)
    }

    /// The distribution, within six per cent.
    pub(crate) fn distribution(&self) -> Distribution {
        let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|share| self.quantile(share));
        Distribution { count: self.count(), p50, p90, p99, max }
    }
}

/// The middle of a bucket.
fn middle(bucket: usize) -> Duration {
    let (exponent, part) = (bucket / PARTS as usize, bucket % PARTS as usize);
    let parts = PARTS as f64 + part as f64 + 0.5;
    Duration::from_secs_f64((exponent as f64).exp2() * parts / PARTS as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_kept_within_six_per_cent() {
        for micros in [8_u64, 39_000, 415_000, 1_000_000, 3_599_999_999] {
            let mut spread = Spread::default();
            spread.add(Duration::from_micros(micros), 1);
            let off = spread.quantile(0.5).as_secs_f64() * 1e6 / micros as f64 - 1.0;
            assert!(off.abs() <= 0.0625, "{micros}: {off}");
        }
        let mut longest = Spread::default();
        longest.add(Duration::MAX, 1);
        assert!(longest.quantile(1.0) > Duration::from_secs(3600));
    }

    #[test]
    fn what_was_added_since_is_told_apart() {
        let (mut spread, ms) = (Spread::default(), Duration::from_millis);
        spread.add(ms(10), 90);
        let earlier = spread.clone();
        assert_eq!(earlier.since(&earlier).distribution(), Distribution::default());
        spread.add(ms(100), 9);
        spread.add(ms(1000), 1);
        let since = spread.since(&earlier).distribution();
        let near = |is: Duration, millis: u64| (is.as_secs_f64() / ms(millis).as_secs_f64() - 1.0).abs() < 0.07;
        assert!(since.count == 10 && near(since.p50, 100) && near(since.max, 1000), "{since:?}");
        assert_eq!(spread.since(&Spread::default()).count(), 100);
        // The kind was replaced, and its figures began anew.
        assert_eq!(earlier.since(&spread).count(), 0);
    }
}
