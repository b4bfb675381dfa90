//! Limits of kinds: concurrency and rate. `src/scheduler/limit.rs` applies them.

use std::{num::NonZeroU32, time::Duration};

/// Limits of one kind. They protect what its handlers call: a database, an API, a device. A job over a limit waits in
/// the queue, or is refused if it would wait too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindLimits {
    /// Limits on all jobs of the kind together.
    pub all: Limit,
    /// Limits on the jobs of each limit key.
    pub per_key: Limit,
    /// Maximum number of limit keys that are counted separately; further ones share the limits of the empty key.
    pub keys: usize,
    /// What the limits mean for calls where several servers share a store.
    pub share: Share,
}

/// What a limit means for calls, which wait for no store, where several servers share one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "programs", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Share {
    /// Each server has the whole limit.
    #[default]
    Each,
    /// Each server has an equal part of it, rounded down, at least one job.
    Divide,
}

/// A limit on running jobs, and a limit on the rate of starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limit {
    /// Maximum number of jobs that hold a worker at the same time.
    pub concurrency: Option<NonZeroU32>,
    /// Highest rate of starts.
    pub rate: Option<Rate>,
}

/// A limit on starts: a token bucket, one token for each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Time in which one token is added.
    pub interval: Duration,
    /// Size of the bucket: starts that are possible at once after a pause.
    pub burst: NonZeroU32,
}

/// The limit that a job waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limiter {
    /// The kind's concurrency.
    Concurrency,
    /// The kind's rate of starts.
    Rate,
    /// The limit key's concurrency.
    KeyConcurrency,
    /// The limit key's rate of starts.
    KeyRate,
    /// A handler holds the kind for a time.
    Hold,
    /// A handler holds the limit key for a time.
    KeyHold,
}

impl Default for KindLimits {
    fn default() -> Self {
        Self { all: Limit::default(), per_key: Limit::default(), keys: 10_000, share: Share::Each }
    }
}

impl KindLimits {
    /// Whether any limit is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.all.is_set() || self.per_key.is_set()
    }

    /// The limits of one of so many servers.
    pub(crate) fn part_of(self, servers: NonZeroU32) -> Self {
        match self.share {
            Share::Each => self,
            Share::Divide => Self { all: self.all.part_of(servers), per_key: self.per_key.part_of(servers), ..self },
        }
    }
}

impl Limit {
    /// Whether any limit is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.concurrency.is_some() || self.rate.is_some()
    }

    fn part_of(self, servers: NonZeroU32) -> Self {
        let part = |all: NonZeroU32| NonZeroU32::new(all.get() / servers).unwrap_or(NonZeroU32::MIN);
        let rate = |Rate { interval, burst }| Rate { interval: interval * servers.get(), burst: part(burst) };
        Self { concurrency: self.concurrency.map(part), rate: self.rate.map(rate) }
    }
}

impl Rate {
    /// A rate of `starts` per second, which must be positive, with a bucket of `burst`.
    #[must_use]
    pub fn per_second(starts: f64, burst: NonZeroU32) -> Self {
        Self { interval: Duration::from_secs_f64(1.0 / starts), burst }
    }
}

impl Limiter {
    /// Name in `google.rpc.ErrorInfo` and on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Concurrency => "concurrency",
            Self::Rate => "rate",
            Self::KeyConcurrency => "key_concurrency",
            Self::KeyRate => "key_rate",
            Self::Hold => "hold",
            Self::KeyHold => "key_hold",
        }
    }
}
