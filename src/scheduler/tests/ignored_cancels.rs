//! Expected waits and fair sharing with handlers that ignore a cancel.

use std::{collections::BTreeMap, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;

use super::{
    super::{Arrival, Caps, Core, Effect, Grant, Queued, Verdict, Wait},
    Numbers,
};
use crate::model::{Criticality, Outcome, RejectionReason, WhenFull};

/// The jobs of the first tenant complete. Those of the second hit their run timeout, and keep their worker after that.
const TENANTS: [&str; 2] = ["civil", "stubborn"];
/// Number of queued jobs of each tenant, with about equal work. The estimate for an arrival does not include later
/// jobs.
const QUEUED: [usize; 2] = [30, 5];
/// Number of runs after which the service times are known.
const KNOWN: u32 = 100;
const LADDER: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(100_000);

/// One worker, and two tenants that always have jobs queued.
struct Simulation {
    core: Core<Numbers>,
    now: Instant,
    dice: StdRng,
    effects: Vec<Effect<Numbers>>,
    jobs: u32,
    runs: u32,
    /// The tenant of each queued job, the time when it was queued, and the expected wait at that time.
    queued: BTreeMap<u32, (usize, Instant, Duration)>,
    /// Worker time, expected waits and real waits of each tenant.
    held: [Duration; 2],
    expected: [Duration; 2],
    waited: [Duration; 2],
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let caps = Caps { jobs: 64, bytes: 1 << 20, waiting: 0, tenant_share: 1.0, stuck: 0 };
        let (now, dice) = (Instant::now(), StdRng::seed_from_u64(seed));
        let mut core = Core::new(caps, TENANTS.len(), 1);
        core.add_worker(now, 0, &mut Vec::new());
        let [held, expected, waited] = [[Duration::ZERO; 2]; 3];
        Self { core, now, dice, effects: Vec::new(), jobs: 0, runs: 0, queued: BTreeMap::new(), held, expected, waited }
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
            // Admission limits the queue of jobs whose callers do not wait.
            when_full: WhenFull::Wait,
            shard: 0,
        };
        self.core.offer(self.now, arrival, |_| job, &mut self.effects)
    }

    /// The expected wait, from the refusal of a job that has no time to wait.
    fn expected(&mut self, tenant: usize) -> Duration {
        match self.offer(tenant, Duration::from_millis(1)) {
            Verdict::Refused(refusal) => match refusal.reason {
                RejectionReason::DeadlineUnreachable { expected, .. } => expected,
                other => panic!("{other:?}"),
            },
            _ => panic!("a job with a millisecond would wait"),
        }
    }

    /// Queues jobs until the tenant has enough. Returns the grant of one that starts at once.
    fn fill(&mut self, tenant: usize) -> Option<(usize, Grant<Numbers>)> {
        while self.queued.values().filter(|(of, ..)| *of == tenant).count() < QUEUED[tenant] {
            let expected = if self.runs > KNOWN { self.expected(tenant) } else { Duration::ZERO };
            match self.offer(tenant, LONG) {
                Verdict::Queued(_) => self.queued.insert(self.jobs, (tenant, self.now, expected)),
                Verdict::Start(grant) => return Some((tenant, grant)),
                Verdict::Waiting(_) | Verdict::Refused(_) => panic!("there is capacity and time"),
            };
        }
        None
    }

    /// Runs a job until its worker is free.
    fn run(&mut self, tenant: usize, grant: Grant<Numbers>) {
        let run = Duration::from_millis(self.dice.random_range(200..600));
        let (outcome, ladder) = [(Outcome::Completed, Duration::ZERO), (Outcome::RunTimeout, LADDER)][tenant];
        self.now += run;
        self.core.end(self.now, grant.key, outcome, run);
        // It ignores the cancel.
        self.now += ladder;
        self.runs += 1;
        self.held[tenant] += run + ladder;
        self.core.release(self.now, grant.key, grant.state, &mut self.effects);
        self.core.assert_invariants();
    }

    fn started(&mut self) -> (usize, Grant<Numbers>) {
        match self.effects.pop() {
            Some(Effect::Start { waiter, grant }) => {
                let (tenant, since, expected) = self.queued.remove(&waiter).expect("a queued job");
                if !expected.is_zero() {
                    self.expected[tenant] += expected;
                    self.waited[tenant] += self.now - since;
                }
                (tenant, grant)
            }
            _ => panic!("the free worker starts a job"),
        }
    }
}

#[test]
fn a_tenant_whose_jobs_ignore_a_cancel_gets_half_of_the_worker() {
    for seed in 1..=3 {
        let mut simulation = Simulation::new(seed);
        let mut runs = simulation.fill(0).expect("an idle worker");
        for _ in 0..1500 {
            assert!(simulation.fill(0).is_none() && simulation.fill(1).is_none());
            simulation.run(runs.0, runs.1);
            runs = simulation.started();
        }
        let [civil, stubborn] = simulation.held.map(|held| held.as_secs_f64());
        let share = stubborn / (civil + stubborn);
        assert!((0.45..=0.55).contains(&share), "seed {seed}: jobs that ignore a cancel have {share:.3} of the worker");
        for (tenant, name) in TENANTS.iter().enumerate() {
            let off = simulation.expected[tenant].as_secs_f64() / simulation.waited[tenant].as_secs_f64();
            assert!(
                (0.75..=1.25).contains(&off),
                "seed {seed}: the expected wait of {name} is {off:.3} of the real one"
            );
        }
    }
}

#[test]
fn expected_waits_are_right_for_tenants_with_short_and_long_jobs() {
    let runs = [100, 500].map(Duration::from_millis);
    let mut simulation = Simulation::new(0);
    let run = |simulation: &mut Simulation, tenant: usize, grant: Grant<Numbers>| {
        simulation.now += runs[tenant];
        simulation.core.end(simulation.now, grant.key, Outcome::Completed, runs[tenant]);
        simulation.core.release(simulation.now, grant.key, grant.state, &mut simulation.effects);
    };
    for tenant in [0, 1] {
        let Verdict::Start(grant) = simulation.offer(tenant, LONG) else { panic!("an idle worker") };
        run(&mut simulation, tenant, grant);
    }
    let Verdict::Start(grant) = simulation.offer(0, LONG) else { panic!("an idle worker") };
    // Both tenants have enough jobs to compete until the last of these starts.
    let queue = |simulation: &mut Simulation, tenant: usize, count: u32| {
        (0..count).for_each(|_| {
            assert!(matches!(simulation.offer(tenant, LONG), Verdict::Queued(_)));
            simulation.queued.insert(simulation.jobs, (tenant, simulation.now, Duration::ZERO));
        });
        simulation.jobs
    };
    let last = [queue(&mut simulation, 0, 40), queue(&mut simulation, 1, 8)];
    queue(&mut simulation, 1, 4);
    let expected = last.map(|job| match simulation.core.explain(simulation.now, |at| *at == job) {
        Some((_, _, Some(Wait { queued: Some(Queued { expected_start: Some(expected), .. }), .. }))) => {
            expected.as_secs_f64()
        }
        _ => panic!("it is queued"),
    });
    let (since, mut next) = (simulation.now, (0, grant));
    for (job, expected) in last.into_iter().zip(expected) {
        while simulation.queued.contains_key(&job) {
            run(&mut simulation, next.0, next.1);
            next = simulation.started();
        }
        let waited = (simulation.now - since).as_secs_f64();
        assert!((0.75..=1.25).contains(&(expected / waited)), "{expected:.2} s expected, {waited:.2} s real");
    }
}
