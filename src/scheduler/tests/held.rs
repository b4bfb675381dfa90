//! Handlers that do not stop when they are asked to, beside others.

use std::{collections::BTreeMap, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use super::{
    super::{Arrival, Caps, Core, Effect, Grant, Queued, Verdict, Wait},
    Numbers,
};
use crate::model::{Criticality, Outcome, RejectionReason, WhenFull};

/// The one stops its jobs by itself. Those of the other are stopped, and hold their worker for a while after that.
const TENANTS: [&str; 2] = ["civil", "stubborn"];
/// Jobs that each has queued, of about as much work: an arrival is told of what stands before it, and not of what comes.
const QUEUED: [usize; 2] = [30, 5];
/// Runs after which the machine knows what they take.
const KNOWN: u32 = 100;
const LADDER: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(100_000);

/// One worker, and two tenants that always have jobs queued.
struct World {
    core: Core<Numbers>,
    now: Instant,
    dice: StdRng,
    effects: Vec<Effect<Numbers>>,
    jobs: u32,
    runs: u32,
    /// Of each queued job, its tenant, when it was queued, and the wait that an arrival beside it was told.
    queued: BTreeMap<u32, (usize, Instant, Duration)>,
    /// By tenant: time of the worker, and waits told and true.
    held: [Duration; 2],
    told: [Duration; 2],
    waited: [Duration; 2],
}

impl World {
    fn new(seed: u64) -> Self {
        let caps = Caps { jobs: 64, bytes: 1 << 20, waiting: 0, tenant_share: 1.0, stuck: 0 };
        let (now, dice) = (Instant::now(), StdRng::seed_from_u64(seed));
        let mut core = Core::new(caps, TENANTS.len(), 1);
        core.add_worker(now, 0, &mut Vec::new());
        let [held, told, waited] = [[Duration::ZERO; 2]; 3];
        Self { core, now, dice, effects: Vec::new(), jobs: 0, runs: 0, queued: BTreeMap::new(), held, told, waited }
    }

    fn offer(&mut self, tenant: usize, budget: Duration) -> Verdict<Numbers> {
        self.jobs += 1;
        let job = self.jobs;
        let arrival = Arrival {
            job,
            kind: tenant,
            class: Criticality::Critical,
            bytes: 1,
            start_by: self.now + budget,
            finish_by: self.now + budget,
            tenant: TENANTS[tenant],
            ordering_key: "",
            limit_key: "",
            // A long queue is what is looked at.
            when_full: WhenFull::Wait,
            shard: 0,
        };
        self.core.offer(self.now, arrival, |_| job, &mut self.effects)
    }

    /// What a job is told that has no time to wait.
    fn expected(&mut self, tenant: usize) -> Duration {
        match self.offer(tenant, Duration::from_millis(1)) {
            Verdict::Refused(refusal) => match refusal.reason {
                RejectionReason::DeadlineUnreachable { expected, .. } => expected,
                other => panic!("{other:?}"),
            },
            _ => panic!("a job with a millisecond would wait"),
        }
    }

    /// Queue jobs until the tenant has enough. Returns the grant of one that starts at once.
    fn fill(&mut self, tenant: usize) -> Option<(usize, Grant<Numbers>)> {
        while self.queued.values().filter(|(of, ..)| *of == tenant).count() < QUEUED[tenant] {
            let told = if self.runs > KNOWN { self.expected(tenant) } else { Duration::ZERO };
            match self.offer(tenant, LONG) {
                Verdict::Queued(_) => self.queued.insert(self.jobs, (tenant, self.now, told)),
                Verdict::Start(grant) => return Some((tenant, grant)),
                Verdict::Waiting(_) | Verdict::Refused(_) => panic!("there is room and time"),
            };
        }
        None
    }

    /// A job runs until its worker is free.
    fn run(&mut self, tenant: usize, grant: Grant<Numbers>) {
        let run = Duration::from_millis(self.dice.random_range(200..600));
        let (outcome, ladder) = [(Outcome::Completed, Duration::ZERO), (Outcome::RunTimeout, LADDER)][tenant];
        self.now += run;
        self.core.end(self.now, grant.key, outcome, run);
        // It is asked to stop, and stays.
        self.now += ladder;
        self.runs += 1;
        self.held[tenant] += run + ladder;
        self.core.release(self.now, grant.key, grant.state, &mut self.effects);
        self.core.assert_invariants();
    }

    fn started(&mut self) -> (usize, Grant<Numbers>) {
        match self.effects.pop() {
            Some(Effect::Start { waiter, grant }) => {
                let (tenant, since, told) = self.queued.remove(&waiter).expect("a queued job");
                if !told.is_zero() {
                    self.told[tenant] += told;
                    self.waited[tenant] += self.now - since;
                }
                (tenant, grant)
            }
            _ => panic!("the worker that is free takes a job"),
        }
    }
}

#[test]
fn a_tenant_whose_jobs_do_not_stop_gets_half_of_the_worker_and_waits_are_told_as_they_are() {
    for seed in 1..=3 {
        let mut world = World::new(seed);
        let mut runs = world.fill(0).expect("an idle worker");
        for _ in 0..1500 {
            assert!(world.fill(0).is_none() && world.fill(1).is_none());
            world.run(runs.0, runs.1);
            runs = world.started();
        }
        let [civil, stubborn] = world.held.map(|held| held.as_secs_f64());
        let share = stubborn / (civil + stubborn);
        assert!((0.45..=0.55).contains(&share), "seed {seed}: the one that does not stop has {share:.3} of the worker");
        for (tenant, name) in TENANTS.iter().enumerate() {
            let off = world.told[tenant].as_secs_f64() / world.waited[tenant].as_secs_f64();
            assert!((0.75..=1.25).contains(&off), "seed {seed}: {name} is told {off:.3} of the wait that it has");
        }
    }
}

#[test]
fn of_two_tenants_with_short_and_long_jobs_each_is_told_the_wait_that_it_has() {
    let runs = [100, 500].map(Duration::from_millis);
    let mut world = World::new(0);
    let run = |world: &mut World, tenant: usize, grant: Grant<Numbers>| {
        world.now += runs[tenant];
        world.core.end(world.now, grant.key, Outcome::Completed, runs[tenant]);
        world.core.release(world.now, grant.key, grant.state, &mut world.effects);
    };
    for tenant in [0, 1] {
        let Verdict::Start(grant) = world.offer(tenant, LONG) else { panic!("an idle worker") };
        run(&mut world, tenant, grant);
    }
    let Verdict::Start(grant) = world.offer(0, LONG) else { panic!("an idle worker") };
    // Enough of both that they share the worker until the last of these starts.
    let queue = |world: &mut World, tenant: usize, count: u32| {
        (0..count).for_each(|_| {
            assert!(matches!(world.offer(tenant, LONG), Verdict::Queued(_)));
            world.queued.insert(world.jobs, (tenant, world.now, Duration::ZERO));
        });
        world.jobs
    };
    let last = [queue(&mut world, 0, 40), queue(&mut world, 1, 8)];
    queue(&mut world, 1, 4);
    let told = last.map(|job| match world.core.explain(world.now, |at| *at == job) {
        Some((_, _, Some(Wait { queued: Some(Queued { expected_start: Some(expected), .. }), .. }))) => {
            expected.as_secs_f64()
        }
        _ => panic!("it is queued"),
    });
    let (since, mut next) = (world.now, (0, grant));
    for (job, told) in last.into_iter().zip(told) {
        while world.queued.contains_key(&job) {
            run(&mut world, next.0, next.1);
            next = world.started();
        }
        let waited = (world.now - since).as_secs_f64();
        assert!((0.75..=1.25).contains(&(told / waited)), "{told:.2} s are told, and {waited:.2} s true");
    }
}
