use std::time::Duration;

use super::law::JOB_WEIGHT;

/// How long jobs run, in seconds.
pub(super) struct Estimates {
    kinds: Vec<ServiceTime>,
    /// Over the kinds as they come.
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
    fn add(&mut self, seconds: f64) {
        self.samples = self.samples.saturating_add(1);
        let weight = JOB_WEIGHT.max(1.0 / f64::from(self.samples));
        self.seconds += weight * (seconds - self.seconds);
    }
}

impl Estimates {
    /// Kinds that nothing is known of, and that are taken to run for `start`.
    pub(super) fn new(kinds: usize, start: Duration) -> Self {
        let unknown = ServiceTime { seconds: start.as_secs_f64(), samples: 0 };
        Self { kinds: vec![unknown; kinds], mean: unknown }
    }

    /// Learns from a run.
    pub(super) fn observe(&mut self, kind: usize, run: Duration) {
        let seconds = run.as_secs_f64();
        self.kinds[kind].add(seconds);
        self.mean.add(seconds);
    }

    /// Expected service time of a job of `kind`.
    pub(super) fn service(&self, kind: usize) -> f64 {
        self.kinds[kind].seconds
    }

    /// The same, once it was measured.
    pub(super) fn measured(&self, kind: usize) -> Option<f64> {
        Some(self.kinds[kind].seconds).filter(|_| self.kinds[kind].samples > 0)
    }

    /// Runs of `kind` that were measured.
    pub(super) fn runs(&self, kind: usize) -> u32 {
        self.kinds[kind].samples
    }

    /// Mean service time of the pool.
    pub(super) fn mean(&self) -> f64 {
        self.mean.seconds
    }

    /// Whether anything was measured.
    pub(super) fn is_measured(&self) -> bool {
        self.mean.samples > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sample_replaces_the_start_value() {
        let mut estimates = Estimates::new(1, Duration::from_millis(50));
        assert!((estimates.service(0) - 0.050).abs() < 1e-9 && estimates.measured(0).is_none());
        estimates.observe(0, Duration::from_millis(10));
        assert!((estimates.service(0) - 0.010).abs() < 1e-9);
        for _ in 0..200 {
            estimates.observe(0, Duration::from_millis(20));
        }
        assert!((estimates.service(0) - 0.020).abs() < 1e-4);
    }
}
