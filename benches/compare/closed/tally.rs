//! The counts of one client thread.

use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hdrhistogram::Histogram;

/// Shortest distinguishable latency, in nanoseconds.
const SHORTEST: u64 = 1_000;
/// Longest distinguishable latency, in nanoseconds: ten minutes.
const LONGEST: u64 = 600_000_000_000;
/// Significant decimal digits of a latency.
const DIGITS: u8 = 3;

/// Why a call failed: the server's `ErrorInfo.reason`, else the status code, else the error of the connection.
pub(super) type Reason = Cow<'static, str>;

/// Replies, latencies and errors of one client thread, while the load is measured.
#[derive(Debug)]
pub(super) struct Tally {
    replies: Arc<AtomicU64>,
    unanswered: Cell<u64>,
    latencies: RefCell<Histogram<u64>>,
    errors: RefCell<BTreeMap<Reason, u64>>,
}

/// Counts of all client threads.
#[derive(Debug, Clone)]
pub(super) struct Totals {
    /// Latencies of the calls that completed, in nanoseconds.
    pub(super) latencies: Histogram<u64>,
    /// Number of failed calls, by reason.
    pub(super) errors: BTreeMap<Reason, u64>,
    /// Number of calls that never got an answer.
    pub(super) unanswered: u64,
}

impl Tally {
    /// An empty tally. Every reply is also counted in `replies`, measured or not.
    pub(super) fn new(replies: Arc<AtomicU64>) -> Self {
        Self {
            replies,
            unanswered: Cell::new(0),
            latencies: RefCell::new(empty_histogram()),
            errors: RefCell::default(),
        }
    }

    /// Counts one reply. Its latency or error is counted only if it is `measured`.
    pub(super) fn count(&self, measured: Measured, latency: Duration, ended: Result<(), Reason>) {
        self.replies.fetch_add(1, Ordering::Relaxed);
        if measured == Measured::No {
            return;
        }
        match ended {
            Ok(()) => {
                let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
                self.latencies.borrow_mut().saturating_record(nanos);
            }
            Err(reason) => *self.errors.borrow_mut().entry(reason).or_default() += 1,
        }
    }

    /// Counts `calls` as never answered.
    pub(super) fn give_up(&self, calls: u64) {
        self.unanswered.set(self.unanswered.get() + calls);
    }

    /// The totals.
    pub(super) fn into_totals(self) -> Totals {
        Totals {
            latencies: self.latencies.into_inner(),
            errors: self.errors.into_inner(),
            unanswered: self.unanswered.get(),
        }
    }
}

/// Whether a reply belongs to the measured window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measured {
    /// It belongs to the window.
    Yes,
    /// It arrived during the warm-up or the wind-down.
    No,
}

impl Totals {
    /// The sum of `parts`.
    pub(super) fn sum(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut sum = Self { latencies: empty_histogram(), errors: BTreeMap::new(), unanswered: 0 };
        for part in parts {
            sum.latencies += part.latencies;
            for (reason, count) in part.errors {
                *sum.errors.entry(reason).or_default() += count;
            }
            sum.unanswered += part.unanswered;
        }
        sum
    }

    /// Number of calls that failed.
    pub(super) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }
}

fn empty_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(SHORTEST, LONGEST, DIGITS).expect("the bounds are ordered and the digits at most five")
}
