//! The limits of one limit key.

use std::num::NonZeroU32;

use tokio::time::Instant;

use super::{super::list::List, bucket::Bucket};
use crate::model::{Limit, Limiter};

/// Waits that differ by less count as equal, in seconds.
pub(crate) const TIE: f64 = 1e-9;

/// One limit key of one kind. Its jobs become ready in order of arrival, as far as the limits per key allow; the others
/// wait here.
pub(crate) struct KeyLimiter {
    pub(crate) kind_queue: usize,
    pub(crate) key: Box<str>,
    pub(crate) throttled: List,
    /// Jobs that passed and have not started: each has a token and a place among the running ones.
    pub(crate) ready: u32,
    pub(crate) used: Used,
    /// Queued and running jobs.
    pub(crate) jobs: u32,
    pub(crate) asleep: Option<Instant>,
}

/// Use of a limit.
#[derive(Default, Clone, Copy)]
pub(crate) struct Used {
    pub(crate) running: u32,
    pub(crate) bucket: Bucket,
}

/// The wait that a limit causes, in seconds, and which limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitWait {
    pub(crate) seconds: f64,
    pub(crate) by: Option<Limiter>,
}

impl LimitWait {
    pub(crate) const NONE: Self = Self { seconds: 0.0, by: None };

    pub(crate) fn or(self, seconds: f64, by: Limiter) -> Self {
        // A tie goes to the first, however the sums are rounded.
        if seconds > self.seconds + TIE { Self { seconds, by: Some(by) } } else { self }
    }
}

impl Used {
    pub(crate) fn has_place(&self, limit: Limit, more: u32) -> bool {
        limit.concurrency.is_none_or(|most| self.running + more <= most.get())
    }

    pub(crate) fn has_token(&self, limit: Limit, tokens: u32, now: Instant) -> bool {
        limit.rate.is_none_or(|rate| self.bucket.has(rate, tokens, now))
    }

    pub(crate) fn start(&mut self, limit: Limit, now: Instant) {
        self.running += 1;
        if let Some(rate) = limit.rate {
            self.bucket.take(rate, now);
        }
    }

    /// The wait behind `before` jobs that take `service` seconds each, if it is longer than `wait`.
    pub(crate) fn wait(
        &self,
        wait: LimitWait,
        limit: Limit,
        by: [Limiter; 2],
        (before, service): (f64, f64),
        now: Instant,
    ) -> LimitWait {
        let mut wait = wait;
        if let Some(most) = limit.concurrency.map(NonZeroU32::get).map(f64::from)
            && f64::from(self.running) + before >= most
        {
            wait = wait.or((before + 1.0) * service / most, by[0]);
        }
        if let Some(rate) = limit.rate {
            wait = wait.or(self.bucket.wait(rate, before, now), by[1]);
        }
        wait
    }
}

impl KeyLimiter {
    pub(crate) fn new(kind_queue: usize, key: &str) -> Self {
        Self {
            kind_queue,
            key: key.into(),
            throttled: List::default(),
            ready: 0,
            used: Used::default(),
            jobs: 0,
            asleep: None,
        }
    }

    pub(crate) fn admits(&self, limit: Limit, now: Instant) -> bool {
        let more = self.ready + 1;
        self.used.has_place(limit, more) && self.used.has_token(limit, more, now)
    }
}
