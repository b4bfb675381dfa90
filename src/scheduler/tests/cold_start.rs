//! Pools whose workers attach from elsewhere, and that go to zero and back: what callers are told while there is none.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use super::{super::Caps, Numbers, sample};
use crate::{
    model::{Criticality, KindId, Outcome, RejectionReason, WhenFull},
    scheduler::{Arrival, Bounds, Core, Effect, JobKey, Verdict, Withdrawal, Withdrawn},
};

/// Starts from zero in each run. The first one teaches the pool.
const STARTS: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End(usize),
    Attach,
    Arrive,
    Expire(usize),
}

/// A job that was held, and what became of it.
#[derive(Clone, Copy)]
struct Held {
    key: JobKey,
    finish_by: Duration,
    started: Option<Duration>,
    is_over: bool,
}

/// A pool, and an autoscaler that starts workers when the pool wants one, and ends them when it is idle.
struct World {
    core: Core<Numbers>,
    origin: Instant,
    now: Duration,
    events: BinaryHeap<Reverse<(Duration, Event)>>,
    dice: StdRng,
    /// What a start takes, and how many jobs the workers run at a time, for how long.
    start: Duration,
    slots: usize,
    run: Duration,
    /// When a worker will attach.
    comes_at: Option<Duration>,
    jobs: Vec<Held>,
    refused: u32,
    /// Whether it has seen a start.
    is_learned: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let caps = Caps { jobs: 4096, bytes: 1 << 30, waiting: 4096, tenant_share: 1.0, stuck: 0 };
        let mut dice = StdRng::seed_from_u64(seed);
        Self {
            core: Core::new(caps, 1, 1),
            origin: Instant::now(),
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            start: Duration::from_millis(dice.random_range(1_000..60_000)),
            slots: dice.random_range(1..=4),
            run: Duration::from_millis(dice.random_range(5..400)),
            dice,
            comes_at: None,
            jobs: Vec::new(),
            refused: 0,
            is_learned: false,
        }
    }

    fn at(&self) -> Instant {
        self.origin + self.now
    }

    fn resize(&mut self, workers: usize) {
        let mut effects = Vec::new();
        self.core.resize(self.at(), Bounds { min: workers, max: workers }, || 0, &mut effects);
        self.carry_out(effects);
    }

    /// Offers a job with this time until its deadline. Returns the key of a job that is held, or why it is refused.
    fn offer(&mut self, budget: Duration, when_full: WhenFull) -> Result<JobKey, RejectionReason> {
        let (job, finish_by) = (u32::try_from(self.jobs.len()).expect("not so many"), self.at() + budget);
        let arrival = Arrival {
            job,
            kind: KindId(0),
            class: Criticality::default(),
            bytes: 1,
            start_by: finish_by,
            finish_by,
            tenant: "",
            ordering_key: "",
            limit_key: "",
            when_full,
            shard: 0,
            is_stored: false,
        };
        let mut effects = Vec::new();
        let verdict = self.core.offer(self.at(), arrival, |_| job, &mut effects);
        assert!(effects.is_empty(), "nothing can start without a worker");
        match verdict {
            Verdict::Queued(key) | Verdict::Waiting(key) => Ok(key),
            Verdict::Refused(refusal) => Err(refusal.reason),
            Verdict::Start(_) => panic!("it starts without a worker"),
        }
    }

    /// A caller comes while there is no worker.
    fn arrive(&mut self) {
        // Enough for its run, so that no job is admitted as a probe of the estimate.
        let budget = 2 * self.run + self.start.mul_f64(f64::exp2(self.dice.random_range(-6.0..4.0)));
        let waits = self.dice.random_bool(0.7);
        let left = self.comes_at.map_or(self.start, |at| at - self.now);
        match self.offer(budget, if waits { WhenFull::Wait } else { WhenFull::Reject }) {
            Ok(key) => {
                assert!(waits, "a caller that does not wait is refused at once");
                assert!(!self.is_learned || budget > left, "held for {budget:?}, and a worker comes in {left:?}");
                self.events.push(Reverse((self.now + budget, Event::Expire(self.jobs.len()))));
                self.jobs.push(Held { key, finish_by: self.now + budget, started: None, is_over: false });
            }
            Err(RejectionReason::NoWorkers { needed, .. }) if self.is_learned => {
                self.refused += 1;
                assert!(needed > left, "told to wait for {needed:?}, and a worker comes in {left:?}");
                assert!(!waits || needed >= budget, "refused with {budget:?}, of which {needed:?} were enough");
                let key =
                    self.offer(needed + Duration::from_millis(1), WhenFull::Wait).expect("what it was told is enough");
                let found = self.core.withdraw(self.at(), key, Withdrawal::Cancelled, &mut Vec::new());
                assert!(matches!(found, Withdrawn::Queued | Withdrawn::Waiting));
            }
            Err(reason) => assert!(!waits && matches!(reason, RejectionReason::NoWorkers { .. }), "{reason:?}"),
        }
        if self.comes_at.is_none() && self.core.wants_worker(self.at()) {
            self.comes_at = Some(self.now + self.start);
            self.events.push(Reverse((self.now + self.start, Event::Attach)));
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect<Numbers>>) {
        for effect in effects {
            match effect {
                Effect::Start { waiter, .. } => {
                    let job = &mut self.jobs[waiter as usize];
                    assert!(!job.is_over && job.started.is_none() && job.finish_by > self.now);
                    job.started = Some(self.now);
                    self.events.push(Reverse((self.now + self.run, Event::End(waiter as usize))));
                }
                // Too little time is left for its run.
                Effect::Ended { waiter, outcome, .. } if outcome.is_expired() => self.expire(waiter as usize),
                Effect::Ended { .. } | Effect::Refused { .. } => panic!("a job that is held has a promise"),
            }
        }
    }

    fn expire(&mut self, job: usize) {
        let Held { finish_by, started, .. } = self.jobs[job];
        assert!(!self.is_learned, "held until {finish_by:?}, and not over at {:?}; started {started:?}", self.now);
        self.jobs[job].is_over = started.is_none();
    }

    fn end(&mut self, job: usize) {
        self.jobs[job].is_over = true;
        let (key, mut effects) = (self.jobs[job].key, Vec::new());
        assert!(self.core.end(self.at(), key, Outcome::Completed, self.run), "it has no other outcome");
        self.core.release(self.at(), key, 0, &mut effects);
        self.carry_out(effects);
    }

    /// Lets callers come until a worker attaches, and the jobs run. Then the worker leaves.
    fn start_from_zero(&mut self) {
        // So few that they never keep the workers busy for longer than their callers have.
        let mean = self.run.mul_f64(2.0 / self.slots as f64).max(self.start / 100);
        self.events.push(Reverse((self.now, Event::Arrive)));
        while let Some(Reverse((at, event))) = self.events.pop() {
            self.now = at;
            match event {
                Event::Arrive if self.core.configured_workers() == 0 => {
                    self.arrive();
                    let gap = mean.mul_f64(-self.dice.random::<f64>().max(1e-9).ln());
                    self.events.push(Reverse((self.now + gap, Event::Arrive)));
                }
                Event::Arrive => {}
                Event::Attach => {
                    self.comes_at = None;
                    self.resize(self.slots);
                }
                Event::End(job) => self.end(job),
                Event::Expire(job) if self.jobs[job].is_over => {}
                Event::Expire(job) => {
                    self.expire(job);
                    let mut effects = Vec::new();
                    self.core.withdraw(self.at(), self.jobs[job].key, Withdrawal::Expired, &mut effects);
                    self.carry_out(effects);
                }
            }
        }
        assert!(self.jobs.iter().all(|job| job.is_over), "each has one end");
        self.resize(0);
        self.is_learned = true;
        // Longer than a refused caller is remembered.
        self.now += Duration::from_secs(120);
    }
}

/// Starts take as long as before, and run times are known, so that nothing excuses a job that was held in vain.
#[test]
fn callers_are_held_for_a_start_or_told_how_long_it_takes() {
    let (mut held, mut refused) = (0, 0);
    for seed in 0..u64::from(sample(400)) {
        let mut world = World::new(seed);
        (0..STARTS).for_each(|_| world.start_from_zero());
        held += world.jobs.len();
        refused += world.refused;
    }
    assert!(held > 1000 && refused > 1000, "{held} held, {refused} refused");
}
