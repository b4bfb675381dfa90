//! Rate-limited log lines for failures that peers can cause in large numbers.
//!
//! The first failure in a pool for a reason is logged at once. Those of the next ten seconds share one line, with their
//! number and one example. A [`Throttle`] limits lines that have no pool and no reason.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tracing::warn;

/// Time between two lines about the same reason in the same pool.
const PERIOD: Duration = Duration::from_secs(10);

static INCIDENTS: Incidents = Incidents { records: Mutex::new(BTreeMap::new()), held_back: Notify::const_new() };

/// The last line of each reason and pool. Both are few, because callers cannot choose them.
struct Incidents {
    records: Mutex<BTreeMap<&'static str, Vec<Record>>>,
    /// Notified when failures wait for the end of their period.
    held_back: Notify,
}

struct Record {
    pool: String,
    /// Time of the last line.
    last: Instant,
    /// Failures since then, of which `example` is the first.
    held_back: u64,
    example: Incident,
}

/// One failure. Empty fields are not logged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Incident {
    /// What happened.
    pub(crate) what: &'static str,
    pub(crate) kind: String,
    pub(crate) job: String,
    pub(crate) detached_job: String,
    pub(crate) request_id: String,
    pub(crate) tenant: String,
    pub(crate) principal: String,
    pub(crate) peer: String,
    /// The message that the caller got.
    pub(crate) cause: String,
}

/// A line to be logged.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    pool: String,
    reason: &'static str,
    count: u64,
    example: Incident,
}

/// Logs a failure in `pool`, which may be empty. `example` is called only if it will be logged.
pub(crate) fn log(pool: &str, reason: &'static str, example: impl FnOnce() -> Incident) {
    if let Some(line) = INCIDENTS.note(Instant::now(), pool, reason, example) {
        line.write();
    }
}

/// Logs the remaining failures at the end of their periods. It never returns.
pub(crate) async fn follow() {
    loop {
        INCIDENTS.held_back.notified().await;
        sleep(PERIOD).await;
        let over = Instant::now().checked_sub(PERIOD);
        INCIDENTS.rest(|last| over.is_none_or(|over| last <= over)).iter().for_each(Line::write);
    }
}

/// Logs the remaining failures at the end of the process.
pub(crate) fn log_rest() {
    INCIDENTS.rest(|_| true).iter().for_each(Line::write);
}

impl Incidents {
    /// The line to log now, if there is one.
    fn note(&self, now: Instant, pool: &str, reason: &'static str, example: impl FnOnce() -> Incident) -> Option<Line> {
        let mut records = self.records.lock();
        let of_reason = records.entry(reason).or_default();
        let Some(record) = of_reason.iter_mut().find(|record| record.pool == pool) else {
            of_reason.push(Record { pool: pool.to_owned(), last: now, held_back: 0, example: Incident::default() });
            return Some(Line { pool: pool.to_owned(), reason, count: 1, example: example() });
        };
        if now.saturating_duration_since(record.last) >= PERIOD {
            record.last = now;
            let count = std::mem::take(&mut record.held_back) + 1;
            return Some(Line { pool: pool.to_owned(), reason, count, example: example() });
        }
        if record.held_back == 0 {
            record.example = example();
            self.held_back.notify_one();
        }
        record.held_back += 1;
        None
    }

    /// The lines about failures that were held back, of each record whose last line satisfies `is_due`.
    fn rest(&self, is_due: impl Fn(Instant) -> bool) -> Vec<Line> {
        let mut lines = Vec::new();
        for (reason, of_reason) in &mut *self.records.lock() {
            for record in of_reason.iter_mut().filter(|record| record.held_back > 0 && is_due(record.last)) {
                record.last += PERIOD;
                let (count, example) = (std::mem::take(&mut record.held_back), std::mem::take(&mut record.example));
                lines.push(Line { pool: record.pool.clone(), reason, count, example });
            }
        }
        lines
    }
}

impl Line {
    fn write(&self) {
        let Self { pool, reason, count, example } = self;
        let Incident { what, kind, job, detached_job, request_id, tenant, principal, peer, cause } = example;
        let present = |text: &String| (!text.is_empty()).then(|| text.clone());
        warn!(
            pool = present(pool),
            reason,
            count,
            kind = present(kind),
            job = present(job),
            detached_job = present(detached_job),
            request_id = present(request_id),
            tenant = present(tenant),
            principal = present(principal),
            peer = present(peer),
            cause = present(cause),
            "{what}",
        );
    }
}

/// Passes one log line per ten seconds, and counts the others.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<Passed>);

#[derive(Debug, Default)]
struct Passed {
    last: Option<Instant>,
    held_back: u64,
}

impl Throttle {
    /// If this line may pass, returns the number of suppressed lines before it.
    pub(crate) fn pass(&self) -> Option<u64> {
        let mut passed = self.0.lock();
        let now = Instant::now();
        if passed.last.is_some_and(|last| now - last < PERIOD) {
            passed.held_back += 1;
            return None;
        }
        passed.last = Some(now);
        Some(std::mem::take(&mut passed.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(job: &str) -> Incident {
        Incident { what: "jobs did not start", job: job.into(), ..Incident::default() }
    }

    #[test]
    fn the_first_is_told_at_once_and_the_others_by_their_number() {
        let incidents = Incidents { records: Mutex::default(), held_back: Notify::const_new() };
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let note = |seconds, pool, job: &str| {
            let line = incidents.note(at(seconds), pool, "QUEUE_FULL", || example(job))?;
            Some((line.count, line.example.job))
        };
        let rest = |seconds| {
            let lines = incidents.rest(|last| last + PERIOD <= at(seconds)).into_iter();
            lines.map(|line| (line.pool, line.count, line.example.job)).collect::<Vec<_>>()
        };
        assert_eq!(note(0, "cpu", "a"), Some((1, "a".into())));
        assert_eq!(note(1, "io", "b"), Some((1, "b".into())), "another pool is another matter");
        assert_eq!((note(2, "cpu", "c"), note(9, "cpu", "d")), (None, None));
        assert_eq!(rest(9), []);
        assert_eq!(rest(10), [("cpu".into(), 2, "c".into())]);
        assert_eq!((note(11, "cpu", "e"), note(19, "cpu", "f")), (None, None), "a line was written a second ago");
        assert_eq!(note(20, "cpu", "g"), Some((3, "g".into())), "none comes twice, and none is forgotten");
        assert_eq!((rest(100), note(100, "cpu", "h")), (vec![], Some((1, "h".into()))));
    }

    #[tokio::test(start_paused = true)]
    async fn one_in_ten_seconds_passes_and_tells_of_the_others() {
        let throttle = Throttle::default();
        assert_eq!((throttle.pass(), throttle.pass(), throttle.pass()), (Some(0), None, None));
        tokio::time::advance(PERIOD).await;
        assert_eq!((throttle.pass(), throttle.pass()), (Some(2), None));
    }
}
