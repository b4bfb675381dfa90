//! Flows of jobs with ordering keys, limits and callers that wait, at random times: the cases for which a rule is there.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use super::{
    super::{Arrival, Caps, Core, Effect, Grant, JobKey, Verdict, Withdrawal, Withdrawn},
    Numbers,
};
use crate::model::{Criticality, KindLimits, Outcome, WhenFull};

/// Jobs that are alike.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    pub(super) tenant: &'static str,
    pub(super) kind: usize,
    pub(super) class: Criticality,
    pub(super) arrives: Arrives,
    /// Mean of their exponential runs, in seconds.
    pub(super) mean: f64,
    /// Seconds until they must have ended; each job draws from half to one and a half of it where `spread` is set.
    pub(super) deadline: f64,
    pub(super) spread: bool,
    /// Each draws one of so many ordering keys, and limit keys; 0 is none.
    pub(super) keys: u32,
    pub(super) limit_keys: u32,
    /// Each draws one of so many tenants of that name; 0 is the one.
    pub(super) tenants: u32,
    pub(super) when_full: WhenFull,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Arrives {
    /// So many in a second, at random times.
    Open(f64),
    /// So many callers send the next job when they have the answer to the last one.
    Closed(u32),
}

/// A pool and what is sent to it.
pub(super) struct Case<'a> {
    pub(super) workers: usize,
    pub(super) places: usize,
    pub(super) limits: &'a [KindLimits],
    pub(super) flows: &'a [Flow],
    pub(super) seconds: u64,
    /// Whether queued jobs are asked for the wait that they expect.
    pub(super) explains: bool,
}

/// What became of the jobs of a flow.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    pub(super) came: f64,
    pub(super) served: f64,
    pub(super) missed: f64,
    /// Seconds of the runs that ended in time.
    pub(super) useful: f64,
    /// Sums over the jobs that were queued and started: expected when they were queued, and true.
    pub(super) told: f64,
    pub(super) waited: f64,
}

impl Figures {
    /// Share of the jobs that came.
    pub(super) fn served(&self) -> f64 {
        self.served / self.came
    }

    /// Share of the jobs that were accepted.
    pub(super) fn missed(&self) -> f64 {
        self.missed / (self.served + self.missed)
    }
}

struct World<'a> {
    case: &'a Case<'a>,
    core: Core<Numbers>,
    origin: Instant,
    now: Duration,
    random: StdRng,
    jobs: Vec<Job>,
    keys: BTreeMap<u32, JobKey>,
    events: BinaryHeap<Reverse<(Duration, u32, Event)>>,
    figures: Vec<Figures>,
}

struct Job {
    flow: usize,
    deadline: Duration,
    queued: Duration,
    told: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(usize),
    End(u32, bool, Duration),
    Expire(u32),
    Tick,
}

impl Flow {
    pub(super) const PLAIN: Self = Self {
        tenant: "a",
        kind: 0,
        class: Criticality::Critical,
        arrives: Arrives::Open(0.0),
        mean: 0.05,
        deadline: 0.5,
        spread: false,
        keys: 0,
        limit_keys: 0,
        tenants: 0,
        when_full: WhenFull::Reject,
    };
}

/// Means over some seeds, by flow.
pub(super) fn means(case: &Case<'_>, seeds: u64) -> Vec<Figures> {
    let mut sums = vec![Figures::default(); case.flows.len()];
    for seed in 0..seeds {
        for (sum, one) in sums.iter_mut().zip(run(case, seed)) {
            sum.came += one.came;
            sum.served += one.served;
            sum.missed += one.missed;
            sum.useful += one.useful / seeds as f64;
            sum.told += one.told;
            sum.waited += one.waited;
        }
    }
    sums
}

fn run(case: &Case<'_>, seed: u64) -> Vec<Figures> {
    let caps = Caps { jobs: case.places, bytes: usize::MAX, waiting: 1000, tenant_share: 0.25, stuck: 0 };
    let (mut core, origin) = (Core::new(caps, case.limits.len(), 1), Instant::now());
    core.reconfigure(origin, caps, case.limits, &mut Vec::new());
    for _ in 0..case.workers {
        core.add_worker(origin, 0, &mut Vec::new());
    }
    let mut world = World {
        case,
        core,
        origin,
        now: Duration::ZERO,
        random: StdRng::seed_from_u64(seed),
        jobs: Vec::new(),
        keys: BTreeMap::new(),
        events: BinaryHeap::new(),
        figures: vec![Figures::default(); case.flows.len()],
    };
    for (at, flow) in case.flows.iter().enumerate() {
        let first = if let Arrives::Closed(callers) = flow.arrives { callers } else { 1 };
        (0..first).for_each(|_| world.arrive_later(at));
    }
    let end = Duration::from_secs(case.seconds);
    while let Some(Reverse((at, _, event))) = world.events.pop()
        && at <= end
    {
        world.now = at;
        world.step(event);
    }
    world.figures
}

impl World<'_> {
    fn step(&mut self, event: Event) {
        let (now, mut effects) = (self.origin + self.now, Vec::new());
        match event {
            Event::Arrive(flow) => self.arrive(flow, &mut effects),
            Event::End(job, in_time, ran) => {
                let outcome = if in_time { Outcome::Completed } else { Outcome::DeadlineExceeded };
                self.core.end(now, self.keys[&job], outcome, ran);
                self.core.release(now, self.keys[&job], 0, &mut effects);
                let figures = &mut self.figures[self.jobs[job as usize].flow];
                figures.served += f64::from(u8::from(in_time));
                figures.missed += f64::from(u8::from(!in_time));
                figures.useful += if in_time { ran.as_secs_f64() } else { 0.0 };
                self.answer(job);
            }
            Event::Expire(job) => match self.core.withdraw(now, self.keys[&job], Withdrawal::Expired, &mut effects) {
                Withdrawn::Queued => {
                    self.figures[self.jobs[job as usize].flow].missed += 1.0;
                    self.answer(job);
                }
                Withdrawn::Waiting => self.answer(job),
                Withdrawn::Gone => {}
            },
            Event::Tick => self.core.tick(now, &mut effects),
        }
        for effect in effects {
            match effect {
                Effect::Start { waiter, grant } => {
                    let job = &self.jobs[waiter as usize];
                    let figures = &mut self.figures[job.flow];
                    figures.told += job.told;
                    figures.waited += (self.now - job.queued).as_secs_f64();
                    self.start(waiter, &grant);
                }
                Effect::Ended { waiter, .. } => {
                    self.figures[self.jobs[waiter as usize].flow].missed += 1.0;
                    self.answer(waiter);
                }
                Effect::Refused { waiter, .. } => self.answer(waiter),
            }
        }
        if let Some(at) = self.core.wake_at() {
            self.at(at.saturating_duration_since(self.origin).max(self.now), Event::Tick);
        }
    }

    fn arrive(&mut self, flow: usize, effects: &mut Vec<Effect<Numbers>>) {
        let Flow { tenant, kind, class, arrives, deadline, spread, keys, limit_keys, tenants, when_full, .. } =
            self.case.flows[flow];
        if let Arrives::Open(_) = arrives {
            self.arrive_later(flow);
        }
        let mut name = |what: &str, of: u32| match of {
            0 => what.to_owned(),
            of => format!("{what}{}", self.random.random_range(0..of)),
        };
        let key = if keys == 0 { String::new() } else { name(tenant, keys) };
        let limit_key = if limit_keys == 0 { String::new() } else { name("", limit_keys) };
        let tenant = name(tenant, tenants);
        let budget = if spread { deadline * self.random.random_range(0.5..1.5) } else { deadline };
        let job = u32::try_from(self.jobs.len()).expect("not so many");
        let deadline = self.now + Duration::from_secs_f64(budget);
        self.jobs.push(Job { flow, deadline, queued: self.now, told: 0.0 });
        self.figures[flow].came += 1.0;
        let arrival = Arrival {
            job,
            kind,
            class,
            bytes: 0,
            start_by: self.origin + deadline,
            finish_by: self.origin + deadline,
            tenant: &tenant,
            ordering_key: &key,
            limit_key: &limit_key,
            when_full,
            shard: 0,
        };
        match self.core.offer(self.origin + self.now, arrival, |_| job, effects) {
            Verdict::Start(grant) => {
                self.start(job, &grant);
            }
            Verdict::Queued(key) => {
                self.keys.insert(job, key);
                let now = self.origin + self.now;
                let told = self.case.explains.then(|| self.core.explain(now, |other| *other == job)).flatten();
                let queued = told.and_then(|(_, _, wait)| wait?.queued);
                if let Some(expected) = queued.and_then(|queued| queued.expected_start) {
                    self.jobs[job as usize].told = expected.as_secs_f64();
                }
                self.at(deadline, Event::Expire(job));
            }
            Verdict::Waiting(key) => {
                self.keys.insert(job, key);
                self.at(deadline, Event::Expire(job));
            }
            Verdict::Refused(_) => self.answer(job),
        }
    }

    fn start(&mut self, job: u32, grant: &Grant<Numbers>) {
        self.keys.insert(job, grant.key);
        let Job { flow, deadline, .. } = self.jobs[job as usize];
        let run = self.draw(self.case.flows[flow].mean);
        let (in_time, ran) = (self.now + run <= deadline, run.min(deadline - self.now));
        self.at(self.now + ran, Event::End(job, in_time, ran));
    }

    /// A caller that sends one job after the other has its answer.
    fn answer(&mut self, job: u32) {
        let flow = self.jobs[job as usize].flow;
        if let Arrives::Closed(_) = self.case.flows[flow].arrives {
            self.arrive_later(flow);
        }
    }

    fn arrive_later(&mut self, flow: usize) {
        let pause = match self.case.flows[flow].arrives {
            Arrives::Open(rate) => self.draw(1.0 / rate),
            // It has to be sent, and a refusal is no reason to hammer.
            Arrives::Closed(_) => self.draw(0.001),
        };
        self.at(self.now + pause, Event::Arrive(flow));
    }

    fn draw(&mut self, mean: f64) -> Duration {
        Duration::from_secs_f64(-mean * (1.0 - self.random.random::<f64>()).ln())
    }

    fn at(&mut self, at: Duration, event: Event) {
        let number = u32::try_from(self.events.len()).unwrap_or(u32::MAX);
        self.events.push(Reverse((at, number, event)));
    }
}
