//! The start of a run, and when the run is stopped.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use crate::model::Deadline;

/// Marks the start of a run, for readers on other threads. Plain atomics cost a short job less than a cell that guards
/// against a second write.
#[derive(Debug, Default)]
pub(super) struct StartMark {
    /// Nanoseconds from the arrival to the start, plus one; 0 before the mark.
    waited: AtomicU64,
    /// Nanoseconds from the arrival until the job got its worker, plus one; 0 without one.
    granted: AtomicU64,
    /// Longest run in nanoseconds; 0 if only the deadline limits it.
    limit: AtomicU64,
    /// Longest wait from the arrival in nanoseconds, after the mark was taken back; 0 if only the deadline limits it.
    wait_limit: AtomicU64,
    worker: AtomicU32,
}

impl StartMark {
    /// Marks the start of a run with a run limit of `limit`. The job got its `worker` the time `granted` after it
    /// arrived, and the run began the time `waited` after it arrived.
    pub(super) fn set(&self, worker: u32, granted: Duration, waited: Duration, limit: Option<Duration>) {
        self.worker.store(worker, Ordering::Relaxed);
        self.granted.store(nanos(granted) + 1, Ordering::Relaxed);
        self.limit.store(limit.map_or(0, |limit| nanos(limit).max(1)), Ordering::Relaxed);
        self.set_waited(waited);
    }

    /// Takes the mark back: the job has its worker, and waits for what runs it, for at most `limit` from its arrival.
    pub(super) fn take_back(&self, limit: Option<Duration>) {
        self.wait_limit.store(limit.map_or(0, |limit| nanos(limit).max(1)), Ordering::Relaxed);
        self.waited.store(0, Ordering::Release);
    }

    /// Marks the start again, after [`take_back`](Self::take_back).
    pub(super) fn set_waited(&self, waited: Duration) {
        // Stored last: a reader that sees this value also sees the others.
        self.waited.store(nanos(waited) + 1, Ordering::Release);
    }

    /// Time from the arrival to the start; `None` before the mark.
    pub(super) fn waited(&self) -> Option<Duration> {
        self.waited.load(Ordering::Acquire).checked_sub(1).map(Duration::from_nanos)
    }

    /// Time from the arrival until the job got its worker; `None` if it has none.
    pub(super) fn granted(&self) -> Option<Duration> {
        self.granted.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_nanos)
    }

    /// When a job with this deadline is stopped: at the deadline, or earlier by the limit of its run, or of its wait.
    pub(super) fn until(&self, deadline: Deadline) -> Instant {
        let waited = self.waited();
        let limit = if waited.is_some() { &self.limit } else { &self.wait_limit };
        let limit = Some(limit.load(Ordering::Relaxed)).filter(|limit| *limit > 0);
        let from = deadline.arrival() + waited.unwrap_or_default();
        let limited = limit.and_then(|limit| from.checked_add(Duration::from_nanos(limit)));
        limited.map_or(deadline.reply_by(), |end| end.min(deadline.reply_by()))
    }

    /// The worker; 0 before the mark.
    pub(super) fn worker(&self) -> u32 {
        self.worker.load(Ordering::Relaxed)
    }
}

/// Nanoseconds, limited to five centuries, which no deadline exceeds.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_set() {
        let arrival = Instant::now();
        let deadline = Deadline::new(arrival, Duration::from_secs(100), Duration::from_secs(1));
        let mark = StartMark::default();
        assert_eq!((mark.until(deadline), mark.waited(), mark.worker()), (deadline.reply_by(), None, 0));
        let short = Duration::from_nanos(1);
        let cases = [
            (Duration::ZERO, None, None),
            (short, Some(Duration::ZERO), Some(short * 2)),
            (Duration::from_nanos(1_234_567_891), Some(short), Some(Duration::from_nanos(1_234_567_892))),
            (Duration::from_secs(98), Some(Duration::from_secs(2)), None),
            (Duration::ZERO, Some(Duration::MAX), None),
        ];
        for (waited, limit, until) in cases {
            let mark = StartMark::default();
            mark.set(7, short, waited, limit);
            assert_eq!(mark.granted(), Some(short));
            let until = until.map_or(deadline.reply_by(), |until| arrival + until);
            assert_eq!((mark.until(deadline), mark.waited(), mark.worker()), (until, Some(waited), 7), "{limit:?}");
            mark.take_back(None);
            assert_eq!((mark.until(deadline), mark.waited()), (deadline.reply_by(), None));
            mark.take_back(Some(short));
            assert_eq!(mark.until(deadline), arrival + short);
            mark.set_waited(waited);
            assert_eq!((mark.until(deadline), mark.waited(), mark.worker()), (until, Some(waited), 7), "{limit:?}");
        }
    }
}
