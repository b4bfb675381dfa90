//! Runs a load against a policy on virtual time.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use super::{
    load::{ATTEMPTS, Arrival, Load, Retry, own_pause},
    policy::{Decision, Plan, Policy, PoolPolicy},
    tally::{Outcome, Tally},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// gRPC's retry throttling, with the values of `deploy/service-config.json`: a refusal takes a token, and an answer
/// returns a tenth of one. A client with at most half of its tokens does not retry.
const MAX_TOKENS: f64 = 100.0;
const TOKENS_BACK: f64 = 0.1;

/// Runs `load` against the scheduler of a pool, until the last job has ended.
pub(crate) fn run(load: &Load) -> Outcome {
    run_under(&Plan::plain(load.workers, load.queue, load.kind_count()), load)
}

/// Runs `load` against the scheduler of a pool with these settings.
pub(super) fn run_under(plan: &Plan, load: &Load) -> Outcome {
    run_with(Box::new(PoolPolicy::new(plan)), load)
}

/// Runs `load` against any policy.
pub(super) fn run_with(policy: Box<dyn Policy>, load: &Load) -> Outcome {
    let mut world = World {
        policy,
        load,
        jobs: Vec::new(),
        events: BinaryHeap::new(),
        sequence: 0,
        to_hold: 0,
        dice: StdRng::seed_from_u64(load.seed ^ 0x5EED),
        tokens: vec![MAX_TOKENS; load.tenant_count()],
        tally: Tally::new(load.tenant_count(), load.kind_count()),
    };
    if let Some(lost) = load.lost {
        world.at(lost.from, Event::Hold);
    }
    let mut arrivals = load.arrivals().peekable();
    loop {
        let event = world.events.peek().map(|Reverse((at, ..))| *at);
        let arrives = arrivals.peek().map(|arrival| arrival.at);
        // Every job that is left has an event.
        let Some(next) = arrives.into_iter().chain(event).min() else { break };
        if let Some(at) = world.policy.wakes_at().filter(|at| *at < next) {
            let decisions = world.policy.wake(at);
            world.carry_out(at, &decisions);
        } else if arrives == Some(next) {
            let arrival = arrivals.next().expect("it was peeked");
            world.arrive(arrival);
        } else {
            world.step();
        }
    }
    world.tally.outcome(load)
}

struct World<'a> {
    policy: Box<dyn Policy>,
    load: &'a Load,
    jobs: Vec<Job>,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    sequence: u64,
    /// Number of the next started jobs that will not give their worker back.
    to_hold: usize,
    dice: StdRng,
    /// Retry tokens of each tenant's client.
    tokens: Vec<f64>,
    tally: Tally,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End(usize),
    Expire(usize),
    /// The caller retries.
    Return(usize),
    /// From here on, a number of jobs do not stop, and keep their workers.
    Hold,
    /// A job that does not stop has reached its deadline.
    Overrun(usize),
    /// A job that did not stop ends.
    GiveBack(usize),
}

struct Job {
    arrival: Arrival,
    attempts: u32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Arrived,
    Queued,
    /// The job has run since this time.
    Running(Duration),
    /// The job has run since this time, and does not stop.
    Held(Duration),
    Over,
}

impl World<'_> {
    fn arrive(&mut self, arrival: Arrival) {
        let job = self.jobs.len();
        self.tally.arrive(self.load, &arrival);
        self.jobs.push(Job { arrival, attempts: 0, state: State::Arrived });
        self.offer(arrival.at, job);
    }

    fn offer(&mut self, now: Duration, index: usize) {
        self.tally.attempts += self.weight(index);
        let job = &mut self.jobs[index];
        job.attempts += 1;
        let left = job.arrival.finish_by() - now;
        let offered = Arrival { at: now, deadline: left, ..job.arrival };
        let decisions = self.policy.offer(now, index, &offered);
        self.carry_out(now, &decisions);
    }

    fn step(&mut self) {
        let Some(Reverse((now, _, event))) = self.events.pop() else { return };
        let decisions = match event {
            Event::Expire(job) if self.jobs[job].state == State::Queued => self.policy.expire(now, job),
            Event::Expire(_) => return,
            Event::Return(job) => return self.offer(now, job),
            Event::End(job) => self.end(now, job),
            Event::Overrun(job) => return self.overrun(now, job),
            Event::Hold => return self.hold(),
            Event::GiveBack(job) => {
                self.jobs[job].state = State::Over;
                self.policy.give_back(now, job)
            }
        };
        self.carry_out(now, &decisions);
    }

    fn end(&mut self, now: Duration, index: usize) -> Vec<Decision> {
        let State::Running(since) = self.jobs[index].state else { return Vec::new() };
        let arrival = self.jobs[index].arrival;
        let ran = now - since;
        self.jobs[index].state = State::Over;
        // A policy without deadlines also has no run timeouts.
        let cut = arrival.outruns_its_limit() && self.policy.stops_at_deadline();
        let in_time = now < arrival.finish_by() && !cut;
        if in_time {
            self.tally.serve(self.load, &arrival, since, now);
            let tokens = &mut self.tokens[arrival.tenant];
            *tokens = (*tokens + TOKENS_BACK).min(MAX_TOKENS);
        } else {
            self.tally.waste(self.load, since, now);
            self.tally.miss(self.load, &arrival);
        }
        self.policy.end(now, index, in_time, ran)
    }

    /// The caller is answered, and the worker stays occupied.
    fn overrun(&mut self, now: Duration, index: usize) {
        let State::Held(since) = self.jobs[index].state else { return };
        self.tally.miss(self.load, &self.jobs[index].arrival);
        self.policy.hold(index, now - since);
    }

    /// Makes running jobs ignore their stop; if there are too few, also the next jobs that start.
    fn hold(&mut self) {
        self.to_hold = self.load.lost.map_or(0, |lost| lost.what);
        for index in 0..self.jobs.len() {
            self.hold_if_wanted(index);
        }
    }

    fn hold_if_wanted(&mut self, index: usize) {
        let Some(lost) = self.load.lost.filter(|_| self.to_hold > 0) else { return };
        let State::Running(since) = self.jobs[index].state else { return };
        let deadline = self.jobs[index].arrival.finish_by();
        self.to_hold -= 1;
        self.jobs[index].state = State::Held(since);
        self.at(deadline.max(since), Event::Overrun(index));
        self.at(deadline.max(lost.until), Event::GiveBack(index));
    }

    fn carry_out(&mut self, now: Duration, decisions: &[Decision]) {
        for decision in decisions {
            match *decision {
                Decision::Refuse { job, retry_after } => self.refuse(now, job, retry_after),
                Decision::Queue(job) => {
                    self.tally.admitted += self.weight(job);
                    self.jobs[job].state = State::Queued;
                    self.at(self.jobs[job].arrival.finish_by(), Event::Expire(job));
                }
                Decision::Start(job) => self.start(now, job),
                Decision::Drop(job) => {
                    self.tally.miss(self.load, &self.jobs[job].arrival);
                    self.jobs[job].state = State::Over;
                }
            }
        }
    }

    /// What a job adds to a count of the tally: 1 if it arrived during the main load, else 0.
    fn weight(&self, index: usize) -> u64 {
        u64::from(self.jobs[index].arrival.at < self.load.lasts)
    }

    fn start(&mut self, now: Duration, index: usize) {
        if self.jobs[index].state == State::Arrived {
            self.tally.admitted += self.weight(index);
        }
        self.jobs[index].state = State::Running(now);
        if self.load.lost.is_some_and(|lost| lost.holds(now)) && self.to_hold > 0 {
            return self.hold_if_wanted(index);
        }
        let arrival = self.jobs[index].arrival;
        let deadline = arrival.finish_by();
        let end = if self.policy.stops_at_deadline() {
            let run = arrival.run_timeout.map_or(arrival.service, |limit| arrival.service.min(limit));
            deadline.min(now + run)
        } else {
            now + arrival.service
        };
        self.at(end, Event::End(index));
    }

    fn refuse(&mut self, now: Duration, index: usize, retry_after: Option<Duration>) {
        self.tally.refused += self.weight(index);
        let Job { arrival, attempts, .. } = self.jobs[index];
        let tokens = &mut self.tokens[arrival.tenant];
        *tokens = (*tokens - 1.0).max(0.0);
        let pause = match (self.load.retry, retry_after) {
            (Retry::Never, _) => None,
            (Retry::Grpc, _) if *tokens <= MAX_TOKENS / 2.0 => None,
            // The server spreads retry times in the same way.
            (Retry::Obey | Retry::Grpc, Some(retry_after)) => {
                Some(retry_after.mul_f64(self.dice.random_range(0.5..1.5)))
            }
            (Retry::Obey | Retry::Grpc, None) | (Retry::Ignore, _) => Some(own_pause(attempts, &mut self.dice)),
        };
        let again = pause.map(|pause| now + pause).filter(|at| *at < arrival.finish_by());
        match again.filter(|_| attempts < ATTEMPTS) {
            Some(at) => self.at(at, Event::Return(index)),
            None => {
                self.tally.kinds[arrival.kind].refused += self.weight(index);
                self.jobs[index].state = State::Over;
            }
        }
    }

    fn at(&mut self, at: Duration, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }
}
