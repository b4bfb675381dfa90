//! Makes the plan of a seed: its load, drains, crashes and network faults. Runs it.

use std::{
    ops::Range,
    process::ExitCode,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::{Duration, UNIX_EPOCH},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use turmoil::Sim;

use crate::{
    accounting::AbandonedJobs,
    calls, operator, oracle,
    record::{LifeEnd, Record},
    server::{self, EXPECTED_PANIC},
    wire::{caller_name, server_name},
};

pub(crate) const SERVERS: usize = 2;
pub(crate) const CALLERS: usize = 3;
/// Number of concurrent calls of a caller.
pub(crate) const TASKS: usize = 3;

/// Time of the highest load, in milliseconds.
const MIDDLE: Range<u64> = 30..500;

/// A fault that the simulation injects, or its end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Act {
    Break(Link, Fault),
    Repair(Link),
    /// A server crashes. If it does so `silently`, its peers get no packet that closes their connections.
    Crash {
        server: usize,
        silently: bool,
    },
    Bounce {
        server: usize,
    },
}

/// The connection between a caller and a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) caller: usize,
    pub(crate) server: usize,
}

/// What happens to the messages of a link.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// All are dropped.
    Partition,
    /// All from the caller to the server are dropped.
    PartitionThere,
    /// All from the server to the caller are dropped.
    PartitionBack,
    /// All are held back until the repair.
    Hold,
    /// Some are dropped.
    Lose,
}

impl Fault {
    const ALL: [Self; 5] = [Self::Partition, Self::PartitionThere, Self::PartitionBack, Self::Hold, Self::Lose];
}

/// The plan of a seed.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Longest latency of a message, in milliseconds.
    pub(crate) latency: u64,
    /// Number of calls of each task of a caller.
    pub(crate) calls: usize,
    pub(crate) acts: Vec<(Duration, Act)>,
    /// Drains during the load.
    pub(crate) drains: Vec<(Duration, usize)>,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut acts = Vec::new();
        let crashing = random.random_bool(0.3).then(|| random.random_range(0..SERVERS));
        if let Some(server) = crashing {
            let (begin, end) = span(&mut random, 10..200);
            acts.push((begin, Act::Crash { server, silently: random.random() }));
            acts.push((end, Act::Bounce { server }));
        }
        // In a third of the seeds no link fails, so only drains and crashes may break calls.
        let links = if random.random_bool(0.33) { 0.0 } else { 0.5 };
        for (caller, server) in (0..CALLERS).flat_map(|caller| (0..SERVERS).map(move |server| (caller, server))) {
            // The links of a server that crashes are cut and repaired with it.
            if Some(server) != crashing && random.random_bool(links) {
                acts.extend(fault(&mut random, Link { caller, server }));
            }
        }
        acts.sort_by_key(|(at, _)| *at);
        let drained = random.random_range(0..SERVERS);
        let mut drains = vec![(millis(random.random_range(MIDDLE)), drained)];
        if random.random_bool(0.3) {
            drains.push((millis(random.random_range(MIDDLE)), (drained + 1) % SERVERS));
        }
        drains.sort();
        let latency = [0, 2, 2, 12][random.random_range(0..4)];
        Self { latency, calls: random.random_range(8..16), acts, drains }
    }

    /// Time of the last act.
    pub(crate) fn end(&self) -> Duration {
        self.acts.last().map_or(Duration::ZERO, |(at, _)| *at)
    }
}

/// A fault of a link, and its end.
fn fault(random: &mut StdRng, link: Link) -> [(Duration, Act); 2] {
    let (begin, end) = span(random, 5..250);
    let fault = Fault::ALL[random.random_range(0..Fault::ALL.len())];
    [(begin, Act::Break(link, fault)), (end, Act::Repair(link))]
}

fn span(random: &mut StdRng, lasts: Range<u64>) -> (Duration, Duration) {
    let begin = random.random_range(MIDDLE);
    (millis(begin), millis(begin + random.random_range(lasts)))
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Prefix of the lines with the number of jobs by their end.
pub(crate) const ENDS: &str = "ends:";
/// Longest duration of a seed.
const LONGEST: Duration = Duration::from_secs(30);
/// Loss rate of a faulty link. The simulated network does not retransmit.
const LOSS: f64 = 0.1;

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Runs a seed, and prints its trace and its faults.
pub(crate) fn run(seed: u64) -> ExitCode {
    // From this point, the process has no other source of randomness and no other clock.
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    let _clocks = mad_turmoil::time::SimClocksGuard::init();
    count_panics();
    let record = Record::default();
    let plan = Plan::of(seed);
    record.note_at(Duration::ZERO, format_args!("seed {seed}: {plan:?}"));
    simulate(seed, plan, &record);
    let events = record.lock();
    print!("{}", events.trace);
    for (end, count) in oracle::ends(&events) {
        println!("{ENDS} {end} {count}");
    }
    let mut faults = oracle::faults(&events);
    match panics() {
        0 => {}
        panics => faults.push(format!("{panics} unexpected panics")),
    }
    faults.iter().for_each(|fault| eprintln!("  {fault}"));
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Counts unexpected panics from now on.
pub(crate) fn count_panics() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&EXPECTED_PANIC) {
            PANICS.fetch_add(1, Relaxed);
            default_hook(info);
        }
    }));
}

pub(crate) fn panics() -> usize {
    PANICS.load(Relaxed)
}

fn simulate(seed: u64, plan: Plan, record: &Record) {
    let latency = Duration::from_millis(plan.latency);
    let mut builder = turmoil::Builder::new();
    builder.rng_seed(seed).epoch(UNIX_EPOCH).simulation_duration(LONGEST).enable_random_order();
    builder.min_message_latency(Duration::ZERO).max_message_latency(latency);
    let mut sim = builder.build();
    for server in 0..SERVERS {
        let record = record.clone();
        sim.host(server_name(server), move || server::serve(server, record.clone()));
    }
    let mut events = record.lock();
    (events.callers_left, events.latency) = (CALLERS, latency);
    drop(events);
    for caller in 0..CALLERS {
        sim.client(caller_name(caller), calls::call(caller, seed, plan.calls, record.clone()));
    }
    sim.client("operator", operator::operate(plan.drains.clone(), plan.end(), record.clone()));
    let mut acts = Acts { open: Vec::new(), record: record.clone() };
    let mut abandoned = AbandonedJobs::new(record.clone());
    let mut ahead = plan.acts.into_iter().peekable();
    loop {
        while let Some((_, act)) = ahead.next_if(|(at, _)| *at <= sim.elapsed()) {
            acts.carry_out(&mut sim, act);
        }
        match sim.step() {
            Ok(false) => abandoned.check(sim.elapsed()),
            Ok(true) => return,
            Err(error) => return record.fault(error.to_string()),
        }
    }
}

struct Acts {
    /// Current disturbances of links. Those of servers end with the restart of the server.
    open: Vec<(Link, usize)>,
    record: Record,
}

impl Acts {
    fn carry_out(&mut self, sim: &mut Sim<'_>, act: Act) {
        let at = sim.elapsed();
        self.record.note_at(at, format_args!("{act:?}"));
        match act {
            Act::Break(link, fault) => self.begin(sim, link, fault),
            Act::Repair(link) => self.end(sim, link),
            Act::Crash { server, silently } => self.crash(sim, server, silently),
            Act::Bounce { server } => {
                peers().for_each(|peer| sim.repair(peer, server_name(server)));
                sim.bounce(server_name(server));
            }
        }
    }

    fn crash(&self, sim: &mut Sim<'_>, server: usize, silently: bool) {
        self.record.disturb(None, server, sim.elapsed());
        if silently {
            peers().for_each(|peer| sim.partition(peer, server_name(server)));
        }
        // The crash drops running jobs, and each drop is recorded.
        sim.crash(server_name(server));
        let mut events = self.record.lock();
        if let Some(life) = events.life_of(server)
            && matches!(life.end, LifeEnd::Serving)
        {
            life.end = LifeEnd::Crashed;
        }
    }

    fn begin(&mut self, sim: &mut Sim<'_>, link: Link, fault: Fault) {
        let number = self.record.disturb(Some(link.caller), link.server, sim.elapsed());
        self.open.push((link, number));
        let (caller, server) = (caller_name(link.caller), server_name(link.server));
        match fault {
            Fault::Partition => sim.partition(caller, server),
            Fault::PartitionThere => sim.partition_oneway(caller, server),
            Fault::PartitionBack => sim.partition_oneway(server, caller),
            Fault::Hold => sim.hold(caller, server),
            Fault::Lose => sim.set_link_fail_rate(caller, server, LOSS),
        }
    }

    /// Ends whatever fault the link has.
    fn end(&mut self, sim: &mut Sim<'_>, link: Link) {
        let (caller, server) = (caller_name(link.caller), server_name(link.server));
        sim.set_link_fail_rate(caller.clone(), server.clone(), 0.0);
        sim.release(caller.clone(), server.clone());
        sim.repair(caller, server);
        if let Some(at) = self.open.iter().position(|(open, _)| *open == link) {
            self.record.calm(self.open.swap_remove(at).1, sim.elapsed());
        }
    }
}

fn peers() -> impl Iterator<Item = String> {
    (0..CALLERS).map(caller_name).chain(["operator".to_owned()])
}
