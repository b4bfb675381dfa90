//! The limits of one limit key, and the token bucket of a rate.

use super::super::{entry::KindQueueId, list::List};
use crate::model::{Limit, Limiter, Rate};
use std::num::NonZeroU32;
use tokio::time::Instant;

/// Waits that differ by less than this, in seconds, count as equal.
pub(crate) const TIE: f64 = 1e-9;

/// One limit key of one kind. Its jobs become ready in order of arrival, as far as the limits per key allow. The other
/// jobs wait here.
#[derive(Default)]
pub(crate) struct KeyLimiter {
    pub(crate) kind_queue: KindQueueId,
    pub(crate) key: Box<str>,
    pub(crate) throttled: List,
    /// Jobs that passed and have not started. A token and a place are reserved for each.
    pub(crate) ready: u32,
    pub(crate) used: Used,
    /// Queued and running jobs.
    pub(crate) jobs: u32,
    /// When its next job gets a token, if it waits for nothing else.
    pub(crate) waiting_for_token: Option<Instant>,
}

/// Use of a limit.
#[derive(Default, Clone, Copy)]
pub(crate) struct Used {
    pub(crate) running: u32,
    /// Jobs that a store has counted for the whole limit, of which this is a part.
    pub(crate) stored: u32,
    /// Tokens that came with them and were not taken.
    pub(crate) given: u32,
    pub(crate) bucket: Bucket,
    /// A handler said that no job may start before.
    pub(crate) held_until: Option<Instant>,
}

/// The wait that a limit causes, in seconds, and which limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitWait {
    pub(crate) seconds: f64,
    pub(crate) by: Option<Limiter>,
}

impl LimitWait {
    pub(crate) const NONE: Self = Self { seconds: 0.0, by: None };

    /// The longer one of two waits.
    pub(crate) fn or_longer(self, seconds: f64, by: Limiter) -> Self {
        // The tolerance lets the first limit win a tie, independent of rounding.
        if seconds > self.seconds + TIE { Self { seconds, by: Some(by) } } else { self }
    }
}

impl Used {
    pub(crate) fn has_place(&self, limit: Limit, more: u32) -> bool {
        limit.concurrency.is_none_or(|max| self.running + more <= self.places(max))
    }

    /// Jobs that may run. All that a store let this server take may, so that its whole limit is used.
    pub(crate) fn places(&self, max: NonZeroU32) -> u32 {
        self.stored.max(max.get())
    }

    pub(crate) fn has_token(&self, limit: Limit, tokens: u32, now: Instant) -> bool {
        !self.is_held(now)
            && limit.rate.is_none_or(|rate| tokens <= self.given || self.bucket.has(rate, tokens - self.given, now))
    }

    pub(crate) fn is_held(&self, now: Instant) -> bool {
        self.held_until.is_some_and(|until| until > now)
    }

    /// Which of the limits `by` prevents a start, if one does.
    pub(crate) fn closed_by(&self, limit: Limit, more: u32, by: [Limiter; 3], now: Instant) -> Option<Limiter> {
        if self.is_held(now) {
            return Some(by[2]);
        }
        if !self.has_place(limit, more) {
            return Some(by[0]);
        }
        (!self.has_token(limit, more, now)).then_some(by[1])
    }

    /// When it has `tokens` tokens, and is not held. The time may be in the past; `None` means always.
    pub(crate) fn opens_at(&self, limit: Limit, tokens: u32) -> Option<Instant> {
        let missing = tokens.saturating_sub(self.given);
        limit.rate.filter(|_| missing > 0).and_then(|rate| self.bucket.when(rate, missing)).max(self.held_until)
    }

    /// From when on it is as a new one, without jobs; `None` means always.
    pub(crate) fn idle_at(&self) -> Option<Instant> {
        self.bucket.full_at().max(self.held_until)
    }

    pub(crate) fn start(&mut self, limit: Limit, now: Instant) {
        self.running += 1;
        match limit.rate {
            _ if self.given > 0 => self.given -= 1,
            Some(rate) => self.bucket.take(rate, now),
            None => {}
        }
    }

    /// The wait behind `before` jobs that take `service` seconds each, if that is longer than `wait`.
    pub(crate) fn wait(
        &self,
        wait: LimitWait,
        limit: Limit,
        by: [Limiter; 3],
        (before, service): (f64, f64),
        now: Instant,
    ) -> LimitWait {
        let mut wait = wait;
        if let Some(max) = limit.concurrency.map(|max| f64::from(self.places(max)))
            && f64::from(self.running) + before >= max
        {
            wait = wait.or_longer((before + 1.0) * service / max, by[0]);
        }
        if let Some(rate) = limit.rate {
            wait = wait.or_longer(self.bucket.wait(rate, before - f64::from(self.given), now), by[1]);
        }
        match self.held_until {
            Some(until) => wait.or_longer(until.saturating_duration_since(now).as_secs_f64(), by[2]),
            None => wait,
        }
    }
}

impl KeyLimiter {
    pub(crate) fn admits(&self, limit: Limit, now: Instant) -> bool {
        let more = self.ready + 1;
        self.used.has_place(limit, more) && self.used.has_token(limit, more, now)
    }
}

/// A token bucket that starts full. It stores only the time at which it is full again (the generic cell rate algorithm,
/// ITU-T I.371), so it needs no timer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bucket {
    full_at: Option<Instant>,
}

impl Bucket {
    /// Whether it has at least `tokens` tokens.
    pub(crate) fn has(&self, rate: Rate, tokens: u32, now: Instant) -> bool {
        tokens <= rate.burst.get() && self.when(rate, tokens).is_none_or(|at| at <= now)
    }

    /// When it has `tokens` tokens, at most the burst. The time may be in the past; `None` means always.
    pub(crate) fn when(&self, rate: Rate, tokens: u32) -> Option<Instant> {
        self.full_at?.checked_sub(rate.interval * (rate.burst.get() - tokens))
    }

    /// Takes the token of a start.
    pub(crate) fn take(&mut self, rate: Rate, now: Instant) {
        self.full_at = Some(self.full_at.map_or(now, |full_at| full_at.max(now)) + rate.interval);
    }

    /// When it is full. The time may be in the past; `None` means always.
    pub(crate) fn full_at(&self) -> Option<Instant> {
        self.full_at
    }

    /// Seconds until a start behind `before` other starts.
    pub(crate) fn wait(&self, rate: Rate, before: f64, now: Instant) -> f64 {
        let full_in = self.full_at.map_or(0.0, |at| at.saturating_duration_since(now).as_secs_f64());
        let missing = before + 1.0 - f64::from(rate.burst.get());
        (full_in + missing * rate.interval.as_secs_f64()).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU32, time::Duration};

    use super::*;

    #[test]
    fn tokens_arrive_one_by_one_up_to_the_burst() {
        let rate = Rate { interval: Duration::from_millis(100), burst: NonZeroU32::new(3).expect("three") };
        let start = Instant::now() + Duration::from_secs(10);
        let at = |ms| start + Duration::from_millis(ms);
        let mut bucket = Bucket::default();
        for _ in 0..3 {
            assert!(bucket.has(rate, 1, start));
            bucket.take(rate, start);
        }
        assert!(!bucket.has(rate, 1, at(99)) && bucket.has(rate, 1, at(100)) && !bucket.has(rate, 2, at(199)));
        assert_eq!(bucket.when(rate, 2), Some(at(200)));
        assert!(bucket.has(rate, 3, at(900)) && !bucket.has(rate, 4, at(900)));
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(bucket.wait(rate, 0.0, at(40)), 0.06) && near(bucket.wait(rate, 2.0, at(40)), 0.26));
        // An event that read the clock before it got the lock may bring an earlier time.
        bucket.take(rate, at(900));
        bucket.take(rate, at(899));
        assert_eq!(bucket.full_at(), Some(at(1100)));
    }
}
