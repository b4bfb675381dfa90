//! Keeps a pool out of a downstream that is slow. Where jobs take much longer than they used to, more workers may only
//! press harder on what they share; or the jobs have merely grown, and more workers are what they need. How long they take
//! does not tell which: so a step is tried now and then, and what is finished with it decides.

use super::{Bounds, Sample};

/// Jobs that take so many times as long as they used to hold a pool back, until they take less than this.
pub(super) const SLOW: f64 = 2.0;
pub(super) const SLOW_NO_MORE: f64 = 1.5;
/// Looks before a step is tried: twice as many after each one that was of no use, up to the longest pause.
const FIRST_PAUSE: u32 = 5;
const LONGEST_PAUSE: u32 = 160;
/// Looks in a row at which jobs are slow no more, before a pool is let go: as many as the pause, up to these.
const LONGEST_DOUBT: u32 = 20;
/// Looks and jobs from which on something is known of a number of workers.
const FEWEST_LOOKS: u32 = 4;
const FEWEST_JOBS: f64 = 24.0;
/// Looks that are remembered of it.
const MOST_LOOKS: u32 = 40;
/// Jobs after which a step is decided, however few looks they took.
const MANY_JOBS: f64 = 96.0;
/// Later steps take more jobs, as their pause is longer, so that chance does not decide in the end; up to so many times.
const MOST_CARE: f64 = 8.0;
/// A step is of use where so much more is finished for all that more workers have jobs.
const GAIN: f64 = 0.5;
/// It tells nothing where not so many more of them have jobs.
const TELLING: f64 = 0.25;
/// Looks in which a step that was of use may still prove to have been a mistake.
const WATCHED: u32 = 30;
/// Share of their time in which the workers of a pool that is measured have jobs.
const FULL: f64 = 0.8;

/// Whether a pool is held back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Guard {
    state: State,
    /// Looks to let pass before a step is tried.
    pause: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Free,
    Watched(Watched),
    Held(Held),
    /// It has more workers than it had, to see whether they are of use; not before some looks have passed.
    Trying {
        from: Seen,
        most: usize,
        settles: u32,
        here: Tally,
    },
}

/// A pool that is held back no more, since so many looks: does what it finishes prove that right?
#[derive(Debug, Clone, Copy, PartialEq)]
struct Watched {
    /// What was seen before it was let go.
    from: Seen,
    looks: u32,
    /// The slowdown that is none: more than 1 where a step showed that the jobs have merely grown.
    normal: f64,
    /// Workers that it has now; what is seen of them counts once some looks have passed.
    size: usize,
    settles: u32,
    /// Whether the last look at that said that it was a mistake.
    doubted: bool,
    here: Tally,
}

/// A pool that has so many workers at most, since so many looks; at the last few of them, jobs were slow no more.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Held {
    most: usize,
    looks: u32,
    quick: u32,
    here: Tally,
}

/// What the guard lets a pool do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    Free,
    /// It grows to twice its workers at the most.
    Careful,
    /// The jobs have merely grown: what they take now is what they are compared with from now on.
    Grown,
    /// It has this many workers at most.
    Most(usize),
    /// It has just as many: a step is tried, or taken back.
    Exactly(usize),
}

/// What happened at some looks in a row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Tally {
    looks: u32,
    jobs: f64,
    in_time: f64,
    busy: f64,
    done: f64,
}

/// What happens at a look where a pool has so many workers: how many of them have jobs, and what is finished.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Seen {
    workers: usize,
    busy: f64,
    done: f64,
    looks: u32,
}

impl Guard {
    pub(super) const NEW: Self = Self { state: State::Free, pause: FIRST_PAUSE };

    pub(super) fn is_free(self) -> bool {
        matches!(self.state, State::Free)
    }

    pub(super) fn holds(self) -> bool {
        matches!(self.state, State::Held(_) | State::Trying { .. })
    }

    /// `wants` says whether the pool is to grow, as far as its load goes, and `bounds` up to where.
    pub(super) fn look(self, sample: &Sample, wants: bool, bounds: Bounds) -> (Self, Word) {
        match self.state {
            State::Free if sample.slowdown >= SLOW => self.hold(sample.workers),
            // Tries that were of no use are forgotten as slowly as they were made.
            State::Free => (Self { state: State::Free, pause: (self.pause - 1).max(FIRST_PAUSE) }, Word::Free),
            State::Watched(watched) => self.watch(sample, watched),
            State::Held(held) => self.stay(sample, wants, bounds, held),
            State::Trying { from, .. } if sample.slowdown < SLOW_NO_MORE => self.release(sample, from, 1.0),
            State::Trying { from, most, settles, here } if settles > 0 => self.attempt(from, most, settles - 1, here),
            State::Trying { from, most, settles: _, here } => {
                let here = here.and(sample);
                if !self.decides(from, here) {
                    return self.attempt(from, most, 0, here);
                }
                match from.gains(here, sample.workers) {
                    None => self.hold(sample.workers),
                    Some(true) => self.longer().release(sample, from, sample.slowdown),
                    Some(false) => self.back(from, sample.workers, here),
                }
            }
        }
    }

    /// One more look at a pool that was let go.
    fn watch(self, sample: &Sample, watched: Watched) -> (Self, Word) {
        let Watched { from, normal, .. } = watched;
        let (workers, looks) = (sample.workers, watched.looks + 1);
        let goes_on = |settles, here, word| {
            let doubted = watched.doubted && word != Word::Careful;
            let state = State::Watched(Watched { looks, size: workers, settles, doubted, here, ..watched });
            (Self { state, ..self }, word)
        };
        // What one step did is seen before the next one is taken.
        let stays = Word::Most(workers);
        if sample.slowdown >= SLOW * normal {
            // They slow down as the pool grows: is more finished than before it grew?
            let grew = workers > from.workers;
            return if grew { self.attempt(from, workers, 1, Tally::default()) } else { self.hold(workers) };
        }
        if looks >= WATCHED {
            return (self.free(), if normal > 1.0 { Word::Grown } else { Word::Free });
        }
        if workers != watched.size {
            return goes_on(settling(sample), Tally::default(), stays);
        }
        if watched.settles > 0 {
            return goes_on(watched.settles - 1, watched.here, stays);
        }
        let here = watched.here.and(sample);
        // It need not be sure: what is taken back is tried again.
        if !here.has(FEWEST_JOBS) {
            return goes_on(0, here, stays);
        }
        match from.gains(here, workers) {
            Some(false) if watched.doubted => self.back(from, workers, here),
            // Once may be chance.
            Some(false) => {
                let here = Tally::default();
                let state = State::Watched(Watched { looks, doubted: true, here, ..watched });
                (Self { state, ..self }, stays)
            }
            Some(true) | None => goes_on(0, Tally::default(), Word::Careful),
        }
    }

    /// One more look at a pool that is held back.
    fn stay(self, sample: &Sample, wants: bool, bounds: Bounds, held: Held) -> (Self, Word) {
        let (workers, is_quick) = (sample.workers, sample.slowdown < SLOW_NO_MORE);
        let here = match workers == held.most {
            true if sample.busy >= FULL => held.here.and(sample).fade(),
            true => held.here,
            false => Tally::default(),
        };
        let looks = held.looks.saturating_add(1);
        let quick = if is_quick { held.quick + 1 } else { 0 };
        // A pool that was put back more often is not taken at its word so soon.
        if quick >= self.pause.min(LONGEST_DOUBT) {
            if here.has(FEWEST_JOBS) {
                return self.release(sample, here.of(workers), 1.0);
            }
            if !wants {
                return (self.free(), Word::Free);
            }
        }
        if looks >= self.pause && here.wastes() {
            let fewer = workers.saturating_sub((workers / 4).max(1)).max(bounds.min);
            return (self.hold(fewer).0, Word::Exactly(fewer));
        }
        let larger = (workers + workers.max(3)).min(bounds.max);
        if wants && looks >= self.pause && self.tells(here, workers) && larger > workers {
            let (next, _) = self.attempt(here.of(workers), larger, settling(sample), Tally::default());
            return (next, Word::Exactly(larger));
        }
        (Self { state: State::Held(Held { looks, quick, here, ..held }), ..self }, Word::Most(held.most))
    }

    fn free(self) -> Self {
        Self { state: State::Free, ..self }
    }

    fn release(self, sample: &Sample, from: Seen, normal: f64) -> (Self, Word) {
        let here = Tally::default();
        let watched = Watched { from, looks: 0, normal, size: sample.workers, settles: 0, doubted: false, here };
        (Self { state: State::Watched(watched), ..self }, Word::Careful)
    }

    /// To the workers that it had; where it has many times as many, to those that had finished as much.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count that is not negative")]
    fn back(self, from: Seen, workers: usize, here: Tally) -> (Self, Word) {
        let enough = (here.of(workers).done * from.busy / from.done).round() as usize;
        let few = if workers > 2 * from.workers { enough.clamp(from.workers, workers) } else { from.workers };
        (self.longer().hold(few).0, Word::Exactly(few))
    }

    fn longer(self) -> Self {
        Self { pause: (2 * self.pause).min(LONGEST_PAUSE), ..self }
    }

    /// How many times as many jobs as at first are asked before anything is decided.
    fn care(self) -> f64 {
        f64::from(self.pause / FIRST_PAUSE).min(MOST_CARE)
    }

    /// Whether enough is known to compare it with what was seen before.
    fn decides(self, from: Seen, here: Tally) -> bool {
        here.looks >= from.looks || here.has(MANY_JOBS * self.care())
    }

    /// Whether something is known of a number of workers.
    fn tells(self, here: Tally, workers: usize) -> bool {
        here.has(fewest_jobs(workers) * self.care()) && !here.wastes()
    }

    fn attempt(self, from: Seen, most: usize, settles: u32, here: Tally) -> (Self, Word) {
        (Self { state: State::Trying { from, most, settles, here }, ..self }, Word::Most(most))
    }

    fn hold(self, most: usize) -> (Self, Word) {
        let held = Held { most, looks: 0, quick: 0, here: Tally::default() };
        (Self { state: State::Held(held), ..self }, Word::Most(most))
    }
}

impl Seen {
    /// Whether more workers that have jobs were of use; `None` where not many more of them have any.
    fn gains(self, now: Tally, workers: usize) -> Option<bool> {
        if now.wastes() {
            return Some(false);
        }
        let now = now.of(workers);
        let more = now.busy / self.busy.max(f64::MIN_POSITIVE) - 1.0;
        (more >= TELLING).then(|| now.done / self.done - 1.0 >= GAIN * more)
    }
}

/// Jobs from which on something is known of so many workers: of a few, a step is a great one, which tells more.
fn fewest_jobs(workers: usize) -> f64 {
    (FEWEST_JOBS / 3.0 * workers as f64).min(FEWEST_JOBS)
}

/// Looks until workers that are new have ended jobs.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number that is not negative")]
fn settling(sample: &Sample) -> u32 {
    sample.run.ceil().clamp(1.0, 600.0) as u32
}

impl Tally {
    fn and(self, sample: &Sample) -> Self {
        Self {
            looks: self.looks + 1,
            jobs: self.jobs + sample.jobs,
            in_time: self.in_time + sample.in_time,
            busy: self.busy + sample.busy * sample.workers as f64,
            done: self.done + sample.done,
        }
    }

    /// Forgets what is long ago, once there is enough.
    fn fade(self) -> Self {
        if self.looks <= MOST_LOOKS || self.jobs < FEWEST_JOBS * MOST_CARE {
            return self;
        }
        let kept = 1.0 - 1.0 / f64::from(self.looks);
        let Self { looks, jobs, in_time, busy, done } = self;
        Self { looks: looks - 1, jobs: kept * jobs, in_time: kept * in_time, busy: kept * busy, done: kept * done }
    }

    /// Whether it was looked at for long enough, and so many jobs ended.
    fn has(&self, jobs: f64) -> bool {
        self.looks >= FEWEST_LOOKS && self.jobs >= jobs
    }

    /// Whether most of the jobs are stopped at their deadline, or fail.
    fn wastes(&self) -> bool {
        self.looks >= FEWEST_LOOKS && self.in_time < self.jobs / 2.0
    }

    fn of(&self, workers: usize) -> Seen {
        let looks = f64::from(self.looks);
        Seen { workers, busy: self.busy / looks, done: self.done / looks, looks: self.looks }
    }
}
