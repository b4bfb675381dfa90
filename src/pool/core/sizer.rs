//! How many workers a pool should have: a pure function of what was seen since the last look, once a second.
//!
//! | | when | by |
//! |---|---|---|
//! | grow | a job that arrives would wait longer than it runs, at two looks in a row, or `busy ≥ 0.8` at three | `max(1, n/4)`; `max(1, n/2)` where it would wait four times as long |
//! | shrink | `busy < 0.3` at thirty looks in a row, and at each one after that | `max(1, n/4)` |
//!
//! The two never undo each other: a pool does not grow to where the load that it has would be under 0.3 of it, shrinking
//! leaves it under 0.8, and it does not grow at the three looks after it shrank. Where jobs take twice as long as they
//! used to, more workers would only press harder on what is slow: from then on, until they take less than one and a half
//! times as long, the pool grows by one step at most.

/// The least and the most workers of a pool; the same where its size is fixed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) min: usize,
    pub(crate) max: usize,
}

/// What was seen of a pool since the last look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    /// Workers that it should have.
    pub(super) workers: usize,
    /// Share of their time in which they had jobs, from 0 to 1.
    pub(super) busy: f64,
    /// Wait that a job which arrives now should expect, in mean runs.
    pub(super) wait: f64,
    /// How long jobs take, in what they took before.
    pub(super) slowdown: f64,
    /// Whether new workers would be of use.
    pub(super) may_grow: bool,
}

/// What is remembered from look to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizer {
    /// Looks in a row at which jobs waited too long, at which the workers were busy, and at which they were not.
    late: u32,
    hot: u32,
    quiet: u32,
    /// Looks since it shrank.
    rested: u32,
    /// Most workers while jobs take much longer than they used to.
    pub(super) ceiling: Option<usize>,
}

const LONG_WAIT: f64 = 1.0;
const VERY_LONG_WAIT: f64 = 4.0;
const LATE_LOOKS: u32 = 2;
const HOT: f64 = 0.8;
const HOT_LOOKS: u32 = 3;
const QUIET: f64 = 0.3;
const QUIET_LOOKS: u32 = 30;
const REST: u32 = 3;
const SLOW: f64 = 2.0;
const SLOW_NO_MORE: f64 = 1.5;

impl Bounds {
    pub(super) fn is_elastic(self) -> bool {
        self.min < self.max
    }
}

impl Sizer {
    pub(super) const NEW: Self = Self { late: 0, hot: 0, quiet: 0, rested: REST, ceiling: None };

    /// The workers that the pool should have from now on.
    pub(super) fn decide(self, sample: &Sample, bounds: Bounds) -> (Self, usize) {
        let Sample { workers, busy, wait, slowdown, may_grow } = *sample;
        let counted = |happens: bool, looks: u32| if happens { looks.saturating_add(1) } else { 0 };
        let next = Self {
            late: counted(wait > LONG_WAIT, self.late),
            hot: counted(busy >= HOT, self.hot),
            quiet: counted(busy < QUIET && wait <= LONG_WAIT, self.quiet),
            rested: self.rested.saturating_add(1),
            ceiling: match self.ceiling {
                None if slowdown >= SLOW => Some(workers + step(workers)),
                Some(_) if slowdown < SLOW_NO_MORE => None,
                other => other,
            },
        };
        let pressed = next.late >= LATE_LOOKS || next.hot >= HOT_LOOKS;
        if may_grow && pressed && next.rested > REST {
            let step = if wait > VERY_LONG_WAIT { (workers / 2).max(1) } else { step(workers) };
            let most = next.ceiling.unwrap_or(usize::MAX).min(bounds.max).min(useful(workers, busy));
            let grown = (workers + step).min(most);
            if grown > workers {
                return (Self { quiet: 0, ..next }, grown);
            }
        }
        let fewer = workers.saturating_sub(step(workers)).max(bounds.min);
        if next.quiet >= QUIET_LOOKS && fewer < workers {
            return (Self { rested: 0, ..next }, fewer);
        }
        (next, workers)
    }
}

fn step(workers: usize) -> usize {
    (workers / 4).max(1)
}

/// Most workers for which the load that was seen is not too little.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count that is not negative")]
fn useful(workers: usize, busy: f64) -> usize {
    (workers as f64 * busy / QUIET).floor() as usize
}

#[cfg(test)]
mod tests;
