//! Policies that others use, for comparison.

use std::{collections::VecDeque, time::Duration};

use crate::sim::{
    load::Arrival,
    policy::{Decision, Policy},
};

/// A job in a queue: its number, and until when it may wait there.
#[derive(Debug, Clone, Copy)]
struct Queued {
    job: usize,
    until: Duration,
}

/// What happens to a queued job that has expired when a worker is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expired {
    /// It runs to its end: queue and workers ignore deadlines.
    Run,
    /// It is dropped, and a running job is stopped at its deadline.
    Dropped,
}

/// First in, first out.
pub(super) struct Fifo {
    idle: usize,
    queue: VecDeque<Queued>,
    room: usize,
    expired: Expired,
}

impl Fifo {
    pub(super) fn new(workers: usize, room: usize, expired: Expired) -> Self {
        Self { idle: workers, queue: VecDeque::new(), room, expired }
    }

    /// A worker is free.
    fn start_next(&mut self, now: Duration) -> Vec<Decision> {
        let mut decisions = Vec::new();
        while let Some(next) = self.queue.pop_front() {
            if self.expired == Expired::Run || now < next.until {
                decisions.push(Decision::Start(next.job));
                return decisions;
            }
            decisions.push(Decision::Drop(next.job));
        }
        self.idle += 1;
        decisions
    }
}

impl Policy for Fifo {
    fn offer(&mut self, now: Duration, job: usize, arrival: &Arrival) -> Vec<Decision> {
        if self.idle > 0 {
            self.idle -= 1;
            return vec![Decision::Start(job)];
        }
        if self.queue.len() >= self.room {
            return vec![Decision::Refuse { job, retry_after: None }];
        }
        self.queue.push_back(Queued { job, until: now + arrival.deadline });
        vec![Decision::Queue(job)]
    }

    fn end(&mut self, now: Duration, _: usize, _: bool, _: Duration) -> Vec<Decision> {
        self.start_next(now)
    }

    fn hold(&mut self, _: usize, _: Duration) {}

    fn give_back(&mut self, now: Duration, _: usize) -> Vec<Decision> {
        self.start_next(now)
    }

    fn stops_at_deadline(&self) -> bool {
        self.expired == Expired::Dropped
    }

    fn expire(&mut self, _: Duration, _: usize) -> Vec<Decision> {
        // It is noticed when its turn comes.
        Vec::new()
    }
}

/// Controlled delay with adaptive LIFO, as Facebook describes it (Maurer, "Fail at Scale", 2015): a job that arrives
/// while the queue has not been empty for 100 ms may wait for 5 ms, any other for 100 ms. While the queue has not been
/// empty for that long, the newest job goes first.
pub(super) struct CodelLifo {
    idle: usize,
    queue: VecDeque<Queued>,
    room: usize,
    last_empty: Duration,
}

const INTERVAL: Duration = Duration::from_millis(100);
const TARGET: Duration = Duration::from_millis(5);

impl CodelLifo {
    pub(super) fn new(workers: usize, room: usize) -> Self {
        Self { idle: workers, queue: VecDeque::new(), room, last_empty: Duration::ZERO }
    }

    fn is_overloaded(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_empty) > INTERVAL
    }

    /// A worker is free.
    fn start_next(&mut self, now: Duration) -> Vec<Decision> {
        let newest_first = self.is_overloaded(now);
        let mut decisions = Vec::new();
        self.queue.retain(|queued| {
            let stays = now < queued.until;
            if !stays {
                decisions.push(Decision::Drop(queued.job));
            }
            stays
        });
        match if newest_first { self.queue.pop_back() } else { self.queue.pop_front() } {
            Some(next) => decisions.push(Decision::Start(next.job)),
            None => self.idle += 1,
        }
        if self.queue.is_empty() {
            self.last_empty = now;
        }
        decisions
    }
}

impl Policy for CodelLifo {
    fn offer(&mut self, now: Duration, job: usize, arrival: &Arrival) -> Vec<Decision> {
        if self.queue.is_empty() {
            self.last_empty = now;
        }
        if self.idle > 0 {
            self.idle -= 1;
            return vec![Decision::Start(job)];
        }
        if self.queue.len() >= self.room {
            return vec![Decision::Refuse { job, retry_after: None }];
        }
        let patience = if self.is_overloaded(now) { TARGET } else { INTERVAL };
        self.queue.push_back(Queued { job, until: now + patience.min(arrival.deadline) });
        vec![Decision::Queue(job)]
    }

    fn end(&mut self, now: Duration, _: usize, _: bool, _: Duration) -> Vec<Decision> {
        self.start_next(now)
    }

    fn hold(&mut self, _: usize, _: Duration) {}

    fn give_back(&mut self, now: Duration, _: usize) -> Vec<Decision> {
        self.start_next(now)
    }

    fn expire(&mut self, _: Duration, _: usize) -> Vec<Decision> {
        Vec::new()
    }
}

/// Accepts a job if its expected wait, by the mean service time, is at most half of its budget.
pub(super) struct HalfBudget {
    workers: usize,
    queue: Fifo,
    /// Mean service time in seconds.
    mean: f64,
}

impl HalfBudget {
    pub(super) fn new(workers: usize, room: usize) -> Self {
        Self { workers, queue: Fifo::new(workers, room, Expired::Dropped), mean: 0.05 }
    }
}

impl Policy for HalfBudget {
    fn offer(&mut self, now: Duration, job: usize, arrival: &Arrival) -> Vec<Decision> {
        let wait = self.queue.queue.len() as f64 * self.mean / self.workers.max(1) as f64;
        if self.queue.idle == 0 && wait > arrival.deadline.as_secs_f64() / 2.0 {
            let left = Duration::from_secs_f64(wait - arrival.deadline.as_secs_f64() / 2.0);
            return vec![Decision::Refuse { job, retry_after: Some(left) }];
        }
        self.queue.offer(now, job, arrival)
    }

    fn end(&mut self, now: Duration, job: usize, in_time: bool, ran: Duration) -> Vec<Decision> {
        self.mean += 0.05 * (ran.as_secs_f64() - self.mean);
        self.queue.end(now, job, in_time, ran)
    }

    fn hold(&mut self, _: usize, _: Duration) {
        self.workers -= 1;
    }

    fn give_back(&mut self, now: Duration, job: usize) -> Vec<Decision> {
        self.workers += 1;
        self.queue.give_back(now, job)
    }

    fn expire(&mut self, now: Duration, job: usize) -> Vec<Decision> {
        self.queue.expire(now, job)
    }
}
