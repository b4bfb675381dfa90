//! The safety margin of admission: less of the allowed wait is used while accepted jobs miss their deadlines.

use super::super::rate::{FORGOTTEN, WINDOW_WEIGHT};

/// Share of accepted jobs that may miss their deadline before the margin narrows.
const MISSED_SHARE: f64 = 0.01;

/// Where even jobs that hardly wait miss their deadlines, refusing more of them helps none.
const NARROWEST: f64 = 0.1;
const NARROWER: f64 = 0.95;
const WIDER: f64 = 0.01;
/// Missed jobs of about a second that may be chance: where few are queued, one is a large share.
const CHANCE: f64 = 1.0;

/// How much of the allowed wait is given out: less while accepted jobs miss their deadlines, more while they do not.
///
/// Both are counted over about a second, so that one job of a small pool is not taken for a trend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SafetyMargin {
    pub(crate) value: f64,
    accepted: f64,
    missed: f64,
    /// Whether a job was queued, or missed its deadline, in the window that is open.
    moved: bool,
}

impl SafetyMargin {
    pub(crate) const WIDEST: Self = Self { value: 1.0, accepted: 0.0, missed: 0.0, moved: false };

    pub(crate) fn accept(&mut self) {
        self.accepted += 1.0;
        self.moved = true;
    }

    pub(crate) fn miss(&mut self) {
        self.missed += 1.0;
        self.moved = true;
    }

    /// The end of a window, and of `empty` more in which nothing happened. `rests` says that nothing is queued: what was
    /// learnt under load then fades by half with each window that adds nothing to it.
    pub(crate) fn turn(&mut self, empty: u32, rests: bool) {
        for _ in 0..=empty.min(FORGOTTEN) {
            let moved = std::mem::take(&mut self.moved);
            let rests = rests && !moved;
            self.value = if rests {
                f64::midpoint(self.value, 1.0)
            } else if self.missed > (MISSED_SHARE * self.accepted).max(CHANCE) {
                (self.value * NARROWER).max(NARROWEST)
            } else {
                (self.value + WIDER).min(1.0)
            };
            self.accepted *= 1.0 - WINDOW_WEIGHT;
            self.missed *= 1.0 - WINDOW_WEIGHT;
        }
    }
}
