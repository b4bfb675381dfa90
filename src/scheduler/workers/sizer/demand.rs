//! The recent demand for workers, from samples of the load.

use super::{EASY, HOT, HOT_SAMPLES, QUIET};

/// Samples in a row after which a load makes a pool grow.
const HELD: usize = HOT_SAMPLES as usize;
/// Samples for which a pool must be quiet before it shrinks.
const QUIET_SAMPLES: usize = 30;
/// Samples that are remembered: the quiet ones, and those before them in which a held load may have begun.
const SAMPLES: usize = QUIET_SAMPLES + HELD - 1;

/// Standard deviations of a random load that are left as reserve.
const SPARE: f64 = 3.0;

/// Busy workers on average, for each of the last samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Demand {
    /// In order, as a ring: the newest replaces the oldest.
    samples: [f64; SAMPLES],
    seen: usize,
}

impl Demand {
    pub(super) const NEW: Self = Self { samples: [0.0; SAMPLES], seen: 0 };

    pub(super) fn add(&mut self, workers: f64) {
        self.samples[self.seen % SAMPLES] = workers;
        self.seen += 1;
    }

    /// Whether `workers` had little to do for all remembered samples: on average, and without three busy samples in a
    /// row.
    pub(super) fn is_quiet(&self, workers: usize) -> bool {
        self.seen >= SAMPLES && self.mean().max(self.held()) < QUIET * workers as f64
    }

    fn mean(&self) -> f64 {
        self.latest().sum::<f64>() / QUIET_SAMPLES as f64
    }

    /// The fewest workers that meet these conditions: half of their time is enough, with three times the root of the
    /// load as reserve (square-root staffing; Halfin and Whitt, 1981); no sample had found them too few; no three in a
    /// row had made the pool grow. One less is not worth it, unless half of their time had been enough in each sample.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count that is not negative")]
    pub(super) fn fits(&self, workers: usize) -> usize {
        let (mean, peak) = (self.mean(), self.peak());
        let enough = (mean / EASY).max(mean + SPARE * mean.sqrt()).max(peak).ceil() as usize;
        let fewer = enough.max((self.held() / HOT) as usize + 1);
        let is_worth = fewer + 1 < workers || peak <= EASY * fewer as f64;
        if is_worth { fewer } else { workers }
    }

    /// Of the busiest sample.
    fn peak(&self) -> f64 {
        self.latest().fold(0.0, f64::max)
    }

    fn sample(&self, at: usize) -> f64 {
        self.samples[(self.seen + at) % SAMPLES]
    }

    fn latest(&self) -> impl Iterator<Item = f64> {
        (SAMPLES - QUIET_SAMPLES..SAMPLES).map(|at| self.sample(at))
    }

    /// Highest load sustained over three samples.
    fn held(&self) -> f64 {
        let held = |first: usize| (first..first + HELD).map(|at| self.sample(at)).fold(f64::MAX, f64::min);
        (0..=SAMPLES - HELD).map(held).fold(0.0, f64::max)
    }
}
