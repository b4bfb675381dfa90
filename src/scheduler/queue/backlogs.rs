//! Queued work of each tenant, to predict the wait of an arrival.

/// The queued work of each tenant, in buckets by powers of two.
///
/// In a fair queue, each tenant delays an arrival by at most as much work as the arrival's own tenant has: `Σ min(bₖ,
/// m)`. Summing over all tenants under the lock would be slow. The sum over buckets is exact, except for the bucket
/// that contains `m`: its part may be up to twice as high.
#[derive(Debug, Clone)]
pub(crate) struct Backlogs {
    /// Tenants and their seconds, by bucket.
    buckets: [(u32, f64); BUCKETS],
    /// Buckets that have a tenant.
    used: u64,
}

const BUCKETS: usize = 48;
/// The first bucket ends below a microsecond, and each further one at twice the previous bound. The last one has no
/// upper bound, and starts at two years.
const PER_SECOND: f64 = 1e6;

impl Default for Backlogs {
    fn default() -> Self {
        Self { buckets: [(0, 0.0); BUCKETS], used: 0 }
    }
}

impl Backlogs {
    /// Moves a tenant's backlog from `from` to `to` seconds; 0 means no tenant.
    pub(crate) fn change(&mut self, from: f64, to: f64) {
        if from > 0.0 {
            let at = bucket(from);
            let (tenants, seconds) = &mut self.buckets[at];
            *tenants -= 1;
            // Removes rounding errors with the bucket's last tenant.
            *seconds = if *tenants == 0 { 0.0 } else { (*seconds - from).max(0.0) };
            if *tenants == 0 {
                self.used &= !(1 << at);
            }
        }
        if to > 0.0 {
            let at = bucket(to);
            let (tenants, seconds) = &mut self.buckets[at];
            *tenants += 1;
            *seconds += to;
            self.used |= 1 << at;
        }
    }

    /// The work of all tenants, counting at most `max` seconds of each.
    pub(crate) fn up_to(&self, max: f64) -> f64 {
        let mut left = self.used;
        let mut sum = 0.0;
        while left != 0 {
            let (tenants, seconds) = self.buckets[left.trailing_zeros() as usize];
            sum += seconds.min(f64::from(tenants) * max);
            left &= left - 1;
        }
        sum
    }

    /// Tenants with work.
    #[cfg(test)]
    pub(crate) fn tenants(&self) -> usize {
        self.buckets.iter().map(|(tenants, _)| *tenants as usize).sum()
    }
}

/// Reads the power of two from the bits of the number, because each queued job needs it four times under the lock.
fn bucket(seconds: f64) -> usize {
    let exponent = (seconds * PER_SECOND).to_bits() >> 52;
    usize::try_from(exponent).map_or(0, |exponent| exponent.saturating_sub(1022)).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_at_least_the_exact_one_and_at_most_twice_that() {
        let work: Vec<f64> = (0..200).map(|tenant: i32| 1e-5 * 1.09_f64.powi(tenant * 7 % 200)).collect();
        let mut backlogs = Backlogs::default();
        for seconds in &work {
            backlogs.change(0.0, *seconds * 0.6);
            backlogs.change(*seconds * 0.6, *seconds);
        }
        for max in [1e-6, 1e-3, 0.4, 7.0, 1e3, 1e9] {
            let truth: f64 = work.iter().map(|seconds| seconds.min(max)).sum();
            let sum = backlogs.up_to(max);
            assert!(sum >= truth * (1.0 - 1e-9) && sum <= truth * 2.0, "{sum} for {truth} at {max}");
        }
        for seconds in &work {
            backlogs.change(*seconds, 0.0);
        }
        assert!(backlogs.up_to(f64::MAX).abs() < f64::MIN_POSITIVE && backlogs.used == 0);
    }
}
