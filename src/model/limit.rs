use std::{num::NonZeroU32, time::Duration};

/// Bounds on the jobs of one kind, for the sake of what they call: a database, an API, a device that breaks under load.
/// What is over a bound waits in the queue, or is refused where it would wait too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KindLimits {
    /// Bounds on all jobs of the kind together.
    pub all: Limit,
    /// Bounds on the jobs of each limit key.
    pub per_key: Limit,
    /// Most limit keys that are told apart; further ones share the bounds of the empty key. Default 10,000.
    pub keys: usize,
}

/// A bound on jobs that run, and one on their starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limit {
    /// Most jobs that hold a worker at the same time.
    pub concurrency: Option<NonZeroU32>,
    /// Most starts in a time.
    pub rate: Option<Rate>,
}

/// A bound on starts: a bucket of tokens, one for each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Time in which one token comes.
    pub interval: Duration,
    /// Most tokens that are kept: starts at once after a pause.
    pub burst: NonZeroU32,
}

/// The bound that a job is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limiter {
    /// As many jobs of the kind run as may.
    Concurrency,
    /// As many jobs of the kind started as may.
    Rate,
    /// As many jobs with the limit key run as may.
    KeyConcurrency,
    /// As many jobs with the limit key started as may.
    KeyRate,
}

impl Default for KindLimits {
    fn default() -> Self {
        Self { all: Limit::default(), per_key: Limit::default(), keys: 10_000 }
    }
}

impl KindLimits {
    /// Whether any bound is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.all.is_set() || self.per_key.is_set()
    }

    /// Whether any bound on starts is set.
    #[must_use]
    pub fn has_rate(&self) -> bool {
        self.all.rate.is_some() || self.per_key.rate.is_some()
    }
}

impl Limit {
    /// Whether any bound is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.concurrency.is_some() || self.rate.is_some()
    }
}

impl Rate {
    /// So many starts per second, which must be positive, and so many at once.
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
        }
    }
}
