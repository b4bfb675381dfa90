//! Whether a pool has capacity left, from samples of its load. Admission keeps queues short, so that their length alone
//! does not show a lack of workers.

use super::{Counts, PoolLoad};
use crate::model::Reason;

/// Weight of a sample. With four samples per second, the mean is over about two seconds and a half.
const WEIGHT: f64 = 0.1;

/// Refusals that more workers would have prevented, unless a deadline is too short for any number of workers.
const BY_LOAD: [Reason; 3] = [Reason::QueueFull, Reason::DeadlineUnreachable, Reason::TenantShare];

/// Means of the last samples of a pool.
#[derive(Debug, Clone, Default)]
pub struct Pressure {
    /// Busy share of the workers.
    busy: f64,
    /// Jobs per sample that arrived, and those that were refused because of the load.
    asks: f64,
    refusals: f64,
    /// The sums at the last sample.
    last: Option<[u64; 2]>,
    is_full: bool,
}

impl Pressure {
    /// Adds a sample.
    pub fn sample(&mut self, load: &PoolLoad) {
        let Counts { accepted, rejected, .. } = load.counts;
        let refusals: u64 = BY_LOAD.iter().map(|reason| rejected[*reason as usize]).sum();
        let sums = [accepted + refusals, refusals];
        let last = self.last.replace(sums).unwrap_or(sums);
        let mean = |mean: &mut f64, sample: f64| *mean += WEIGHT * (sample - *mean);
        mean(&mut self.busy, load.busy);
        mean(&mut self.asks, (sums[0] - last[0]) as f64);
        mean(&mut self.refusals, (sums[1] - last[1]) as f64);
        let refused = if self.refusals > 0.01 { self.refusals / self.asks } else { 0.0 };
        // The bounds differ, so that one job does not change the answer.
        self.is_full = match self.is_full {
            false => self.busy >= 0.9 || (self.busy >= 0.5 && refused >= 0.1),
            true => self.busy >= 0.7 || (self.busy >= 0.5 && refused >= 0.01),
        };
    }

    /// Whether nearly all workers are busy, or a tenth of the jobs is refused while half of the workers are.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples for so many seconds, with so many jobs per second.
    fn sample(
        pressure: &mut Pressure,
        sums: &mut [u64; 2],
        seconds: u64,
        busy: f64,
        [accepted, refused]: [u64; 2],
    ) -> bool {
        for _ in 0..4 * seconds {
            sums[0] += accepted / 4;
            sums[1] += refused / 4;
            let mut counts = Counts { accepted: sums[0], ..Counts::default() };
            counts.rejected[Reason::DeadlineUnreachable as usize] = sums[1];
            pressure.sample(&PoolLoad { queued: 0, running: 0, busy, utilization: busy, counts });
        }
        pressure.is_full()
    }

    #[test]
    fn busy_workers_and_refusals_show_a_lack_of_capacity_though_the_queue_is_short() {
        let cases = [
            ("a quiet pool", 20, 0.4, [40, 0], false),
            ("busy workers", 8, 1.0, [40, 0], true),
            ("still busy", 20, 0.8, [40, 0], true),
            ("quiet again", 8, 0.4, [40, 0], false),
            ("deadlines that no pool could keep", 20, 0.1, [0, 400], false),
            ("no more of them", 20, 0.1, [40, 0], false),
            ("one refusal of a hundred", 20, 0.8, [400, 4], false),
            ("most are refused", 2, 0.8, [8, 72], true),
            ("none is refused any more", 20, 0.6, [80, 0], false),
        ];
        let (mut pressure, mut sums) = (Pressure::default(), [0; 2]);
        for (name, seconds, busy, rates, is_full) in cases {
            assert_eq!(sample(&mut pressure, &mut sums, seconds, busy, rates), is_full, "{name}: {pressure:?}");
        }
    }
}
