//! The recent demand for workers, from samples of the load.

use super::{EASY, HOT, HOT_SAMPLES, QUIET};

/// Samples in a row after which a load makes a pool grow.
const HELD: usize = HOT_SAMPLES as usize;
/// Samples for which a pool must have been quiet before it shrinks.
const QUIET_SAMPLES: usize = 30;
/// Samples that are remembered: those, and as many before them as a load that was held begins before it is.
const SAMPLES: usize = QUIET_SAMPLES + HELD - 1;

/// Deviations of a load that comes at random which are left free.
const SPARE: f64 = 3.0;

/// How many workers had jobs, on the mean of each of the last samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Demand {
    /// In the order in which they came, but that the oldest one gives its place to the newest.
    samples: [f64; SAMPLES],
    seen: usize,
}

impl Demand {
    pub(super) const NEW: Self = Self { samples: [0.0; SAMPLES], seen: 0 };

    pub(super) fn add(&mut self, workers: f64) {
        self.samples[self.seen % SAMPLES] = workers;
        self.seen += 1;
    }

    /// Whether so many workers had little to do, for as long as is remembered: on the mean, and without three busy samples
    /// in a row.
    pub(super) fn is_quiet(&self, workers: usize) -> bool {
        self.seen >= SAMPLES && self.mean().max(self.held()) < QUIET * workers as f64
    }

    fn mean(&self) -> f64 {
        self.latest().sum::<f64>() / QUIET_SAMPLES as f64
    }

    /// The fewest of so many workers with which half of their time is enough, three times the root of the load is left for chance
    /// (square-root staffing; Halfin and Whitt, 1981), none of the samples had found too few, and no three in a row had made
    /// the pool grow. One less is not worth it, unless half of their time had been enough at each of the samples.
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

    /// What was not gone under at some three samples in a row.
    fn held(&self) -> f64 {
        let held = |first: usize| (first..first + HELD).map(|at| self.sample(at)).fold(f64::MAX, f64::min);
        (0..=SAMPLES - HELD).map(held).fold(0.0, f64::max)
    }
}
