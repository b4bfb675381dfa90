//! Handlers that cannot be made or started: none of their kind is tried for a while, longer each time.

use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use tokio::time::Instant;
use tracing::warn;

use super::{attempt::Raised, shell::Shell};
use crate::model::HandlerError;

/// After the first failure.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);

/// How the factories of a pool's kinds do.
#[derive(Default)]
pub(super) struct Factories(boxcar::Vec<Mutex<Record>>);

#[derive(Default)]
struct Record {
    failures: u64,
    in_a_row: u32,
    /// No try before.
    until: Option<Instant>,
    last: String,
}

/// A try to make a handler.
#[derive(Debug)]
pub(super) struct Try {
    until: Option<Instant>,
}

/// Why a factory is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BackOff {
    pub(super) left: Duration,
    /// What the last failure said.
    pub(super) last: String,
}

/// How the factory of a kind does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FactoryStats {
    /// Handlers that could not be made, from the start.
    pub failures: u64,
    /// The same since one was made.
    pub in_a_row: u32,
    /// Time until the next try; zero where nothing stands against it.
    pub retry_in: Duration,
}

impl Factories {
    /// Knows one kind more.
    pub(super) fn add(&self) {
        self.0.push(Mutex::default());
    }

    /// Asks to make a handler of `kind`.
    pub(super) fn begin(&self, kind: usize, now: Instant) -> Result<Try, BackOff> {
        let record = self.0[kind].lock();
        match record.left(now) {
            Duration::ZERO => Ok(Try { until: record.until }),
            left => Err(BackOff { left, last: record.last.clone() }),
        }
    }

    pub(super) fn succeed(&self, kind: usize, begun: &Try) {
        if begun.until.is_some() {
            let mut record = self.0[kind].lock();
            *record = Record { failures: record.failures, ..Record::default() };
        }
    }

    /// The try went wrong. Returns for how long the factory is left alone.
    pub(super) fn fail(&self, kind: usize, begun: &Try, now: Instant, message: &str) -> Duration {
        let mut record = self.0[kind].lock();
        record.failures += 1;
        message.clone_into(&mut record.last);
        // Of tries that ran side by side, the first that fails sets the time.
        if record.until == begun.until {
            let doubled = SHORTEST.saturating_mul(1 << record.in_a_row.min(16)).min(LONGEST);
            record.in_a_row = record.in_a_row.saturating_add(1);
            record.until = Some(now + doubled.mul_f64(rand::rng().random_range(0.5..1.5)));
        }
        record.left(now)
    }

    pub(super) fn any_backs_off(&self, now: Instant) -> bool {
        self.0.iter().any(|(_, record)| !record.lock().left(now).is_zero())
    }

    pub(super) fn stats(&self, kind: usize, now: Instant) -> FactoryStats {
        let record = self.0[kind].lock();
        FactoryStats { failures: record.failures, in_a_row: record.in_a_row, retry_in: record.left(now) }
    }
}

impl Shell {
    /// Begins to make a handler of `kind`, unless that failed a short while ago.
    pub(super) fn begin_to_make(&self, kind: usize) -> Result<Try, Raised> {
        self.factories.begin(kind, Instant::now()).map_err(|BackOff { left, last }| {
            let name = self.kinds[kind].name();
            let message = format!("no handler of kind {name} could be made, and none is tried for a while: {last}");
            Raised::BeforeBegin(HandlerError::Unavailable { message }, Some(left))
        })
    }

    /// Notes how the making of a handler of `kind` went: what it made, or its error, or the message of its panic.
    pub(super) fn made<T>(
        &self,
        kind: usize,
        begun: &Try,
        made: Result<Result<T, HandlerError>, String>,
    ) -> Result<T, Raised> {
        let name = self.kinds[kind].name();
        let failed = |message: &str| {
            let left = self.factories.fail(kind, begun, Instant::now(), message);
            let retry_ms = left.as_millis();
            warn!(pool = %self.name, kind = %name, retry_ms, cause = message, "a handler could not be made");
            left
        };
        match made {
            Ok(Ok(made)) => {
                self.factories.succeed(kind, begun);
                Ok(made)
            }
            Ok(Err(error)) => {
                let message = format!("no handler of kind {name} could be made: {error}");
                let retry_after = failed(&error.to_string());
                Err(Raised::BeforeBegin(HandlerError::Unavailable { message }, Some(retry_after)))
            }
            Err(message) => {
                failed(&message);
                Err(Raised::BeforeBegin(HandlerError::Panicked { message }, None))
            }
        }
    }
}

impl Record {
    fn left(&self, now: Instant) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kinds: usize) -> Factories {
        let factories = Factories::default();
        (0..kinds).for_each(|_| factories.add());
        factories
    }

    #[test]
    fn waits_double_up_to_their_bound_and_start_anew_after_a_success() {
        let factories = of(2);
        let mut now = Instant::now();
        for doubled in [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000].map(Duration::from_millis)
        {
            let begun = factories.begin(0, now).expect("nothing stands against it");
            let left = factories.fail(0, &begun, now, "no route");
            assert!(left >= doubled / 2 && left <= doubled * 3 / 2, "{left:?} for {doubled:?}");
            let refused = factories.begin(0, now).expect_err("it backs off");
            assert_eq!((refused.left, refused.last.as_str()), (left, "no route"));
            assert!(factories.any_backs_off(now) && factories.begin(1, now).is_ok());
            now += left;
        }
        assert!(!factories.any_backs_off(now));
        let begun = factories.begin(0, now).expect("nothing stands against it");
        factories.succeed(0, &begun);
        assert_eq!(factories.stats(0, now), FactoryStats { failures: 11, in_a_row: 0, retry_in: Duration::ZERO });
        let begun = factories.begin(0, now).expect("nothing stands against it");
        assert!(factories.fail(0, &begun, now, "") <= SHORTEST * 3 / 2);
    }

    #[test]
    fn tries_side_by_side_count_as_one_step() {
        let factories = of(1);
        let now = Instant::now();
        let tries: Vec<_> = (0..8).filter_map(|_| factories.begin(0, now).ok()).collect();
        for begun in &tries {
            factories.fail(0, begun, now, "");
        }
        let stats = factories.stats(0, now);
        assert_eq!((stats.failures, stats.in_a_row), (8, 1));
        assert!(stats.retry_in <= SHORTEST * 3 / 2);
    }
}
