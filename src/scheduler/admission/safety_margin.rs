//! The safety margin of admission: reduces the allowed wait while accepted jobs miss their deadlines.

use super::demand::{FORGOTTEN, WINDOW_WEIGHT};

/// Share of accepted jobs that may miss their deadline before the margin narrows.
const MISSED_SHARE: f64 = 0.01;

/// Lower bound of the margin: if even jobs that hardly wait miss their deadlines, more refusals do not help.
const NARROWEST: f64 = 0.1;
const NARROWER: f64 = 0.95;
const WIDER: f64 = 0.01;
/// Missed jobs per second that count as chance. If few jobs are queued, a single one is a large share.
const CHANCE: f64 = 1.0;

/// Factor of the allowed wait: it falls while accepted jobs miss their deadlines, and rises otherwise.
///
/// Queued and missed jobs are averaged over about a second, so that one job of a small pool does not count as a trend.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SafetyMargin {
    pub(crate) value: f64,
    accepted: f64,
    missed: f64,
    /// Whether a job was queued, or missed its deadline, in the current window.
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

    /// Ends a window, and `empty` further ones without events. If `is_idle`, nothing is queued: each window then moves
    /// the margin half of the way back to 1.
    pub(crate) fn advance(&mut self, empty: u32, is_idle: bool) {
        for _ in 0..=empty.min(FORGOTTEN) {
            let moved = std::mem::take(&mut self.moved);
            let is_idle = is_idle && !moved;
            self.value = if is_idle {
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
