//! Protects a slow downstream service from more workers. If jobs take much longer than before, there are two possible
//! causes. Either they use a shared resource, which more workers would only overload, or they have become larger and
//! need more workers. Run times alone do not tell the two apart. So the guard sometimes tries more workers, and
//! compares the finished work.

use super::Sample;

/// Growth stops when jobs take this many times as long as before.
pub(super) const SLOW: f64 = 2.0;
/// Growth is allowed again when jobs take less than this many times as long as before.
pub(super) const SLOW_NO_MORE: f64 = 1.5;
/// Samples before the first trial. Each useless trial doubles the pause, up to a minute.
const FIRST_PAUSE: u32 = 5;
const MAX_PAUSE: u32 = 60;
/// Smallest number of samples and of jobs for a measurement, and the number of jobs for a reliable one.
const MIN_SAMPLES: u32 = 4;
const MIN_JOBS: f64 = 24.0;
const MANY_JOBS: f64 = 96.0;
/// Utilization that counts as full in a measurement.
const FULL: f64 = 0.8;
/// Additional workers are useful if finished work rises by this share of the rise of busy workers.
const GAIN: f64 = 0.5;
/// A measurement needs at least this rise of busy workers.
const MIN_RISE: f64 = 0.25;

/// Whether the growth is stopped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Guard {
    Free,
    /// The pool keeps its size, and tries the next step after `pause` samples.
    Held {
        pause: u32,
        samples: u32,
        here: Tally,
    },
    Trying(Step),
}

/// A pool with additional workers on trial, to measure whether they are useful.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    pause: u32,
    from: Tally,
    settles: u32,
    here: Tally,
    /// Whether the step before this one was useful.
    is_second: bool,
}

/// The growth that the guard allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    Free,
    Held,
    /// Exactly this number of workers: a step is tried or reverted.
    Exactly(usize),
    /// The jobs have become larger: their current run times become the reference.
    Proven,
}

/// Measurements of one number of workers.
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

    /// `wants` says whether the load requires growth, and `max` is the largest size.
    pub(super) fn decide(self, sample: &Sample, wants: bool, max: usize) -> (Self, Growth) {
        let workers = sample.workers;
        let larger = (workers + workers.max(3)).min(max);
        match self {
            _ if sample.slowdown < SLOW_NO_MORE => (Self::Free, Growth::Free),
            Self::Free if sample.slowdown < SLOW => (Self::Free, Growth::Free),
            Self::Free => (Self::hold(FIRST_PAUSE), Growth::Held),
            Self::Held { pause, samples, here } => {
                let here = if sample.busy >= FULL { here.and(sample) } else { here };
                let samples = samples.saturating_add(1);
                if wants && samples >= pause && here.is_conclusive() && larger > workers {
                    return Self::step(pause, here, sample, larger, false);
                }
                (Self::Held { pause, samples, here }, Growth::Held)
            }
            Self::Trying(step) if step.settles > 0 => {
                (Self::Trying(Step { settles: step.settles - 1, ..step }), Growth::Held)
            }
            Self::Trying(step) => {
                let here = step.here.and(sample);
                if here.samples < MIN_SAMPLES || here.jobs < step.from.jobs.min(MANY_JOBS) {
                    return (Self::Trying(Step { here, ..step }), Growth::Held);
                }
                let pause = (2 * step.pause).min(MAX_PAUSE);
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

    /// Whether there are enough samples. With few workers, a step is relatively large, and needs fewer jobs.
    fn is_conclusive(&self) -> bool {
        self.samples >= MIN_SAMPLES && self.jobs >= (MIN_JOBS / 3.0 * self.workers as f64).min(MIN_JOBS)
    }

    /// Whether additional busy workers were useful; `None` if hardly more of them were busy.
    fn gains(self, now: Self) -> Option<bool> {
        let [before, now] = [self, now].map(|of| (of.busy / f64::from(of.samples), of.done / f64::from(of.samples)));
        let more = now.0 / before.0 - 1.0;
        (more >= MIN_RISE).then_some(now.1 - before.1 >= GAIN * more * before.1)
    }
}

/// Samples until new workers have ended jobs.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number that is not negative")]
fn settling(sample: &Sample) -> u32 {
    sample.run.ceil().clamp(1.0, 600.0) as u32
}
