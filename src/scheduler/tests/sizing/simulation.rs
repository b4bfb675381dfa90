//! A simulated pool and load for tests of the sizer.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use super::super::Numbers;
use crate::{
    model::{Criticality, KindId, Outcome, WhenFull},
    scheduler::{Arrival, Bounds, Caps, Core, Effect, Grant, JobKey, Resized, Verdict},
};

/// The service time of jobs.
#[derive(Debug, Clone)]
pub(super) enum Service {
    /// Independent jobs with this mean.
    Own { mean: f64, spread: Spread },
    /// Each job needs one of a fixed number of connections for `each` seconds, in order of arrival.
    Shared { each: f64, spread: Spread, free_at: Vec<f64> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spread {
    None,
    Exponential,
}

/// The class and deadline of jobs, and the number of their tenants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Callers {
    pub(super) class: Criticality,
    pub(super) tenants: u32,
    pub(super) deadline: Duration,
}

impl Default for Callers {
    fn default() -> Self {
        Self { class: Criticality::default(), tenants: 1, deadline: Duration::from_secs(3600) }
    }
}

/// The real scheduler on a simulated clock, with random arrivals and a sample every second.
pub(super) struct Simulation {
    core: Core<Numbers>,
    origin: Instant,
    now: Duration,
    next_sample: Duration,
    random: StdRng,
    pub(super) callers: Callers,
    pub(super) service: Service,
    /// The end of each running job, and whether it is in time.
    ends: BinaryHeap<Reverse<(Duration, u32, bool)>>,
    running: BTreeMap<u32, (JobKey, Duration)>,
    deadlines: Vec<Duration>,
    /// Number of arrivals, and of jobs that completed in time.
    pub(super) arrived: u64,
    pub(super) served: u64,
}

impl Spread {
    fn of(self, mean: f64, random: &mut StdRng) -> f64 {
        match self {
            Self::None => mean,
            Self::Exponential => -mean * random.random::<f64>().max(1e-9).ln(),
        }
    }
}

impl Service {
    pub(super) fn own(mean: f64, spread: Spread) -> Self {
        Self::Own { mean, spread }
    }

    pub(super) fn shared(connections: usize, each: f64, spread: Spread) -> Self {
        Self::Shared { each, spread, free_at: vec![0.0; connections] }
    }

    /// Run time in seconds of a job that starts at `now` and is stopped after `left`.
    fn run(&mut self, now: f64, left: f64, random: &mut StdRng) -> f64 {
        match self {
            Self::Own { mean, spread } => spread.of(*mean, random),
            Self::Shared { each, spread, free_at } => {
                let took = spread.of(*each, random);
                let first = free_at.iter_mut().min_by(|a, b| a.total_cmp(b)).expect("there are connections");
                let begins = first.max(now);
                if begins >= now + left {
                    return f64::INFINITY;
                }
                *first = (begins + took).min(now + left);
                begins + took - now
            }
        }
    }
}

impl Simulation {
    /// A pool of `min` to `max` workers. The first sample is taken after `phase`.
    pub(super) fn new(min: usize, max: usize, service: Service, seed: u64, phase: Duration) -> Self {
        let caps = Caps { jobs: 1024, bytes: 1 << 30, waiting: 0, tenant_share: 0.25, stuck: 0 };
        let (mut core, origin) = (Core::new(caps, 1, 1), Instant::now());
        core.resize(origin, Bounds { min, max }, || 0, &mut Vec::new());
        Self {
            core,
            origin,
            now: Duration::ZERO,
            next_sample: phase,
            random: StdRng::seed_from_u64(seed),
            callers: Callers::default(),
            service,
            ends: BinaryHeap::new(),
            running: BTreeMap::new(),
            deadlines: Vec::new(),
            arrived: 0,
            served: 0,
        }
    }

    /// Offers `rate` jobs per second. Returns the number of workers at the end of each second.
    pub(super) fn run(&mut self, rate: f64, seconds: u32) -> Vec<usize> {
        let begin = self.now;
        let mut arrival = self.next_arrival(rate);
        let end_of = |second: u32| begin + Duration::from_secs(u64::from(second));
        let mut sizes = Vec::new();
        for second in 1..=seconds {
            loop {
                let end = self.ends.peek().map_or(Duration::MAX, |Reverse((at, ..))| *at);
                let next = arrival.min(end).min(self.next_sample);
                if next > end_of(second) {
                    break;
                }
                self.now = next;
                if next == self.next_sample {
                    self.sample();
                } else if next == end {
                    self.end();
                } else {
                    self.arrive();
                    arrival = self.next_arrival(rate);
                }
            }
            self.now = end_of(second);
            sizes.push(self.workers());
        }
        sizes
    }

    pub(super) fn workers(&self) -> usize {
        self.core.snapshot(Instant::now()).size.workers
    }

    pub(super) fn is_held_back(&self) -> bool {
        self.core.snapshot(Instant::now()).size.held_back
    }

    fn next_arrival(&mut self, rate: f64) -> Duration {
        if rate <= 0.0 {
            return Duration::MAX;
        }
        self.now + Duration::from_secs_f64(Spread::Exponential.of(1.0 / rate, &mut self.random))
    }

    fn sample(&mut self) {
        self.next_sample += Duration::from_secs(1);
        let mut effects = Vec::new();
        let resized = self.core.adjust_size(self.origin + self.now, true, || 0, &mut effects);
        if let Some(Resized { from, to, gone: _ }) = resized {
            assert_ne!(from, to);
        }
        self.carry_out(effects);
    }

    fn arrive(&mut self) {
        let job = u32::try_from(self.deadlines.len()).expect("not so many");
        let at = self.now + self.callers.deadline;
        self.deadlines.push(at);
        self.arrived += 1;
        let tenant = match self.callers.tenants {
            1 => String::new(),
            tenants => format!("tenant {}", job % tenants),
        };
        let arrival = Arrival {
            job,
            kind: KindId(0),
            class: self.callers.class,
            bytes: 1,
            start_by: self.origin + at,
            finish_by: self.origin + at,
            tenant: &tenant,
            ordering_key: "",
            limit_key: "",
            when_full: WhenFull::Reject,
            is_stored: false,
            shard: 0,
        };
        let mut effects = Vec::new();
        match self.core.offer(self.origin + self.now, arrival, |_| job, &mut effects) {
            Verdict::Start(grant) => self.start(job, &grant),
            Verdict::Queued(_) | Verdict::Waiting(_) | Verdict::Refused(_) => {}
        }
        self.carry_out(effects);
    }

    fn start(&mut self, job: u32, grant: &Grant<Numbers>) {
        let deadline = self.deadlines[job as usize];
        let left = deadline.saturating_sub(self.now).as_secs_f64();
        let run = self.service.run(self.now.as_secs_f64(), left, &mut self.random);
        let end = Duration::try_from_secs_f64(run).map_or(Duration::MAX, |run| self.now + run);
        self.running.insert(job, (grant.key, self.now));
        self.ends.push(Reverse((end.min(deadline), job, end <= deadline)));
    }

    fn end(&mut self) {
        let Some(Reverse((_, job, in_time))) = self.ends.pop() else { return };
        let (key, since) = self.running.remove(&job).expect("it runs");
        self.served += u64::from(in_time);
        let mut effects = Vec::new();
        let (now, outcome) =
            (self.origin + self.now, if in_time { Outcome::Completed } else { Outcome::DeadlineExceeded });
        self.core.end(now, key, outcome, self.now - since);
        self.core.release(now, key, 0, &mut effects);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<Effect<Numbers>>) {
        for effect in effects {
            if let Effect::Start { waiter, grant } = effect {
                self.start(waiter, &grant);
            }
        }
    }
}
