//! The constants of the admission rule, and the rates that it looks at.
//!
//! README.md beside this file derives the rule.

use std::time::Duration;

/// What an operator may set of the admission rule of a pool. The defaults need no tuning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Law {
    /// Service time of a kind that nothing is known of. Default 50 ms.
    pub service: Duration,
    /// Share of its budget that a job may be expected to wait, before the margin narrows it. Default 0.5.
    pub wait_share: f64,
    /// Share of accepted jobs that may miss their deadline before the margin narrows. Default 0.01.
    pub missed_share: f64,
    /// Longest expected wait, in service times of the job or of the pool's mean, whatever the budget; never less than
    /// 100 ms. Default 20.
    pub longest_wait: f64,
    /// Share of the starts that goes to classes below the most important one that has jobs. Default 0.05.
    pub reserve: f64,
    /// Mean runs that a tenant may be ahead of its fair share after it asked for less. Default 4.
    pub head_start: f64,
}

/// Time between two looks at the rates and the margin.
pub(super) const WINDOW: Duration = Duration::from_millis(100);
/// Weight of one window in a rate: a time constant of about a second.
pub(super) const WINDOW_WEIGHT: f64 = 0.1;
/// Weight of one finished job in the mean of its kind.
pub(super) const JOB_WEIGHT: f64 = 0.05;
/// Share of the workers' time that is left for a class at the least, whatever those above it take: what the reserve
/// gives, and this where there is none.
pub(super) const LEAST_LEFT: f64 = 0.02;
/// Floor of the longest wait: pools of very short jobs still queue a burst.
const SHORTEST_LONGEST_WAIT: Duration = Duration::from_millis(100);

impl Default for Law {
    fn default() -> Self {
        Self {
            service: Duration::from_millis(50),
            wait_share: 0.5,
            missed_share: 0.01,
            longest_wait: 20.0,
            reserve: 0.05,
            head_start: 4.0,
        }
    }
}

impl Law {
    /// Longest expected wait where a job takes `service` seconds.
    pub(super) fn longest_wait(&self, service: f64) -> f64 {
        (self.longest_wait * service).max(SHORTEST_LONGEST_WAIT.as_secs_f64())
    }
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

/// How often something happens, one of many of its like: brought up to date when it is looked at.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Frequency {
    rate: Rate,
    /// The first window, and the one that is open, by number.
    first: u64,
    window: u64,
    events: u32,
}

/// Events and windows before a frequency tells anything.
const ENOUGH: u32 = 5;
/// Events per second that a mean over about a second tells within a sixth; of fewer it says more about chance.
const TELLING: f64 = 20.0;

impl Frequency {
    pub(super) fn new(window: u64) -> Self {
        Self { rate: Rate::default(), first: window, window, events: 0 }
    }

    pub(super) fn count(&mut self, window: u64) {
        self.catch_up(window);
        self.events = self.events.saturating_add(1);
        self.rate.add(1.0);
    }

    /// Events per second; `None` before there were enough of them to tell.
    pub(super) fn per_second(&self, window: u64) -> Option<f64> {
        let mut now = *self;
        now.catch_up(window);
        let known = now.events >= ENOUGH && now.window - now.first >= u64::from(ENOUGH);
        Some(now.rate.per_second).filter(|rate| known && *rate >= TELLING)
    }

    fn catch_up(&mut self, window: u64) {
        if window > self.window {
            self.rate.turn(u32::try_from(window - self.window - 1).unwrap_or(u32::MAX));
            self.window = window;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_and_a_burst_after_it_tell_nothing_and_a_steady_pace_does() {
        let mut starts = Frequency::new(0);
        (0..ENOUGH).for_each(|_| starts.count(20));
        assert_eq!([starts.per_second(20), starts.per_second(21)], [None, None]);
        (21..60).for_each(|window| (0..3).for_each(|_| starts.count(window)));
        assert!(starts.per_second(60).is_some_and(|rate| (25.0..30.0).contains(&rate)));
        // Forgotten as it is gone.
        assert_eq!(starts.per_second(70), None);
    }
}
