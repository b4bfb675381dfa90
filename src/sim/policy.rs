use std::time::Duration;

use super::load::Arrival;

/// A way to choose what to accept, and what to start next. Tests compare that of the pool with others.
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
