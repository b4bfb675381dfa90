//! Backs off from failing factories: no handler of the kind is made for a while, longer after each failure.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{handler::back_off, model::KindId};

/// State of the factories of a pool's kinds.
#[derive(Default)]
pub(super) struct Factories(boxcar::Vec<Mutex<Record>>);

#[derive(Default)]
struct Record {
    failures: u64,
    in_a_row: u32,
    /// No attempt before this time.
    until: Option<Instant>,
    last: String,
}

/// An attempt to make a handler.
#[derive(Debug)]
pub(super) struct Try {
    until: Option<Instant>,
}

/// Why a factory is not called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BackOff {
    pub(super) left: Duration,
    /// Message of the last failure.
    pub(super) last: String,
}

/// State of the factory of a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FactoryStats {
    /// Failures since the start.
    pub failures: u64,
    /// Failures since the last success.
    pub in_a_row: u32,
    /// Time until the next attempt; zero if it may be tried now.
    pub retry_in: Duration,
}

impl Factories {
    /// Adds a kind.
    pub(super) fn add(&self) {
        self.0.push(Mutex::default());
    }

    /// Starts to make a handler of `kind`, unless its factory backs off.
    pub(super) fn begin(&self, kind: KindId, now: Instant) -> Result<Try, BackOff> {
        let record = self.0[kind.0].lock();
        match record.left(now) {
            Duration::ZERO => Ok(Try { until: record.until }),
            left => Err(BackOff { left, last: record.last.clone() }),
        }
    }

    pub(super) fn succeed(&self, kind: KindId, begun: &Try) {
        if begun.until.is_some() {
            let mut record = self.0[kind.0].lock();
            *record = Record { failures: record.failures, ..Record::default() };
        }
    }

    /// Records a failure. Returns the length of the back-off.
    pub(super) fn fail(&self, kind: KindId, begun: &Try, now: Instant, message: &str) -> Duration {
        let mut record = self.0[kind.0].lock();
        record.failures += 1;
        message.clone_into(&mut record.last);
        // Several attempts may run at the same time; the first failure sets the back-off.
        if record.until == begun.until {
            record.until = Some(now + back_off(record.in_a_row));
            record.in_a_row = record.in_a_row.saturating_add(1);
        }
        record.left(now)
    }

    pub(super) fn any_backs_off(&self, now: Instant) -> bool {
        self.0.iter().any(|(_, record)| !record.lock().left(now).is_zero())
    }

    pub(super) fn stats(&self, kind: KindId, now: Instant) -> FactoryStats {
        let record = self.0[kind.0].lock();
        FactoryStats { failures: record.failures, in_a_row: record.in_a_row, retry_in: record.left(now) }
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
            let begun = factories.begin(KindId(0), now).expect("nothing stands against it");
            let left = factories.fail(KindId(0), &begun, now, "no route");
            assert!(left >= doubled / 2 && left <= doubled * 3 / 2, "{left:?} for {doubled:?}");
            let refused = factories.begin(KindId(0), now).expect_err("it backs off");
            assert_eq!((refused.left, refused.last.as_str()), (left, "no route"));
            assert!(factories.any_backs_off(now) && factories.begin(KindId(1), now).is_ok());
            now += left;
        }
        assert!(!factories.any_backs_off(now));
        let begun = factories.begin(KindId(0), now).expect("nothing stands against it");
        factories.succeed(KindId(0), &begun);
        assert_eq!(
            factories.stats(KindId(0), now),
            FactoryStats { failures: 11, in_a_row: 0, retry_in: Duration::ZERO }
        );
        let begun = factories.begin(KindId(0), now).expect("nothing stands against it");
        assert!(factories.fail(KindId(0), &begun, now, "") <= Duration::from_millis(150));
    }

    #[test]
    fn tries_side_by_side_count_as_one_step() {
        let factories = of(1);
        let now = Instant::now();
        let tries: Vec<_> = (0..8).filter_map(|_| factories.begin(KindId(0), now).ok()).collect();
        for begun in &tries {
            factories.fail(KindId(0), begun, now, "");
        }
        let stats = factories.stats(KindId(0), now);
        assert_eq!((stats.failures, stats.in_a_row), (8, 1));
        assert!(stats.retry_in <= Duration::from_millis(150));
    }
}
