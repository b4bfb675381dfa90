//! A worker that runs many jobs together, under the scheduler of a pool that knows nothing of it.
//!
//! *n* jobs take `fixed + each * n`. The worker has so many places, and begins its next batch by a rule.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use crate::sim::{
    Load, Pattern, Service, Source,
    load::Arrival,
    policy::{Decision, Plan, Policy, PoolPolicy},
};

/// When an idle worker that has jobs begins a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rule {
    /// At once.
    Now,
    /// At once; but if the worker held a full batch when one ended, and never more, once the next one is full, or after
    /// this part of that batch's time.
    Refill(f64),
    /// Once the batch is full, or its first job has waited so long.
    Delay(Duration),
}

/// What the packages for workers do.
const REFILL: Rule = Rule::Refill(0.05);

#[derive(Debug, Clone, Copy)]
struct Worker {
    fixed: Duration,
    each: Duration,
    largest: usize,
    places: usize,
    rule: Rule,
}

impl Worker {
    fn time_of(&self, jobs: usize) -> Duration {
        self.fixed + self.each * u32::try_from(jobs).expect("a batch is small")
    }

    fn longest(&self) -> Duration {
        self.time_of(self.largest)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The batch has ended.
    Ended,
    /// The worker may begin.
    Begin,
    /// A deadline has passed.
    Expire(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Queued,
    /// The worker has had the job since this time.
    Taken(Duration),
    Over,
}

/// The pool does not know at first how long jobs take. What arrives then does not count.
const WARM_UP: Duration = Duration::from_secs(20);

/// What became of the jobs.
#[derive(Debug, Default, Clone, Copy)]
struct Figures {
    /// Jobs that were answered in time, as a share of those that were sent. If the worker can do less, of those that it
    /// can do.
    useful: f64,
    /// Jobs that were accepted but not answered in time, as a share of those that were accepted.
    missed: f64,
    /// Mean time from a call to its result.
    seconds: f64,
}

impl Arrival {
    fn counts(&self) -> u64 {
        u64::from(self.at >= WARM_UP)
    }
}

struct World {
    worker: Worker,
    policy: PoolPolicy,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    sequence: u64,
    jobs: Vec<(Arrival, State)>,
    /// Jobs at the worker that wait for a batch, in order, and when the first of them came.
    gathered: Vec<usize>,
    gathered_since: Duration,
    batch: Vec<usize>,
    began: Duration,
    /// Until when the worker waits for a full batch.
    refill_until: Duration,
    /// Most jobs that it held when a batch ended: the worker does not know its places.
    most_held: usize,
    accepted: u64,
    missed: u64,
    served: u64,
    latency: Duration,
}

/// Jobs at random instants, `times` as many as the worker can do, whose deadline is `batches` full batches away.
fn run(worker: Worker, times: f64, batches: f64, seed: u64) -> Figures {
    let full = worker.longest();
    let mean = full / u32::try_from(worker.largest).expect("a batch is small");
    let load = Load {
        workers: 1,
        source: Source::Drawn { pattern: Pattern::Poisson, mean, service: Service::Exponential },
        deadline: full.mul_f64(batches),
        ..Load::steady(times, 80, Service::Exponential, seed)
    };
    let mut world = World {
        worker,
        policy: PoolPolicy::new(&Plan::plain(worker.places, 4096, 1)),
        events: BinaryHeap::new(),
        sequence: 0,
        jobs: Vec::new(),
        gathered: Vec::new(),
        gathered_since: Duration::ZERO,
        batch: Vec::new(),
        began: Duration::ZERO,
        refill_until: Duration::ZERO,
        most_held: worker.largest,
        accepted: 0,
        missed: 0,
        served: 0,
        latency: Duration::ZERO,
    };
    for arrival in load.arrivals() {
        world.events_before(arrival.at);
        world.arrive(arrival);
    }
    world.events_before(Duration::MAX);
    let capacity = (load.lasts - WARM_UP).as_secs_f64() / mean.as_secs_f64();
    let sent = world.jobs.iter().filter(|job| job.0.at >= WARM_UP).count();
    Figures {
        useful: world.served as f64 / capacity.min(sent as f64),
        missed: world.missed as f64 / world.accepted as f64,
        seconds: world.latency.as_secs_f64() / world.served as f64,
    }
}

impl World {
    fn events_before(&mut self, end: Duration) {
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now >= end {
                return self.at(now, event);
            }
            match event {
                Event::Ended => self.batch_ended(now),
                Event::Begin => self.begin_if_due(now),
                Event::Expire(job) => self.expire(now, job),
            }
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        let job = self.jobs.len();
        self.jobs.push((arrival, State::Queued));
        self.accepted += arrival.counts();
        self.at(arrival.finish_by(), Event::Expire(job));
        let decisions = self.policy.offer(arrival.at, job, &arrival);
        self.carry_out(arrival.at, decisions);
    }

    fn carry_out(&mut self, now: Duration, decisions: Vec<Decision>) {
        for decision in decisions {
            match decision {
                Decision::Queue(_) => {}
                Decision::Refuse { job, .. } => {
                    self.accepted -= self.jobs[job].0.counts();
                    self.jobs[job].1 = State::Over;
                }
                Decision::Drop(job) => {
                    self.missed += self.jobs[job].0.counts();
                    self.jobs[job].1 = State::Over;
                }
                Decision::Start(job) => {
                    self.jobs[job].1 = State::Taken(now);
                    if self.gathered.is_empty() {
                        self.gathered_since = now;
                    }
                    self.gathered.push(job);
                    self.begin_if_due(now);
                }
            }
        }
    }

    fn begin_if_due(&mut self, now: Duration) {
        if !self.batch.is_empty() || self.gathered.is_empty() {
            return;
        }
        let (until, full) = match self.worker.rule {
            Rule::Now => (now, 0),
            Rule::Refill(_) => (self.refill_until, self.worker.largest),
            Rule::Delay(delay) => (self.gathered_since + delay, self.worker.largest),
        };
        if now < until && self.gathered.len() < full {
            return self.at(until, Event::Begin);
        }
        self.batch = self.gathered.drain(..self.gathered.len().min(self.worker.largest)).collect();
        self.gathered_since = now;
        self.began = now;
        self.at(now + self.worker.time_of(self.batch.len()), Event::Ended);
    }

    fn batch_ended(&mut self, now: Duration) {
        if let Rule::Refill(part) = self.worker.rule {
            let unanswered = self.batch.iter().filter(|job| self.jobs[**job].1 != State::Over).count();
            let held = unanswered + self.gathered.len();
            self.most_held = self.most_held.max(held);
            let was_full = held >= self.most_held;
            self.refill_until = if was_full { now + (now - self.began).mul_f64(part) } else { now };
        }
        for job in std::mem::take(&mut self.batch) {
            let (arrival, State::Taken(since)) = self.jobs[job] else { continue };
            self.jobs[job].1 = State::Over;
            self.served += arrival.counts();
            self.latency += (now - arrival.at) * u32::from(arrival.at >= WARM_UP);
            let decisions = self.policy.end(now, job, true, now - since);
            self.carry_out(now, decisions);
        }
        self.begin_if_due(now);
    }

    /// A member of the running batch is answered, and its result is dropped.
    fn expire(&mut self, now: Duration, job: usize) {
        let decisions = match self.jobs[job].1 {
            State::Over => return,
            State::Queued => self.policy.expire(now, job),
            State::Taken(since) => {
                self.missed += self.jobs[job].0.counts();
                self.jobs[job].1 = State::Over;
                self.gathered.retain(|other| *other != job);
                self.policy.end(now, job, false, now - since)
            }
        };
        self.carry_out(now, decisions);
    }

    fn at(&mut self, at: Duration, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }
}

/// Means over two seeds.
fn means(worker: Worker, times: f64, batches: f64) -> Figures {
    let runs = [1, 2].map(|seed| run(worker, times, batches, seed));
    let mean = |figure: fn(&Figures) -> f64| runs.iter().map(figure).sum::<f64>() / runs.len() as f64;
    Figures { useful: mean(|run| run.useful), missed: mean(|run| run.missed), seconds: mean(|run| run.seconds) }
}

/// The parts of a batch's time, in milliseconds: mostly fixed, mostly by jobs, and between.
const SHAPES: [(u64, u64); 3] = [(200, 20), (500, 5), (20, 20)];

fn worker((fixed, each): (u64, u64), rule: Rule) -> Worker {
    let (fixed, each) = (Duration::from_millis(fixed), Duration::from_millis(each));
    Worker { fixed, each, largest: 16, places: 16, rule }
}

#[test]
fn a_worker_that_refills_runs_full_batches_at_any_load() {
    for shape in SHAPES {
        for times in [0.5, 0.9, 2.0, 10.0] {
            let found = means(worker(shape, REFILL), times, 5.0);
            let twice = means(Worker { places: 32, ..worker(shape, REFILL) }, times, 10.0);
            for found in [found, twice] {
                assert!(found.useful > 0.98 && found.missed < 0.005, "{shape:?} at {times}: {found:?}");
            }
        }
    }
    // Sixteen jobs run while sixteen gather, of which few are there at an end: half batches.
    let found = means(worker(SHAPES[0], Rule::Now), 2.0, 5.0);
    assert!(found.useful < 0.8, "{found:?}");
}

/// A fixed delay, from a fiftieth of a full batch to half of it, with the same number of places.
#[test]
fn a_wait_for_company_wins_nothing() {
    for (shape, places) in SHAPES.into_iter().flat_map(|shape| [16, 32].map(|places| (shape, places))) {
        for times in [0.3, 0.5, 0.9] {
            let refill = Worker { places, ..worker(shape, REFILL) };
            let ours = means(refill, times, 5.0);
            let delays = [0.02, 0.1, 0.5].map(|part| Rule::Delay(refill.longest().mul_f64(part)));
            let others = delays.map(|rule| means(Worker { rule, ..refill }, times, 5.0));
            let others = others.into_iter().filter(|other| other.useful > ours.useful - 0.01);
            let best = others.map(|other| other.seconds).fold(f64::INFINITY, f64::min);
            // A twentieth of a batch that waited in vain is the most that it costs.
            assert!(best > 0.9 * ours.seconds, "{shape:?} at {times}, {places}: {best:.3} s instead of {ours:?}");
        }
    }
}
