use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use super::{
    load::{Arrival, Load},
    policy::{Decision, Policy, PolicyName},
    tally::{Outcome, Tally},
};

/// Runs `load` against a policy, until the last job has ended.
pub(crate) fn run(policy: PolicyName, load: &Load) -> Outcome {
    let mut world = World {
        policy: policy.make(load.workers),
        jobs: Vec::new(),
        events: BinaryHeap::new(),
        sequence: 0,
        last: Duration::ZERO,
        tally: Tally::new(load.tenants.len()),
    };
    let mut arrivals = load.arrivals().peekable();
    loop {
        let next = world.events.peek().map(|Reverse((at, ..))| *at);
        match (arrivals.peek(), next) {
            (Some(arrival), at) if at.is_none_or(|at| arrival.at <= at) => {
                let arrival = *arrival;
                arrivals.next();
                world.arrive(arrival);
            }
            (_, Some(_)) => world.step(),
            (_, None) => break,
        }
    }
    let time = load.end().max(world.last);
    world.tally.outcome(time * u32::try_from(load.workers).unwrap_or(u32::MAX))
}

struct World {
    policy: Box<dyn Policy>,
    jobs: Vec<Job>,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    sequence: u64,
    /// When the last job ended.
    last: Duration,
    tally: Tally,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End(usize),
    Expire(usize),
}

struct Job {
    arrival: Arrival,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Arrived,
    Queued,
    Running { since: Duration },
    Over,
}

impl World {
    fn arrive(&mut self, arrival: Arrival) {
        let job = self.jobs.len();
        self.tally.arrive(arrival.at, arrival.service, arrival.tenant, arrival.class);
        self.jobs.push(Job { arrival, state: State::Arrived });
        let decisions = self.policy.offer(arrival.at, job, &arrival);
        self.carry_out(arrival.at, &decisions);
    }

    fn step(&mut self) {
        let Some(Reverse((now, _, event))) = self.events.pop() else { return };
        let decisions = match event {
            Event::Expire(job) if self.jobs[job].state == State::Queued => self.policy.expire(now, job),
            Event::Expire(_) => return,
            Event::End(job) => self.end(now, job),
        };
        self.carry_out(now, &decisions);
    }

    fn end(&mut self, now: Duration, index: usize) -> Vec<Decision> {
        let job = &mut self.jobs[index];
        let State::Running { since } = job.state else { return Vec::new() };
        job.state = State::Over;
        self.last = now;
        let arrival = job.arrival;
        let ran = now - since;
        let in_time = now < arrival.at + arrival.deadline;
        if in_time {
            self.tally.useful += ran;
            self.tally.serve(arrival.at, since - arrival.at, arrival.tenant, arrival.class);
        } else {
            self.tally.wasted += ran;
            self.tally.missed += 1;
        }
        self.policy.end(now, index, in_time, ran)
    }

    fn carry_out(&mut self, now: Duration, decisions: &[Decision]) {
        for decision in decisions {
            match *decision {
                Decision::Refuse { job, .. } => self.jobs[job].state = State::Over,
                Decision::Queue { job } => {
                    self.tally.admitted += 1;
                    self.jobs[job].state = State::Queued;
                    let arrival = self.jobs[job].arrival;
                    self.at(arrival.at + arrival.deadline, Event::Expire(job));
                }
                Decision::Start { job } => {
                    let arrival = self.jobs[job].arrival;
                    if self.jobs[job].state == State::Arrived {
                        self.tally.admitted += 1;
                    }
                    self.jobs[job].state = State::Running { since: now };
                    let deadline = arrival.at + arrival.deadline;
                    let end = now + arrival.service;
                    let stops = self.policy.stops_at_deadline();
                    self.at(if stops { end.min(deadline) } else { end }, Event::End(job));
                }
                Decision::Drop { job } => {
                    self.tally.missed += 1;
                    self.jobs[job].state = State::Over;
                }
            }
        }
    }

    fn at(&mut self, at: Duration, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }
}
