use std::time::Duration;

use crate::model::Criticality;

/// Weight of one finished job in the mean of its kind.
const WEIGHT: f64 = 0.05;
/// Service time of a kind that nothing is known of, in seconds.
const START: f64 = 0.05;

/// How long jobs run, and how much work is queued.
pub(super) struct Estimates {
    kinds: Vec<ServiceTime>,
    /// Seconds of queued work by class, the most important first.
    backlog: [f64; 4],
    /// Mean service time over the kinds as they come, in seconds.
    mean: ServiceTime,
}

/// Exponentially weighted mean of service times; the first samples weigh as much as a plain mean gives them, so that
/// the start value is forgotten at once.
#[derive(Clone, Copy)]
struct ServiceTime {
    seconds: f64,
    samples: u32,
}

impl ServiceTime {
    const UNKNOWN: Self = Self { seconds: START, samples: 0 };

    fn add(&mut self, seconds: f64) {
        self.samples = self.samples.saturating_add(1);
        let weight = WEIGHT.max(1.0 / f64::from(self.samples));
        self.seconds += weight * (seconds - self.seconds);
    }
}

impl Estimates {
    pub(super) fn new(kinds: usize) -> Self {
        Self { kinds: vec![ServiceTime::UNKNOWN; kinds], backlog: [0.0; 4], mean: ServiceTime::UNKNOWN }
    }

    /// Learns from a run.
    pub(super) fn observe(&mut self, kind: usize, run: Duration) {
        let seconds = run.as_secs_f64();
        self.kinds[kind].add(seconds);
        self.mean.add(seconds);
    }

    /// Expected service time of a job of `kind`, in seconds.
    pub(super) fn service(&self, kind: usize) -> f64 {
        self.kinds[kind].seconds
    }

    /// Whether anything was measured.
    pub(super) fn is_measured(&self) -> bool {
        self.mean.samples > 0
    }

    /// A job with `work` seconds joined the queue.
    pub(super) fn queue(&mut self, class: Criticality, work: f64) {
        self.backlog[class.rank()] += work;
    }

    /// A job with `work` seconds left the queue. `empty` says that it was the last one, which clears rounding errors.
    pub(super) fn unqueue(&mut self, class: Criticality, work: f64, empty: bool) {
        self.backlog[class.rank()] -= work;
        if empty {
            self.backlog = [0.0; 4];
        }
    }

    /// Wait of a job of `class` behind the work of its class and of those above, on `workers` busy workers.
    pub(super) fn wait(&self, class: Criticality, workers: usize) -> Duration {
        let ahead: f64 = self.backlog[..=class.rank()].iter().sum();
        let workers = u32::try_from(workers.max(1)).unwrap_or(u32::MAX);
        // One mean service time is shared among the workers until the first of them is free.
        let seconds = (ahead.max(0.0) + self.mean.seconds) / f64::from(workers);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sample_replaces_the_start_value() {
        let mut estimates = Estimates::new(1);
        assert!((estimates.service(0) - START).abs() < 1e-9);
        estimates.observe(0, Duration::from_millis(10));
        assert!((estimates.service(0) - 0.010).abs() < 1e-9);
        for _ in 0..200 {
            estimates.observe(0, Duration::from_millis(20));
        }
        assert!((estimates.service(0) - 0.020).abs() < 1e-4);
    }

    #[test]
    fn wait_counts_own_class_and_those_above() {
        let mut estimates = Estimates::new(1);
        estimates.observe(0, Duration::from_millis(100));
        estimates.queue(Criticality::CriticalPlus, 0.1);
        estimates.queue(Criticality::Sheddable, 0.7);
        let wait = |class| estimates.wait(class, 2).as_millis();
        assert_eq!(wait(Criticality::Critical), 100);
        assert_eq!(wait(Criticality::Sheddable), 450);
    }

    #[test]
    fn rounding_stays_small_while_the_queue_is_never_empty() {
        let mut estimates = Estimates::new(1);
        let class = Criticality::Critical;
        // From a tenth of a microsecond to an hour, out of step with each other.
        let work = |job: u32| 1e-7 * 1.9_f64.powi((job * 7 % 38).try_into().expect("small"));
        estimates.queue(class, work(0));
        for job in 1..500_000 {
            estimates.queue(class, work(job));
            estimates.unqueue(class, work(job - 1), false);
        }
        let drift = (estimates.backlog[class.rank()] - work(499_999)).abs();
        assert!(drift < 1e-6, "{drift} s");
    }
}
