//! The interface of simulated policies.

mod others;
mod ours;

use std::time::Duration;

use super::load::{Arrival, Load};

/// A way to choose what to accept, and what to start next.
pub(super) trait Policy {
    /// Job `job` asks for room, not always for the first time; its deadline is what is left of it. Returns what was decided
    /// about this job and about others.
    fn offer(&mut self, now: Duration, job: usize, arrival: &Arrival) -> Vec<Decision>;
    /// A running job ended, in time or stopped at its deadline. Its worker is free.
    fn end(&mut self, now: Duration, job: usize, in_time: bool, ran: Duration) -> Vec<Decision>;
    /// A running job that does not stop has reached its deadline: its worker is lost for now.
    fn hold(&mut self, job: usize, ran: Duration);
    /// A worker that was lost is back.
    fn give_back(&mut self, now: Duration, job: usize) -> Vec<Decision>;
    /// Whether a running job is stopped at its deadline.
    fn stops_at_deadline(&self) -> bool {
        true
    }
    /// The time of a queued job is over.
    fn expire(&mut self, now: Duration, job: usize) -> Vec<Decision>;
}

/// What became of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is refused, and may come back after a while.
    Refuse {
        job: usize,
        retry_after: Option<Duration>,
    },
    Queue {
        job: usize,
    },
    /// It starts on a worker.
    Start {
        job: usize,
    },
    /// It was queued, and is given up.
    Drop {
        job: usize,
    },
}

/// The policies that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PolicyName {
    /// The machine of the pool.
    Ours,
    /// A queue of bounded length, and workers that know of no deadline: what most people write.
    BoundedFifo,
    /// The same, without the jobs that have expired when their turn comes.
    FifoWithExpiry,
    /// Controlled delay, and last in first out while the queue does not empty.
    CodelLifo,
    /// Accepts where the expected wait is at most half of the budget, without a margin that learns.
    HalfBudget,
}

impl PolicyName {
    pub(crate) const ALL: [Self; 5] =
        [Self::Ours, Self::HalfBudget, Self::CodelLifo, Self::FifoWithExpiry, Self::BoundedFifo];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::HalfBudget => "half-budget",
            Self::CodelLifo => "codel-lifo",
            Self::FifoWithExpiry => "fifo-expiry",
            Self::BoundedFifo => "fifo",
        }
    }

    pub(super) fn make(self, load: &Load) -> Box<dyn Policy> {
        let Load { workers, queue, .. } = *load;
        match self {
            Self::Ours => Box::new(ours::Ours::new(workers, queue, load.kind_count())),
            Self::HalfBudget => Box::new(others::HalfBudget::new(workers, queue)),
            Self::BoundedFifo => Box::new(others::Fifo::new(workers, queue, others::Expired::Run)),
            Self::FifoWithExpiry => Box::new(others::Fifo::new(workers, queue, others::Expired::Dropped)),
            Self::CodelLifo => Box::new(others::CodelLifo::new(workers, queue)),
        }
    }
}
