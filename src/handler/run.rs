//! The state of one run: its start, its runner, and the reason to stop. The stop ladder is in `src/pool/running_job.rs`.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::model::Deadline;

/// Why a job must stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// Its deadline, or a limit of its run.
    Deadline,
    /// Its caller disconnected or cancelled.
    Caller,
    /// The drain reached its time limit.
    Drain,
    /// An operator cancelled the job.
    Operator,
}

impl StopReason {
    /// Name in messages to workers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deadline => "DEADLINE",
            Self::Caller => "CALLER",
            Self::Drain => "DRAIN",
            Self::Operator => "OPERATOR",
        }
    }
}

/// What runs a job outside of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Runner {
    /// A process on this machine, by its id.
    Process(u32),
    /// An attached worker, by name and address.
    Worker(Arc<str>),
}

impl fmt::Display for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => write!(f, "process {pid}"),
            Self::Worker(shown) => write!(f, "worker {shown}"),
        }
    }
}

/// The start of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunStart {
    /// Worker that runs the job.
    pub worker: u32,
    /// When the run started.
    pub at: Instant,
    /// When the run is stopped: at the deadline, or earlier by a limit of the run.
    pub until: Instant,
}

/// Marks the start of a run, once, for readers on other threads. Plain atomics cost a short job less than a cell that
/// guards against a second write.
#[derive(Debug, Default)]
pub(super) struct StartMark {
    /// Nanoseconds from the arrival to the start, plus one; 0 before the mark.
    waited: AtomicU64,
    /// Longest run in nanoseconds; 0 if only the deadline limits it.
    limit: AtomicU64,
    worker: AtomicU32,
}

impl StartMark {
    /// Marks the start of a run on `worker`, `waited` after the arrival, with a run limit of `limit`.
    pub(super) fn set(&self, worker: u32, waited: Duration, limit: Option<Duration>) {
        self.worker.store(worker, Ordering::Relaxed);
        self.limit.store(limit.map_or(0, |limit| nanos(limit).max(1)), Ordering::Relaxed);
        // Stored last: a reader that sees this value also sees the others.
        self.waited.store(nanos(waited) + 1, Ordering::Release);
    }

    /// Time from the arrival to the start; `None` before the mark.
    pub(super) fn waited(&self) -> Option<Duration> {
        self.waited.load(Ordering::Acquire).checked_sub(1).map(Duration::from_nanos)
    }

    /// The start of the run of a job with this deadline; `None` before the mark.
    pub(super) fn get(&self, deadline: Deadline) -> Option<RunStart> {
        let at = deadline.arrival() + self.waited()?;
        let limit = Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit > 0);
        let limit = limit.and_then(|limit| at.checked_add(Duration::from_nanos(limit)));
        let until = limit.map_or(deadline.reply_by(), |limit| limit.min(deadline.reply_by()));
        Some(RunStart { worker: self.worker(), at, until })
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
        assert_eq!((mark.get(deadline), mark.waited(), mark.worker()), (None, None, 0));
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
            mark.set(7, waited, limit);
            let until = until.map_or(deadline.reply_by(), |until| arrival + until);
            let start = RunStart { worker: 7, at: arrival + waited, until };
            assert_eq!((mark.get(deadline), mark.waited()), (Some(start), Some(waited)), "{limit:?}");
        }
    }
}
