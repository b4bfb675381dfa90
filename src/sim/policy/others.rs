use std::{collections::VecDeque, time::Duration};

use super::{Decision, Policy};
use crate::sim::load::Arrival;

const QUEUE: usize = 1024;

/// A job in a queue: its number, when it came, and when its caller stops to wait.
#[derive(Debug, Clone, Copy)]
struct Queued {
    job: usize,
    since: Duration,
    deadline: Duration,
}

/// First in, first out.
pub(super) struct Fifo {
    idle: usize,
    queue: VecDeque<Queued>,
    /// Whether a job that has expired is given up instead of started.
    expires: bool,
}

impl Fifo {
    pub(super) fn new(workers: usize, expires: bool) -> Self {
        Self { idle: workers, queue: VecDeque::new(), expires }
    }
}

impl Policy for Fifo {
    fn offer(&mut self, now: Duration, job: usize, arrival: &Arrival) -> Vec<Decision> {
        if self.idle > 0 {
            self.idle -= 1;
            return vec![Decision::Start { job }];
        }
        if self.queue.len() >= QUEUE {
            return vec![Decision::Refuse { job, retry_after: None }];
        }
        self.queue.push_back(Queued { job, since: now, deadline: now + arrival.deadline });
        vec![Decision::Queue { job }]
    }

    fn end(&mut self, now: Duration, _: usize, _: bool, _: Duration) -> Vec<Decision> {
        let mut decisions = Vec::new();
        while let Some(next) = self.queue.pop_front() {
            if !self.expires || now < next.deadline {
                decisions.push(Decision::Start { job: next.job });
                return decisions;
            }
            decisions.push(Decision::Drop { job: next.job });
        }
        self.idle += 1;
        decisions
    }

    fn stops_at_deadline(&self) -> bool {
        self.expires
    }

    fn expire(&mut self, _: Duration, _: usize) -> Vec<Decision> {
        // It finds out when its turn comes.
        Vec::new()
    }
}

/// Controlled delay with adaptive LIFO, as Facebook describes it ("Fail at Scale", 2015): while the queue has not been
/// empty for 100 ms, jobs may be queued for 5 ms only, and the newest goes first.
pub(super) struct CodelLifo {
    idle: usize,
    queue: VecDeque<Queued>,
    last_empty: Duration,
}

const INTERVAL: Duration = Duration::from_millis(100);
const TARGET: Duration = Duration::from_millis(5);

impl CodelLifo {
    pub(super) fn new(workers: usize) -> Self {
        Self { idle: workers, queue: VecDeque::new(), last_empty: Duration::ZERO }
    }
}

impl Policy for CodelLifo {
    fn offer(&mut self, now: Duration, job: usize, arrival: &Arrival) -> Vec<Decision> {
        if self.idle > 0 {
            self.idle -= 1;
            return vec![Decision::Start { job }];
        }
        if self.queue.is_empty() {
            self.last_empty = now;
        }
        if self.queue.len() >= QUEUE {
            return vec![Decision::Refuse { job, retry_after: None }];
        }
        self.queue.push_back(Queued { job, since: now, deadline: now + arrival.deadline });
        vec![Decision::Queue { job }]
    }

    fn end(&mut self, now: Duration, _: usize, _: bool, _: Duration) -> Vec<Decision> {
        let mut decisions = Vec::new();
        let overloaded = now.saturating_sub(self.last_empty) > INTERVAL;
        let longest = if overloaded { TARGET } else { INTERVAL };
        while let Some(next) = if overloaded { self.queue.pop_back() } else { self.queue.pop_front() } {
            if now < next.deadline && (overloaded || now - next.since <= longest) {
                decisions.push(Decision::Start { job: next.job });
                break;
            }
            decisions.push(Decision::Drop { job: next.job });
        }
        // What waited too long at the front is given up.
        while let Some(oldest) = self.queue.front().filter(|oldest| now - oldest.since > longest).copied() {
            self.queue.pop_front();
            decisions.push(Decision::Drop { job: oldest.job });
        }
        if !decisions.iter().any(|decision| matches!(decision, Decision::Start { .. })) {
            self.idle += 1;
        }
        if self.queue.is_empty() {
            self.last_empty = now;
        }
        decisions
    }

    fn expire(&mut self, _: Duration, _: usize) -> Vec<Decision> {
        Vec::new()
    }
}

/// Accepts where the expected wait, from the mean service time, is at most half of the budget; without a margin.
pub(super) struct HalfBudget {
    workers: usize,
    queue: Fifo,
    /// Mean service time in seconds.
    mean: f64,
}

impl HalfBudget {
    pub(super) fn new(workers: usize) -> Self {
        Self { workers, queue: Fifo::new(workers, true), mean: 0.05 }
    }
}

impl Policy for HalfBudget {
    fn offer(&mut self, now: Duration, job: usize, arrival: &Arrival) -> Vec<Decision> {
        let wait = self.queue.queue.len() as f64 * self.mean / self.workers as f64;
        if self.queue.idle == 0 && wait > arrival.deadline.as_secs_f64() / 2.0 {
            return vec![Decision::Refuse { job, retry_after: None }];
        }
        self.queue.offer(now, job, arrival)
    }

    fn end(&mut self, now: Duration, job: usize, in_time: bool, ran: Duration) -> Vec<Decision> {
        self.mean += 0.05 * (ran.as_secs_f64() - self.mean);
        self.queue.end(now, job, in_time, ran)
    }

    fn expire(&mut self, now: Duration, job: usize) -> Vec<Decision> {
        self.queue.expire(now, job)
    }
}
