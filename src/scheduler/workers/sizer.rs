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
//! shrinks within five more, in one step, to a utilization of at most 0.5.
//!
//! If jobs take much longer than before (`sizing.rs`), there are two possible causes. Either they use a shared
//! resource, which more workers would only overload, or they have become larger and need more workers. Run times alone
//! do not tell the two apart. So from twice as long until less than 1.5 times as long, a pool keeps its size and makes
//! trials: after five samples, later ten, twenty, up to a minute, it doubles its workers. If the finished work rises by
//! at least half as much as the busy workers, the pool doubles them again. When it needs no more, the current run times
//! become the reference. Otherwise it returns to the previous size. Finished work per second is measured in previous
//! run times, and counts only jobs that ended in time.
//!
//! None of these figures is configurable. They are ratios and counts, so they fit jobs of a millisecond and of a minute
//! alike. Only the bounds of the size need an operator's knowledge.

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
    /// Samples in a row with long waits.
    late: u32,
    /// Samples in a row with busy workers.
    hot: u32,
    demand: Demand,
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

impl Bounds {
    pub(crate) fn is_elastic(self) -> bool {
        self.min < self.max
    }
}

impl Sizer {
    pub(crate) const NEW: Self = Self { late: 0, hot: 0, demand: Demand::NEW, guard: Guard::Free };

    /// Whether the pool does not grow because jobs take longer.
    pub(crate) fn is_held_back(&self) -> bool {
        self.guard != Guard::Free
    }

    pub(crate) fn decide(self, sample: &Sample, bounds: Bounds) -> (Self, Decision) {
        let Sample { workers, busy, wait, refused, slowdown, may_grow, .. } = *sample;
        let is_late = is_late(wait, refused);
        let is_very_late = wait > VERY_LONG_WAIT || refused >= VERY_MANY_REFUSED;
        let counted = |happens: bool, samples: u32| if happens { samples.saturating_add(1) } else { 0 };
        let mut next = Self {
            late: if is_very_late { LATE_SAMPLES.max(self.late) } else { counted(is_late, self.late) },
            hot: counted(busy >= BUSY_RATIO, self.hot),
            ..self
        };
        next.demand.add(workers as f64 * busy);
        let is_pressed = next.late >= LATE_SAMPLES || next.hot >= HOT_SAMPLES;
        let wants = may_grow && is_pressed;
        let (guard, growth) = self.guard.decide(sample, wants, bounds.max);
        next.guard = guard;
        let grown = growth == Growth::Proven;
        let max_growth = if slowdown < SLOW_NO_MORE { MAX_GROWTH } else { 1.0 };
        let times = (1.0 + wait / VERY_LONG_WAIT).max(1.0 / (1.0 - refused)).min(max_growth);
        let larger = (workers + step(workers).max(more(workers, times))).min(bounds.max).max(workers);
        let size = match growth {
            Growth::Free | Growth::Proven if wants => larger,
            Growth::Exactly(size) => size.clamp(bounds.min, bounds.max),
            Growth::Free | Growth::Proven | Growth::Held => workers,
        };
        if size > workers {
            next.demand = Demand::NEW;
        } else if size == workers && next.demand.is_quiet(workers) {
            let fewer = next.demand.fits().clamp(bounds.min, workers);
            return (next, Decision { workers: fewer, grown });
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
struct Demand {
    /// In order, as a ring: the newest replaces the oldest.
    samples: [f64; SAMPLES],
    seen: usize,
}

impl Demand {
    const NEW: Self = Self { samples: [0.0; SAMPLES], seen: 0 };

    fn add(&mut self, workers: f64) {
        self.samples[self.seen % SAMPLES] = workers;
        self.seen += 1;
    }

    /// Whether `workers` had little to do in all remembered samples: on average, and in no three busy samples in a row.
    fn is_quiet(&self, workers: usize) -> bool {
        self.seen >= SAMPLES && self.mean().max(self.sustained()) < QUIET_RATIO * workers as f64
    }

    fn mean(&self) -> f64 {
        self.latest().sum::<f64>() / QUIET_SAMPLES as f64
    }

    /// The smallest number of workers that was enough in each sample. Its mean utilization is at most 0.5. Its reserve
    /// is three times the square root of the mean load (square-root staffing; Halfin and Whitt, 1981).
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count that is not negative")]
    fn fits(&self) -> usize {
        let (mean, peak) = (self.mean(), self.latest().fold(0.0, f64::max));
        (mean / SHRINK_TARGET).max(mean + RESERVE_DEVIATIONS * mean.sqrt()).max(peak).ceil() as usize
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

/// Growth stops when jobs take this many times as long as before.
const SLOW: f64 = 2.0;
/// Growth is allowed again when jobs take less than this many times as long as before.
const SLOW_NO_MORE: f64 = 1.5;
/// Samples before the first trial. Each useless trial doubles the pause, up to a minute.
const FIRST_PAUSE: u32 = 5;
const MAX_PAUSE: u32 = 60;
/// Smallest number of samples and of jobs for a measurement.
const MIN_SAMPLES: u32 = 4;
const MIN_JOBS: f64 = 24.0;
/// Additional workers are useful if finished work rises by this share of the rise of busy workers.
const GAIN: f64 = 0.5;
/// A measurement needs at least this rise of busy workers.
const MIN_RISE: f64 = 0.25;

/// Protects a slow downstream service from more workers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Guard {
    Free,
    /// The pool keeps its size, and tries the next step after `pause` samples.
    Held {
        pause: u32,
        here: Tally,
    },
    /// Additional workers are on trial, to measure whether they are useful.
    Trying {
        pause: u32,
        from: Tally,
        here: Tally,
    },
}

/// The growth that the guard allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    Free,
    Held,
    /// Exactly this number of workers: a step is tried or reverted.
    Exactly(usize),
    /// The jobs have become larger: their current run times become the reference.
    Proven,
}

/// Measurements of one number of workers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Tally {
    workers: usize,
    samples: u32,
    jobs: f64,
    busy: f64,
    done: f64,
}

impl Guard {
    /// `wants` says whether the load requires growth, and `max` is the largest size.
    fn decide(self, sample: &Sample, wants: bool, max: usize) -> (Self, Growth) {
        let workers = sample.workers;
        let larger = (workers + workers.max(3)).min(max);
        let grows = wants && larger > workers;
        match self {
            _ if sample.slowdown < SLOW_NO_MORE => (Self::Free, Growth::Free),
            Self::Free if sample.slowdown < SLOW => (Self::Free, Growth::Free),
            Self::Free => (Self::hold(FIRST_PAUSE), Growth::Held),
            Self::Held { pause, here } => {
                let here = here.and(sample);
                if grows && here.samples >= pause && here.is_conclusive() {
                    return (Self::Trying { pause, from: here, here: Tally::default() }, Growth::Exactly(larger));
                }
                (Self::Held { pause, here }, Growth::Held)
            }
            Self::Trying { pause, from, here } => {
                let here = here.and(sample);
                let held = Self::hold((2 * pause).min(MAX_PAUSE));
                match from.gains(here) {
                    _ if !here.is_conclusive() => (Self::Trying { pause, from, here }, Growth::Held),
                    Some(true) if grows => {
                        (Self::Trying { pause, from: here, here: Tally::default() }, Growth::Exactly(larger))
                    }
                    Some(true) => (Self::Free, Growth::Proven),
                    None => (held, Growth::Held),
                    Some(false) => (held, Growth::Exactly(from.workers)),
                }
            }
        }
    }

    fn hold(pause: u32) -> Self {
        Self::Held { pause, here: Tally::default() }
    }
}

impl Tally {
    fn and(self, sample: &Sample) -> Self {
        let before = if self.workers == sample.workers { self } else { Self::default() };
        Self {
            workers: sample.workers,
            samples: before.samples + 1,
            jobs: before.jobs + sample.jobs,
            busy: before.busy + sample.busy * sample.workers as f64,
            done: before.done + sample.done,
        }
    }

    /// Whether there are enough samples.
    fn is_conclusive(&self) -> bool {
        self.samples >= MIN_SAMPLES && self.jobs >= MIN_JOBS
    }

    /// Whether additional busy workers were useful; `None` if hardly more of them were busy.
    fn gains(self, now: Self) -> Option<bool> {
        let [before, now] = [self, now].map(|of| (of.busy / f64::from(of.samples), of.done / f64::from(of.samples)));
        let more = now.0 / before.0 - 1.0;
        (more >= MIN_RISE).then_some(now.1 - before.1 >= GAIN * more * before.1)
    }
}

#[cfg(test)]
mod tests;
