//! Rates over windows of a tenth of a second.

use std::time::Duration;

/// Time between two samples of the rates and of the safety margins.
pub(super) const WINDOW: Duration = Duration::from_millis(100);
/// Weight of one window in a rate: a time constant of about a second.
pub(super) const WINDOW_WEIGHT: f64 = 0.1;

/// Amount per second, as an exponentially weighted mean over windows. The first windows are averaged plainly.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rate {
    /// In the current window.
    amount: f64,
    pub(crate) per_second: f64,
    windows: u32,
}

impl Rate {
    pub(crate) fn add(&mut self, amount: f64) {
        self.amount += amount;
    }

    /// Ends a window, and `empty` more without events.
    pub(crate) fn turn(&mut self, empty: u32) {
        self.fold();
        // After so many windows, nothing is left.
        for _ in 0..empty.min(FORGOTTEN) {
            self.fold();
        }
    }

    fn fold(&mut self) {
        self.windows = self.windows.saturating_add(1);
        let latest = std::mem::take(&mut self.amount) / WINDOW.as_secs_f64();
        let weight = WINDOW_WEIGHT.max(1.0 / f64::from(self.windows));
        self.per_second += weight * (latest - self.per_second);
    }
}

/// Windows after which a rate is forgotten: less than a thousandth of it is left.
pub(crate) const FORGOTTEN: u32 = 70;
