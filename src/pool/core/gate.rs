use std::num::NonZeroU32;

use tokio::time::Instant;

use super::{bucket::Bucket, list::List};
use crate::model::{Limit, Limiter};

/// Seconds by which waits differ that do not tie.
pub(super) const TIE: f64 = 1e-9;

/// One limit key of one kind. Its jobs become ready in the order in which they came, as far as the limits per key let
/// them; those that do not stand here.
pub(super) struct Gate {
    pub(super) lane: usize,
    pub(super) key: Box<str>,
    pub(super) held: List,
    /// Jobs that were let through and have not started: each has a token and a place among the running ones in view.
    pub(super) ready: u32,
    pub(super) used: Used,
    /// Queued jobs, those of them that an ordering key holds back, and queued and running ones.
    pub(super) queued: u32,
    pub(super) blocked: u32,
    pub(super) jobs: u32,
    pub(super) asleep: Option<Instant>,
}

/// What is used of a limit.
#[derive(Default, Clone, Copy)]
pub(super) struct Used {
    pub(super) running: u32,
    pub(super) bucket: Bucket,
}

/// What stands before a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ahead {
    /// In the lane of its kind.
    pub(super) in_lane: f64,
    /// Whether it stands behind its ordering key: else it comes to its gate before those that do.
    pub(super) is_blocked: bool,
}

/// How long a limit keeps a job waiting, in seconds, and which.
#[derive(Debug, Clone, Copy)]
pub(super) struct LimitWait {
    pub(super) seconds: f64,
    pub(super) by: Option<Limiter>,
}

impl LimitWait {
    pub(super) const NONE: Self = Self { seconds: 0.0, by: None };

    pub(super) fn or(self, seconds: f64, by: Limiter) -> Self {
        // A tie stays with the first, whichever way the sums are rounded.
        if seconds > self.seconds + TIE { Self { seconds, by: Some(by) } } else { self }
    }
}

impl Used {
    pub(super) fn has_place(&self, limit: Limit, more: u32) -> bool {
        limit.concurrency.is_none_or(|most| self.running + more <= most.get())
    }

    pub(super) fn has_token(&self, limit: Limit, tokens: u32, now: Instant) -> bool {
        limit.rate.is_none_or(|rate| self.bucket.has(rate, tokens, now))
    }

    pub(super) fn start(&mut self, limit: Limit, now: Instant) {
        self.running += 1;
        if let Some(rate) = limit.rate {
            self.bucket.take(rate, now);
        }
    }

    /// The wait behind `before` jobs that take `service` seconds each, where it is longer than `wait`.
    pub(super) fn wait(
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

/// A gate that may let its first job through; the greatest one has the oldest job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) age: u64,
    pub(super) gate: usize,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.age, other.gate).cmp(&(self.age, self.gate))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Gate {
    pub(super) fn new(lane: usize, key: &str) -> Self {
        Self {
            lane,
            key: key.into(),
            held: List::default(),
            ready: 0,
            used: Used::default(),
            queued: 0,
            blocked: 0,
            jobs: 0,
            asleep: None,
        }
    }

    /// Queued jobs of the key that come to be ready before one more.
    pub(super) fn before(&self, ahead: Ahead) -> f64 {
        f64::from(if ahead.is_blocked { self.queued } else { self.queued - self.blocked })
    }

    pub(super) fn admits(&self, limit: Limit, now: Instant) -> bool {
        let more = self.ready + 1;
        self.used.has_place(limit, more) && self.used.has_token(limit, more, now)
    }
}
