//! Decides the number of workers of a pool: a pure function of one sample per second. `sizing.rs` takes the samples,
//! and `src/pool/timers.rs` is the timer.
//!
//! | | when | by |
//! |---|---|---|
//! | grow | the queued jobs would keep the workers busy for `w > 1` mean runs, or a ratio `r ≥ 0.1` of the jobs is refused for lack of workers, in two samples in a row; `w > 4` or `r ≥ 0.5` in one sample | `max(n/4, n·w/4, n·r/(1 - r), 1)`, up to `2n` |
//! | | `busy ≥ 0.8` in three samples in a row | `max(n/4, 1)` |
//! | shrink | the mean of `busy` over thirty samples is below 0.3, and no three samples in a row are above that | to a size at which the mean is 0.5 (`Demand::fits`) |
//!
//! While workers are busy for 0.3 to 0.8 of their time, the size does not change, so random variation has no effect. A
//! load above that band is followed within five seconds. A load below it must last for thirty seconds. The pool then
//! shrinks within five more, in one step, to the smallest number of workers that was enough in each sample.
//!
//! Growing and shrinking never undo each other. A pool does not grow so far that its load would be below 0.3, and a
//! shrink leaves a utilization of at most 0.5. For three samples after a shrink, a pool grows only if a single sample
//! requires it.
//!
//! If jobs take twice as long as before (`slowdown.rs`), a pool keeps its size until they take less than 1.5 times as
//! long. Meanwhile it makes trials (`sizer/guard.rs`): after five samples, later ten, twenty, up to a minute, it
//! doubles its workers. If the finished work rises by at least half as much as the busy workers, the pool doubles them
//! again. When it needs no more, the current run times become the reference. Otherwise it returns to the previous size.
//!
//! Finished work per second is measured in previous run times, and counts only jobs that ended in time.
//!
//! None of these figures is configurable. They are ratios and counts, so they fit jobs of a millisecond and of a minute
//! alike. Only the bounds of the size need an operator's knowledge.

mod guard;

use guard::{Growth, Guard, SLOW_NO_MORE};

/// Smallest and largest number of workers of a pool. They are equal if its size is fixed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) min: usize,
    pub(crate) max: usize,
}

/// The figures since the last sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    /// Number of workers that the pool aims at.
    pub(crate) workers: usize,
    /// Share of the time for which workers had jobs, from 0 to 1.
    pub(crate) busy: f64,
    /// Time to run all queued jobs, in mean run times.
    pub(crate) wait: f64,
    /// Share of jobs that were refused because there were too few workers.
    pub(crate) refused: f64,
    /// Run time of jobs, relative to the run time before.
    pub(crate) slowdown: f64,
    /// Jobs that ended.
    pub(crate) jobs: f64,
    /// Work finished per second, in seconds of previous run times.
    pub(crate) done: f64,
    /// Mean run, in seconds.
    pub(crate) run: f64,
    /// Whether new workers would be useful.
    pub(crate) may_grow: bool,
}

/// A decision of the sizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Number of workers to aim at.
    pub(crate) workers: usize,
    /// Whether the current run times become the reference.
    pub(crate) grown: bool,
}

/// State between samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sizer {
    /// Samples in a row with long waits, and with busy workers.
    late: u32,
    hot: u32,
    demand: Demand,
    /// Samples since the last shrink.
    rested: u32,
    guard: Guard,
}

const LONG_WAIT: f64 = 1.0;
const VERY_LONG_WAIT: f64 = 4.0;
const MANY_REFUSED: f64 = 0.1;
const VERY_MANY_REFUSED: f64 = 0.5;
const LATE_SAMPLES: u32 = 2;
/// Largest growth by one sample, as a factor.
const MAX_GROWTH: f64 = 3.0;
const BUSY_RATIO: f64 = 0.8;
const HOT_SAMPLES: u32 = 3;
const QUIET_RATIO: f64 = 0.3;
/// Target utilization after a shrink.
const SHRINK_TARGET: f64 = 0.5;
const REST: u32 = 3;

impl Bounds {
    pub(crate) fn is_elastic(self) -> bool {
        self.min < self.max
    }
}

impl Sizer {
    pub(crate) const NEW: Self = Self { late: 0, hot: 0, demand: Demand::NEW, rested: REST, guard: Guard::Free };

    /// Whether the pool does not grow because jobs take longer.
    pub(crate) fn is_held_back(&self) -> bool {
        self.guard.is_held()
    }

    pub(crate) fn decide(self, sample: &Sample, bounds: Bounds) -> (Self, Decision) {
        let Sample { workers, busy, wait, refused, slowdown, may_grow, .. } = *sample;
        let is_late = is_late(wait, refused);
        let is_very_late = wait > VERY_LONG_WAIT || refused >= VERY_MANY_REFUSED;
        let counted = |happens: bool, samples: u32| if happens { samples.saturating_add(1) } else { 0 };
        let mut next = Self {
            late: if is_very_late { LATE_SAMPLES.max(self.late) } else { counted(is_late, self.late) },
            hot: counted(busy >= BUSY_RATIO, self.hot),
            rested: self.rested.saturating_add(1),
            ..self
        };
        next.demand.add(if is_late { workers as f64 } else { workers as f64 * busy });
        let is_pressed = next.late >= LATE_SAMPLES || next.hot >= HOT_SAMPLES;
        let wants = may_grow && is_pressed && (is_very_late || next.rested > REST);
        let max = bounds.max.min(useful(workers, busy));
        let (guard, growth) = self.guard.decide(sample, wants, max);
        next.guard = guard;
        let grown = growth == Growth::Proven;
        let max_growth = if slowdown < SLOW_NO_MORE { MAX_GROWTH } else { 1.0 };
        let times = (1.0 + wait / VERY_LONG_WAIT).max(1.0 / (1.0 - refused)).min(max_growth);
        let larger = (workers + step(workers).max(more(workers, times))).min(max).max(workers);
        let size = match growth {
            Growth::Free | Growth::Proven if wants => larger,
            Growth::Exactly(size) => size.clamp(bounds.min, bounds.max),
            Growth::Free | Growth::Proven | Growth::Held => workers,
        };
        if size > workers {
            next.demand = Demand::NEW;
        } else if size == workers && !is_pressed && next.demand.is_quiet(workers) {
            let fewer = next.demand.fits(workers).max(bounds.min);
            if fewer < workers {
                next.rested = 0;
                return (next, Decision { workers: fewer, grown });
            }
        }
        (next, Decision { workers: size, grown })
    }
}

fn is_late(wait: f64, refused: f64) -> bool {
    wait > LONG_WAIT || refused >= MANY_REFUSED
}

fn step(workers: usize) -> usize {
    (workers / 4).max(1)
}

/// Additional workers for a growth by `times`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count that is not negative")]
fn more(workers: usize, times: f64) -> usize {
    ((times - 1.0) * workers as f64) as usize
}

/// Largest number of workers that the observed load would keep busy enough.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count that is not negative")]
fn useful(workers: usize, busy: f64) -> usize {
    (workers as f64 * busy / QUIET_RATIO).floor() as usize
}

#[cfg(test)]
mod tests;

/// Samples in a row after which a load makes a pool grow.
const SUSTAINED_SAMPLES: usize = HOT_SAMPLES as usize;
/// Samples for which a pool must be quiet before it shrinks.
const QUIET_SAMPLES: usize = 30;
/// Number of remembered samples: the quiet ones, and earlier ones in which a sustained load may have begun.
const SAMPLES: usize = QUIET_SAMPLES + SUSTAINED_SAMPLES - 1;

/// Reserve for random variation, in standard deviations of the load.
const RESERVE_DEVIATIONS: f64 = 3.0;

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

    /// Whether `workers` had little to do in all remembered samples: on average, and in no three busy samples in a row.
    pub(super) fn is_quiet(&self, workers: usize) -> bool {
        self.seen >= SAMPLES && self.mean().max(self.sustained()) < QUIET_RATIO * workers as f64
    }

    fn mean(&self) -> f64 {
        self.latest().sum::<f64>() / QUIET_SAMPLES as f64
    }

    /// The smallest number of workers that was enough in each sample, and for which no three samples in a row call for
    /// growth. Its mean utilization is at most 0.5. Its reserve is three times the square root of the mean load
    /// (square-root staffing; Halfin and Whitt, 1981).
    ///
    /// The pool does not shrink by just one worker, unless half of their time was enough in each sample.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count that is not negative")]
    pub(super) fn fits(&self, workers: usize) -> usize {
        let (mean, peak) = (self.mean(), self.peak());
        let enough = (mean / SHRINK_TARGET).max(mean + RESERVE_DEVIATIONS * mean.sqrt()).max(peak).ceil() as usize;
        let fewer = enough.max((self.sustained() / BUSY_RATIO) as usize + 1);
        let is_worth = fewer + 1 < workers || peak <= SHRINK_TARGET * fewer as f64;
        if is_worth { fewer } else { workers }
    }

    /// Load of the busiest sample.
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
    fn sustained(&self) -> f64 {
        let lowest =
            |first: usize| (first..first + SUSTAINED_SAMPLES).map(|at| self.sample(at)).fold(f64::MAX, f64::min);
        (0..=SAMPLES - SUSTAINED_SAMPLES).map(lowest).fold(0.0, f64::max)
    }
}
