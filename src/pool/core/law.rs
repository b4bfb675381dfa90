//! The constants of the admission rule, and the rates that it looks at.
//!
//! README.md beside this file derives the rule.

use std::time::Duration;

/// Service time of a kind while nothing was measured.
pub(super) const FIRST_SERVICE: Duration = Duration::from_millis(50);
/// Share of its budget that a job may be expected to wait, before the margin narrows it. The rest is for its run, and for
/// what the estimate misses.
pub(super) const WAIT_SHARE: f64 = 0.5;
/// Share of accepted jobs that may miss their deadline before the margin narrows.
pub(super) const MISSED_SHARE: f64 = 0.01;
/// Longest expected wait in mean service times of the pool, whatever the budget. Callers with long deadlines are kept from
/// long queues.
const LONGEST_WAIT: f64 = 20.0;
/// Floor of the longest wait: pools of very short jobs still queue a burst.
const SHORTEST_LONGEST_WAIT: Duration = Duration::from_millis(100);
/// While several classes have jobs, one start in so many goes to those below the most important one.
pub(super) const RESERVE: u32 = 20;
/// Time between two looks at the rates and the margin.
pub(super) const WINDOW: Duration = Duration::from_millis(100);
/// Weight of one window in a rate: a time constant of about a second.
pub(super) const WINDOW_WEIGHT: f64 = 0.1;
/// Weight of one finished job in the mean of its kind.
pub(super) const JOB_WEIGHT: f64 = 0.05;
/// Share of the workers' time that is left for a class at the least, whatever those above it take.
pub(super) const LEAST_LEFT: f64 = 0.05;

/// Longest expected wait where jobs take `service` seconds on average.
pub(super) fn longest_wait(service: f64) -> f64 {
    (LONGEST_WAIT * service).max(SHORTEST_LONGEST_WAIT.as_secs_f64())
}

/// Amount per second, as an exponentially weighted mean over windows. The first windows weigh as much as a plain mean
/// gives them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rate {
    /// Of the window that is open.
    amount: f64,
    pub(super) per_second: f64,
    windows: u32,
}

impl Rate {
    pub(super) fn add(&mut self, amount: f64) {
        self.amount += amount;
    }

    /// The end of a window, and of `empty` more in which nothing happened.
    pub(super) fn turn(&mut self, empty: u32) {
        self.fold();
        // What is left after so many is nothing.
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
pub(super) const FORGOTTEN: u32 = 70;
