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
    /// Those that were refused because no worker was attached.
    without_workers: f64,
    /// The sums at the last sample.
    last: Option<[u64; 3]>,
    is_full: bool,
}

impl Pressure {
    /// Adds a sample.
    pub fn sample(&mut self, load: &PoolLoad) {
        let Counts { accepted, rejected, .. } = load.counts;
        let refusals: u64 = BY_LOAD.iter().map(|reason| rejected[*reason as usize]).sum();
        let without_workers = rejected[Reason::NoWorkers as usize];
        let sums = [accepted + refusals + without_workers, refusals, without_workers];
        let last = self.last.replace(sums).unwrap_or(sums);
        let mean = |mean: &mut f64, sample: f64| *mean += WEIGHT * (sample - *mean);
        mean(&mut self.busy, load.busy);
        mean(&mut self.asks, (sums[0] - last[0]) as f64);
        mean(&mut self.refusals, (sums[1] - last[1]) as f64);
        mean(&mut self.without_workers, (sums[2] - last[2]) as f64);
        let share = |refusals: f64| if refusals > 0.01 { refusals / self.asks } else { 0.0 };
        // The bounds differ, so that one job does not change the answer.
        let (busy, many) = if self.is_full { (0.7, 0.01) } else { (0.9, 0.1) };
        self.is_full = self.busy >= busy
            || (self.busy >= 0.5 && share(self.refusals) >= many)
            || share(self.without_workers) >= many;
    }

    /// Whether nearly all workers are busy, or a tenth of the jobs is refused while half of the workers are, or because
    /// none is attached.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples for so many seconds, with so many jobs per second.
    fn sample(pressure: &mut Pressure, sums: &mut [u64; 3], seconds: u64, busy: f64, rates: [u64; 3]) -> bool {
        for _ in 0..4 * seconds {
            sums.iter_mut().zip(rates).for_each(|(sum, rate)| *sum += rate / 4);
            let mut counts = Counts { accepted: sums[0], ..Counts::default() };
            counts.rejected[Reason::DeadlineUnreachable as usize] = sums[1];
            counts.rejected[Reason::NoWorkers as usize] = sums[2];
            pressure.sample(&PoolLoad { queued: 0, running: 0, busy, utilization: busy, counts });
        }
        pressure.is_full()
    }

    #[test]
    fn busy_workers_and_refusals_show_a_lack_of_capacity_though_the_queue_is_short() {
        let cases = [
            ("a quiet pool", 20, 0.4, [40, 0, 0], false),
            ("busy workers", 8, 1.0, [40, 0, 0], true),
            ("still busy", 20, 0.8, [40, 0, 0], true),
            ("quiet again", 8, 0.4, [40, 0, 0], false),
            ("deadlines that no pool could keep", 20, 0.1, [0, 400, 0], false),
            ("no more of them", 20, 0.1, [40, 0, 0], false),
            ("one refusal of a hundred", 20, 0.8, [400, 4, 0], false),
            ("most are refused", 2, 0.8, [8, 72, 0], true),
            ("none is refused any more", 20, 0.6, [80, 0, 0], false),
            ("no worker, and some callers who do not wait", 8, 0.0, [32, 0, 8], true),
            ("a worker has attached", 20, 0.3, [40, 0, 0], false),
        ];
        let (mut pressure, mut sums) = (Pressure::default(), [0; 3]);
        for (name, seconds, busy, rates, is_full) in cases {
            assert_eq!(sample(&mut pressure, &mut sums, seconds, busy, rates), is_full, "{name}: {pressure:?}");
        }
    }
}
