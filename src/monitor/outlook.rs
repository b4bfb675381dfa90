//! When a drain will end: from the jobs that are left, and the usual run times of their kinds.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use crate::pool::Distribution;

/// What is expected of the jobs that are left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outlook {
    /// Time until the last of them ends.
    pub expected: Duration,
    /// Number of jobs that will probably run longer than allowed.
    pub late: u64,
}

/// A job that is left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left {
    /// Usual run time of its kind; `None` if unknown.
    pub(super) usual: Option<Distribution>,
    /// Time that it has run.
    pub(super) ran: Duration,
    /// Time until its deadline, which ends it.
    pub(super) deadline: Duration,
}

impl Left {
    /// Time that it still needs a worker.
    fn rest(&self) -> Duration {
        let Some(usual) = self.usual else { return Duration::ZERO };
        let known = [usual.p50, usual.p90].into_iter().find(|usual| *usual > self.ran);
        // Beyond that, a job is expected to run as long again.
        known.map_or(self.ran, |usual| usual - self.ran)
    }
}

/// The outlook of a pool with `workers`, whose `queued` jobs start in turn. Jobs may run for `allowed`.
pub(super) fn outlook(workers: usize, running: &[Left], queued: &[Left], allowed: Duration) -> Outlook {
    let idle = workers.saturating_sub(running.len());
    let mut free: BinaryHeap<_> = std::iter::repeat_n(Reverse(Duration::ZERO), idle).collect();
    let mut outlook = Outlook::default();
    let mut end = |begin: Duration, job: &Left| {
        let end = (begin + job.rest()).min(job.deadline);
        outlook.expected = outlook.expected.max(end);
        outlook.late += u64::from(end > allowed);
        Reverse(end)
    };
    free.extend(running.iter().map(|job| end(Duration::ZERO, job)));
    for job in queued {
        let Reverse(begin) = free.pop().unwrap_or_default();
        let end = end(begin, job);
        free.push(end);
    }
    outlook
}
