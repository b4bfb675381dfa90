//! The number of workers that a pool should have: a pure function of one sample per second. `sizing.rs` takes the
//! samples, and `src/pool/sizing.rs` is the timer.
//!
//! | | when | by |
//! |---|---|---|
//! | grow | what is queued takes the workers `w > 1` mean runs, or a share `r ≥ 0.1` of the jobs is refused for want of workers, at two samples in a row; `w > 4` or `r ≥ 0.5`, at one | `max(n/4, n·w/4, n·r/(1 - r), 1)`, up to `2n` |
//! | | `busy ≥ 0.8` at three samples in a row | `max(n/4, 1)` |
//! | shrink | `busy < 0.3` on the mean of thirty samples, and not more at three of them in a row | to where the mean is 0.5 (`sizer/demand.rs`) |
//!
//! A size follows its load where its workers are busy for 0.3 to 0.8 of their time: within that band nothing moves, however
//! long it lasts, so that chance moves nothing. A load that leaves it upwards is followed within five seconds. One that
//! leaves it downwards must do so for thirty, and is followed within five seconds after them, in one step: to the fewest
//! workers that none of these samples would have found too few.
//!
//! The two never undo each other: a pool does not grow to where the load that it has would be under 0.3 of it, shrinking
//! leaves it at 0.5 at the most, and for three samples after it shrank a pool grows only where one sample is enough.
//!
//! Where jobs take twice as long as they used to (`slowdown.rs`), until they take less than one and a half times as
//! long, a pool keeps its size but for tries (`sizer/guard.rs`): after five samples, later ten, twenty, up to a minute, it
//! doubles its workers. Where the finished work rises by half as much as the busy workers do, or more, it doubles them
//! again; once it needs no more, what jobs take now is what they are compared with. Else it has the workers that it had.
//! The work that is finished in a second is counted in what jobs used to take, and only where they ended in time.
//!
//! None of these figures can be configured. They are shares, and counts of samples and of runs, so that they hold for jobs
//! of a millisecond and of a minute alike; what an operator knows and a pool does not is how many workers it may have.

mod demand;
mod guard;

use demand::Demand;
#[cfg(test)]
use guard::SLOW;
use guard::{Growth, Guard, SLOW_NO_MORE};

/// The least and the most workers of a pool; the same where its size is fixed.
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
    /// Time to run all queued jobs, in mean runs.
    pub(crate) wait: f64,
    /// Share of jobs that were refused because there were too few workers.
    pub(crate) refused: f64,
    /// Run time of jobs, relative to the run time before.
    pub(crate) slowdown: f64,
    /// Jobs that ended.
    pub(crate) jobs: f64,
    /// Work finished per second, in seconds that it took before.
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
const HOT: f64 = 0.8;
const HOT_SAMPLES: u32 = 3;
const QUIET: f64 = 0.3;
/// Utilization after a shrink.
const EASY: f64 = 0.5;
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
            hot: counted(busy >= HOT, self.hot),
            rested: self.rested.saturating_add(1),
            ..self
        };
        next.demand.add(if is_late { workers as f64 } else { workers as f64 * busy });
        let is_pressed = next.late >= LATE_SAMPLES || next.hot >= HOT_SAMPLES;
        let wants = may_grow && is_pressed && (is_very_late || next.rested > REST);
        let most = bounds.max.min(useful(workers, busy));
        let (guard, growth) = self.guard.decide(sample, wants, most);
        next.guard = guard;
        let grown = growth == Growth::Proven;
        let max_growth = if slowdown < SLOW_NO_MORE { MAX_GROWTH } else { 1.0 };
        let times = (1.0 + wait / VERY_LONG_WAIT).max(1.0 / (1.0 - refused)).min(max_growth);
        let larger = (workers + step(workers).max(more(workers, times))).min(most).max(workers);
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

/// Largest number of workers that the observed load keeps busy enough.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count that is not negative")]
fn useful(workers: usize, busy: f64) -> usize {
    (workers as f64 * busy / QUIET).floor() as usize
}

#[cfg(test)]
mod tests;
