//! Simulated flows of jobs with ordering keys, limits and waiting callers, for the tests of single rules.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use super::{
    super::{Arrival, Bounds, Caps, Core, Effect, Grant, JobKey, Verdict, Withdrawal, Withdrawn},
    Numbers, sample,
};
use crate::model::{Criticality, KindId, KindLimits, Outcome, WhenFull};

/// A flow of similar jobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct TestFlow {
    pub(super) tenant: &'static str,
    pub(super) kind: usize,
    pub(super) class: Criticality,
    pub(super) arrives: Arrives,
    /// Mean of their exponential runs, in seconds.
    pub(super) mean: f64,
    /// Deadline in seconds.
    pub(super) deadline: f64,
    /// Number of ordering keys and of limit keys, of which each job draws one. 0 means none.
    pub(super) keys: u32,
    pub(super) limit_keys: u32,
    /// Number of tenants, of which each job draws one. 0 means only `tenant`.
    pub(super) tenants: u32,
    pub(super) when_full: WhenFull,
    /// Seconds for which a job keeps its worker after it was told to stop. If it is not 0, each job hits its run
    /// timeout.
    pub(super) ignores: f64,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Arrives {
    /// Jobs per second, at random times.
    Open(f64),
    /// Number of callers. Each sends its next job when it has the answer to the previous one.
    Closed(u32),
}

/// A pool and its load.
pub(super) struct FlowCase<'a> {
    pub(super) workers: usize,
    pub(super) places: usize,
    pub(super) limits: &'a [KindLimits],
    pub(super) flows: &'a [TestFlow],
    pub(super) seconds: u64,
    /// Whether the expected wait of each queued job is recorded.
    pub(super) explains: bool,
}

/// Results of a flow.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    pub(super) arrived: f64,
    pub(super) served: f64,
    pub(super) missed: f64,
    /// Seconds of the runs that ended in time.
    pub(super) useful: f64,
    /// Seconds of worker time.
    pub(super) held: f64,
    /// Expected and real wait in seconds, as sums over all jobs that were queued and started.
    pub(super) expected: f64,
    pub(super) waited: f64,
}

impl Figures {
    /// Served jobs, relative to all arrivals.
    pub(super) fn served(&self) -> f64 {
        self.served / self.arrived
    }

    /// Missed jobs, relative to all accepted ones.
    pub(super) fn missed(&self) -> f64 {
        self.missed / (self.served + self.missed)
    }
}

struct FlowSimulation<'a> {
    case: &'a FlowCase<'a>,
    core: Core<Numbers>,
    origin: Instant,
    now: Duration,
    random: StdRng,
    jobs: Vec<Job>,
    keys: BTreeMap<u32, JobKey>,
    events: BinaryHeap<Reverse<(Duration, u32, FlowEvent)>>,
    figures: Vec<Figures>,
}

struct Job {
    flow: usize,
    deadline: Duration,
    queued: Duration,
    expected: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FlowEvent {
    Arrive(usize),
    End(u32, bool, Duration),
    Release(u32),
    Expire(u32),
    Tick,
}

impl TestFlow {
    pub(super) const PLAIN: Self = Self {
        tenant: "a",
        kind: 0,
        class: Criticality::Critical,
        arrives: Arrives::Open(0.0),
        mean: 0.05,
        deadline: 0.5,
        keys: 0,
        limit_keys: 0,
        tenants: 0,
        when_full: WhenFull::Reject,
        ignores: 0.0,
    };
}

/// Runs a case with several seeds. Returns sums for each flow, and the mean of `useful`.
pub(super) fn means(case: &FlowCase<'_>, all_seeds: u32) -> Vec<Figures> {
    let mut sums = vec![Figures::default(); case.flows.len()];
    let seeds = sample(all_seeds);
    for seed in 0..u64::from(seeds) {
        for (sum, one) in sums.iter_mut().zip(run(case, seed)) {
            sum.arrived += one.arrived;
            sum.served += one.served;
            sum.missed += one.missed;
            sum.useful += one.useful / f64::from(seeds);
            sum.held += one.held;
            sum.expected += one.expected;
            sum.waited += one.waited;
        }
    }
    sums
}

fn run(case: &FlowCase<'_>, seed: u64) -> Vec<Figures> {
    let caps = Caps { jobs: case.places, bytes: usize::MAX, waiting: 1000, tenant_share: 0.25, stuck: 0 };
    let (mut core, origin) = (Core::new(caps, case.limits.len(), 1), Instant::now());
    core.reconfigure(origin, caps, case.limits, &mut Vec::new());
    core.resize(origin, Bounds { min: case.workers, max: case.workers }, || 0, &mut Vec::new());
    let mut simulation = FlowSimulation {
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
        (0..first).for_each(|_| simulation.arrive_later(at));
    }
    let end = Duration::from_secs(case.seconds);
    while let Some(Reverse((at, _, event))) = simulation.events.pop()
        && at <= end
    {
        simulation.now = at;
        simulation.step(event);
    }
    simulation.figures
}

impl FlowSimulation<'_> {
    fn step(&mut self, event: FlowEvent) {
        let (now, mut effects) = (self.origin + self.now, Vec::new());
        match event {
            FlowEvent::Arrive(flow) => self.arrive(flow, &mut effects),
            FlowEvent::End(job, in_time, ran) => {
                let flow = self.jobs[job as usize].flow;
                let ignores = self.case.flows[flow].ignores;
                let outcome = match in_time {
                    _ if ignores > 0.0 => Outcome::RunTimeout,
                    true => Outcome::Completed,
                    false => Outcome::DeadlineExceeded,
                };
                self.core.end(now, self.keys[&job], outcome, ran);
                if ignores > 0.0 {
                    self.at(self.now + Duration::from_secs_f64(ignores), FlowEvent::Release(job));
                } else {
                    self.core.release(now, self.keys[&job], 0, &mut effects);
                }
                let figures = &mut self.figures[flow];
                figures.held += ran.as_secs_f64() + ignores;
                figures.served += f64::from(u8::from(in_time));
                figures.missed += f64::from(u8::from(!in_time));
                figures.useful += if in_time { ran.as_secs_f64() } else { 0.0 };
                self.answer(job);
            }
            FlowEvent::Release(job) => drop(self.core.release(now, self.keys[&job], 0, &mut effects)),
            FlowEvent::Expire(job) => match self.core.withdraw(now, self.keys[&job], Withdrawal::Expired, &mut effects)
            {
                Withdrawn::Queued => {
                    self.figures[self.jobs[job as usize].flow].missed += 1.0;
                    self.answer(job);
                }
                Withdrawn::Waiting => self.answer(job),
                Withdrawn::Gone => {}
            },
            FlowEvent::Tick => self.core.tick(now, &mut effects),
        }
        for effect in effects {
            match effect {
                Effect::Start { waiter, grant } => {
                    let job = &self.jobs[waiter as usize];
                    let figures = &mut self.figures[job.flow];
                    figures.expected += job.expected;
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
            self.at(at.saturating_duration_since(self.origin).max(self.now), FlowEvent::Tick);
        }
    }

    fn arrive(&mut self, flow: usize, effects: &mut Vec<Effect<Numbers>>) {
        let TestFlow { tenant, kind, class, arrives, deadline, keys, limit_keys, tenants, when_full, .. } =
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
        let job = u32::try_from(self.jobs.len()).expect("not so many");
        let deadline = self.now + Duration::from_secs_f64(deadline);
        self.jobs.push(Job { flow, deadline, queued: self.now, expected: 0.0 });
        self.figures[flow].arrived += 1.0;
        let arrival = Arrival {
            job,
            kind: KindId(kind),
            class,
            bytes: 0,
            start_by: self.origin + deadline,
            finish_by: self.origin + deadline,
            tenant: &tenant,
            ordering_key: &key,
            limit_key: &limit_key,
            when_full,
            is_stored: false,
            shard: 0,
        };
        match self.core.offer(self.origin + self.now, arrival, |_| job, effects) {
            Verdict::Start(grant) => {
                self.start(job, &grant);
            }
            Verdict::Queued(key) => {
                self.keys.insert(job, key);
                let now = self.origin + self.now;
                let expected = self.case.explains.then(|| self.core.explain(now, |other| *other == job)).flatten();
                let queued = expected.and_then(|expected| expected.wait?.queued);
                if let Some(expected) = queued.and_then(|queued| queued.expected_start) {
                    self.jobs[job as usize].expected = expected.as_secs_f64();
                }
                self.at(deadline, FlowEvent::Expire(job));
            }
            Verdict::Waiting(key) => {
                self.keys.insert(job, key);
                self.at(deadline, FlowEvent::Expire(job));
            }
            Verdict::Refused(_) => self.answer(job),
        }
    }

    fn start(&mut self, job: u32, grant: &Grant<Numbers>) {
        self.keys.insert(job, grant.key);
        let Job { flow, deadline, .. } = self.jobs[job as usize];
        let run = self.draw(self.case.flows[flow].mean);
        let (in_time, ran) = (self.now + run <= deadline, run.min(deadline - self.now));
        self.at(self.now + ran, FlowEvent::End(job, in_time, ran));
    }

    /// A caller of a closed flow has its answer, and sends its next job.
    fn answer(&mut self, job: u32) {
        let flow = self.jobs[job as usize].flow;
        if let Arrives::Closed(_) = self.case.flows[flow].arrives {
            self.arrive_later(flow);
        }
    }

    fn arrive_later(&mut self, flow: usize) {
        let pause = match self.case.flows[flow].arrives {
            Arrives::Open(rate) => self.draw(1.0 / rate),
            // Sending takes time, and a caller must not retry a refused job without a pause.
            Arrives::Closed(_) => self.draw(0.001),
        };
        self.at(self.now + pause, FlowEvent::Arrive(flow));
    }

    fn draw(&mut self, mean: f64) -> Duration {
        Duration::from_secs_f64(-mean * (1.0 - self.random.random::<f64>()).ln())
    }

    fn at(&mut self, at: Duration, event: FlowEvent) {
        let number = u32::try_from(self.events.len()).unwrap_or(u32::MAX);
        self.events.push(Reverse((at, number, event)));
    }
}
