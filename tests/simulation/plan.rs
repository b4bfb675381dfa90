//! The plan of a seed: its load, drains, crashes and network faults.

use std::{ops::Range, time::Duration};

use rand::{RngExt, SeedableRng, rngs::StdRng};

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
