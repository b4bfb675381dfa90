//! Keeps a pool out of a downstream that is slow. Where jobs take much longer than they used to, more workers may only
//! press harder on what they share; or the jobs have merely grown, and more workers are what they need. How long they take
//! does not tell which: so a step is tried now and then, and what is finished with it decides.

use super::Sample;

/// Jobs that take so many times as long as they used to hold a pool back, until they take less than this.
pub(super) const SLOW: f64 = 2.0;
pub(super) const SLOW_NO_MORE: f64 = 1.5;
/// Samples before the first try: twice as many after each one that was of no use, up to a minute.
const FIRST_PAUSE: u32 = 5;
const LONGEST_PAUSE: u32 = 60;
/// Samples and jobs from which on something is known of a number of workers; with this many jobs, enough is known.
const FEWEST_SAMPLES: u32 = 4;
const FEWEST_JOBS: f64 = 24.0;
const MANY_JOBS: f64 = 96.0;
/// Share of their time in which the workers of a pool that is measured have jobs.
const FULL: f64 = 0.8;
/// Workers are of use where so much more is finished for all that more of them have jobs.
const GAIN: f64 = 0.5;
/// Nothing is told where not so many more of them have jobs.
const TELLING: f64 = 0.25;

/// Whether a pool is held back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Guard {
    Free,
    /// It keeps its size, and no step is tried before so many samples.
    Held {
        pause: u32,
        samples: u32,
        here: Tally,
    },
    Trying(Step),
}

/// A pool that has more workers than it had, to see whether they are of use; not before some samples have passed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    pause: u32,
    from: Tally,
    settles: u32,
    here: Tally,
    /// Whether the step before this one was of use.
    is_second: bool,
}

/// What the guard lets a pool do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    Free,
    Held,
    /// It has just so many workers: a step is tried, or taken back.
    Exactly(usize),
    /// The jobs have merely grown: what they take now is what they are compared with from now on.
    Proven,
}

/// What was seen of a number of workers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Tally {
    workers: usize,
    samples: u32,
    jobs: f64,
    busy: f64,
    done: f64,
}

impl Guard {
    pub(super) fn is_held(self) -> bool {
        self != Self::Free
    }

    /// `wants` says whether the pool is to grow as far as its load goes, and `most` up to where.
    pub(super) fn decide(self, sample: &Sample, wants: bool, most: usize) -> (Self, Growth) {
        let workers = sample.workers;
        let larger = (workers + workers.max(3)).min(most);
        match self {
            _ if sample.slowdown < SLOW_NO_MORE => (Self::Free, Growth::Free),
            Self::Free if sample.slowdown < SLOW => (Self::Free, Growth::Free),
            Self::Free => (Self::hold(FIRST_PAUSE), Growth::Held),
            Self::Held { pause, samples, here } => {
                let here = if sample.busy >= FULL { here.and(sample) } else { here };
                let samples = samples.saturating_add(1);
                if wants && samples >= pause && here.tells() && larger > workers {
                    return Self::step(pause, here, sample, larger, false);
                }
                (Self::Held { pause, samples, here }, Growth::Held)
            }
            Self::Trying(step) if step.settles > 0 => {
                (Self::Trying(Step { settles: step.settles - 1, ..step }), Growth::Held)
            }
            Self::Trying(step) => {
                let here = step.here.and(sample);
                if here.samples < FEWEST_SAMPLES || here.jobs < step.from.jobs.min(MANY_JOBS) {
                    return (Self::Trying(Step { here, ..step }), Growth::Held);
                }
                let pause = (2 * step.pause).min(LONGEST_PAUSE);
                match step.from.gains(here) {
                    Some(true) if wants && larger > workers => Self::step(pause, here, sample, larger, true),
                    Some(true) => (Self::Free, Growth::Proven),
                    None if step.is_second => (Self::Free, Growth::Proven),
                    None => (Self::hold(pause), Growth::Held),
                    Some(false) => (Self::hold(pause), Growth::Exactly(step.from.workers)),
                }
            }
        }
    }

    fn hold(pause: u32) -> Self {
        Self::Held { pause, samples: 0, here: Tally::default() }
    }

    fn step(pause: u32, from: Tally, sample: &Sample, larger: usize, is_second: bool) -> (Self, Growth) {
        let step = Step { pause, from, settles: settling(sample), here: Tally::default(), is_second };
        (Self::Trying(step), Growth::Exactly(larger))
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

    /// Of a few workers, a step is a great one, which needs fewer jobs.
    fn tells(&self) -> bool {
        self.samples >= FEWEST_SAMPLES && self.jobs >= (FEWEST_JOBS / 3.0 * self.workers as f64).min(FEWEST_JOBS)
    }

    /// Whether more workers that have jobs were of use; `None` where not many more of them have any.
    fn gains(self, now: Self) -> Option<bool> {
        let [before, now] = [self, now].map(|of| (of.busy / f64::from(of.samples), of.done / f64::from(of.samples)));
        let more = now.0 / before.0 - 1.0;
        (more >= TELLING).then_some(now.1 - before.1 >= GAIN * more * before.1)
    }
}

/// Samples until workers that are new have ended jobs.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number that is not negative")]
fn settling(sample: &Sample) -> u32 {
    sample.run.ceil().clamp(1.0, 600.0) as u32
}
