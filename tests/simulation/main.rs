//! The whole service in a simulated network: real clients, real services, pools and drains, on one clock and one source
//! of chance. Each seed is another load with other latencies, partitions, losses, crashes and drains in the middle.
//!
//! Each seed runs in a process of its own, so that nothing of one is left for the next, and prints its trace. What the
//! oracle finds fails it: of each job (`oracle.rs`), in the books of each service (`books.rs`), of each drain
//! (`drained.rs`), and in the queues after each step (`held.rs`). In the environment:
//!
//! - `SIMULATION_SEED=17` runs that seed alone, in this process, and prints its trace.
//! - `SIMULATION_SEEDS=5000` runs so many seeds instead of 200.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a failed step is the failure of the test, and this is a harness of its own"
)]

mod books;
mod calls;
mod disturbance;
mod drained;
mod frames;
mod held;
mod operator;
mod oracle;
mod plan;
mod record;
mod run;
mod server;
mod told;
mod wire;

use std::{
    collections::BTreeMap,
    env,
    process::{Command, ExitCode, Output},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

use libtest_mimic::{Arguments, Failed, Trial};
use parking_lot::Mutex;

const SEED: &str = "SIMULATION_SEED";
const SEEDS: &str = "SIMULATION_SEEDS";
const SEEDS_IN_CI: u64 = 200;
/// The ways to end that the seeds of CI must bring about.
const ENDS: [&str; 16] = [
    "COMPLETED",
    "DEADLINE_UNREACHABLE",
    "DRAINED",
    "DRAINING",
    "DRAIN_KILLED",
    "EXPIRED_IN_QUEUE",
    "HANDLER_FAILED",
    "HANDLER_PANICKED",
    "QUEUE_FULL",
    "RUN_TIMEOUT",
    "SHED",
    "TENANT_SHARE",
    "broken",
    "left",
    "timer",
    "unsaid",
];
/// Seeds whose traces are compared.
const COMPARED: u64 = 6;

fn main() -> ExitCode {
    if let Some(seed) = number(SEED) {
        return run::run(seed);
    }
    let seeds = number(SEEDS).unwrap_or(SEEDS_IN_CI);
    let trials = vec![
        Trial::test("the_books_agree_whatever_the_network_does", move || all_hold(seeds)),
        Trial::test("a_seed_has_one_trace", traces_agree),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is to be a number, not {text:?}")))
}

/// Every call ends once or its connection broke, every accepted job runs at most once and ends once, and the books of
/// the servers, their receipts and their callers agree, for each of so many seeds.
fn all_hold(seeds: u64) -> Result<(), Failed> {
    let next = AtomicU64::new(1);
    let failed = Mutex::new(Vec::new());
    let ends = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed > seeds {
                        return;
                    }
                    let ended = simulate(seed);
                    add_ends(&mut ends.lock(), &ended);
                    if !ended.status.success() {
                        failed.lock().push(failure(seed, &ended));
                    }
                }
            });
        }
    });
    let (failed, ends) = (failed.into_inner(), ends.into_inner());
    if !failed.is_empty() {
        return Err(format!("{} of {seeds} seeds failed\n{}", failed.len(), failed.join("\n")).into());
    }
    println!("jobs of {seeds} seeds by their end: {ends:?}");
    match ENDS.iter().find(|end| seeds >= SEEDS_IN_CI && !ends.contains_key(**end)) {
        None => Ok(()),
        Some(end) => Err(format!("no job ended the way {end}: {ends:?}").into()),
    }
}

fn add_ends(ends: &mut BTreeMap<String, u64>, ended: &Output) {
    let printed = String::from_utf8_lossy(&ended.stdout);
    let lines = printed.lines().filter_map(|line| line.strip_prefix(run::ENDS)?.trim().split_once(' '));
    for (end, count) in lines {
        *ends.entry(end.to_owned()).or_default() += count.parse::<u64>().unwrap();
    }
}

/// The same seed does the same twice, to the byte on the wire and the microsecond.
fn traces_agree() -> Result<(), Failed> {
    for seed in 1..=COMPARED {
        let [one, two] = [simulate(seed).stdout, simulate(seed).stdout];
        let [one, two] = [&one, &two].map(|trace| String::from_utf8_lossy(trace));
        if one.lines().count() < 100 {
            return Err(format!("seed {seed} has no trace").into());
        }
        if one != two {
            let at = one.lines().zip(two.lines()).find(|(one, two)| one != two);
            return Err(format!("seed {seed} has two traces, which part at {at:?}").into());
        }
    }
    Ok(())
}

/// Runs one seed in a process of its own.
fn simulate(seed: u64) -> Output {
    let this = env::current_exe().unwrap();
    Command::new(this).env(SEED, seed.to_string()).output().unwrap()
}

fn failure(seed: u64, ended: &Output) -> String {
    let said = String::from_utf8_lossy(&ended.stderr);
    let replay = format!("{SEED}={seed} cargo test --test simulation");
    format!("seed {seed}, {}: replay with\n  {replay}\n{said}", ended.status)
}
