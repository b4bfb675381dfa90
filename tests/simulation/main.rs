//! The whole service in a simulated network: real clients, real services, pools and drains, on one clock and one source
//! of chance. Each seed is another load with other latencies, partitions, losses, crashes and drains in the middle.
//!
//! Each seed runs in a process of its own, so that nothing of one is left for the next, and prints its trace. What the
//! oracle finds fails it: of each job (`oracle.rs`), in the books of each service (`books.rs`), of each drain
//! (`drained.rs`), and in the queues after each step (`held.rs`). Seeds of `day.rs` are replicas that share a store of
//! detached jobs. In the environment:
//!
//! - `SIMULATION_SEED=17` runs that seed alone, in this process, and prints its trace. `SIMULATION_DAY=17` runs a day.
//! - `SIMULATION_SEEDS=5000` runs so many seeds instead of 200, and `SIMULATION_DAYS=50` so many days instead of 3.
//! - `SIMULATION_JOB=call-17` prints what becomes of a job in the day that runs alone.

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
mod day;
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

/// Seeds of one sort.
#[derive(Clone, Copy)]
struct Seeds {
    /// The variable that says which seed is to run alone.
    one: &'static str,
    /// The variable that says how many are to run.
    many: &'static str,
    in_ci: u64,
    /// What the seeds of CI must bring about.
    ends: &'static [&'static str],
}

const CALLS: Seeds = Seeds {
    one: "SIMULATION_SEED",
    many: "SIMULATION_SEEDS",
    in_ci: 200,
    ends: &[
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
    ],
};
const DAYS: Seeds = Seeds {
    one: "SIMULATION_DAY",
    many: "SIMULATION_DAYS",
    in_ci: 3,
    ends: &[
        "cancelled",
        "existing",
        "expired",
        "failed",
        "fired already",
        "lost",
        "released",
        "skipped",
        "succeeded",
        "tried again",
        "void",
    ],
};
/// Seeds whose traces are compared.
const COMPARED: u64 = 6;

fn main() -> ExitCode {
    if let Some(seed) = number(CALLS.one) {
        return run::run(seed);
    }
    if let Some(seed) = number(DAYS.one) {
        return day::run(seed);
    }
    let trials = vec![
        Trial::test("the_books_agree_whatever_the_network_does", || all_hold(CALLS)),
        Trial::test("each_job_of_a_day_ends_once_whatever_befalls_the_replicas", || all_hold(DAYS)),
        Trial::test("a_seed_has_one_trace", traces_agree),
        Trial::test("a_day_has_one_trace", days_agree),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is to be a number, not {text:?}")))
}

/// Of calls: every call ends once or its connection broke, every accepted job runs at most once and ends once, and the
/// books of the servers, their receipts and their callers agree. Of days: each tick creates one job, and each job ends
/// once, in time, and is removed in time.
fn all_hold(sort: Seeds) -> Result<(), Failed> {
    let seeds = number(sort.many).unwrap_or(sort.in_ci);
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
                    let ended = simulate(sort, seed);
                    add_ends(&mut ends.lock(), &ended);
                    if !ended.status.success() {
                        failed.lock().push(failure(sort, seed, &ended));
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
    match sort.ends.iter().find(|end| seeds >= sort.in_ci && !ends.contains_key(**end)) {
        None => Ok(()),
        Some(end) => Err(format!("no job ended the way {end}: {ends:?}").into()),
    }
}

fn add_ends(ends: &mut BTreeMap<String, u64>, ended: &Output) {
    let printed = String::from_utf8_lossy(&ended.stdout);
    let lines = printed.lines().filter_map(|line| line.strip_prefix(run::ENDS)?.trim().rsplit_once(' '));
    for (end, count) in lines {
        *ends.entry(end.to_owned()).or_default() += count.parse::<u64>().unwrap();
    }
}

/// The same seed does the same twice, to the byte on the wire and the microsecond.
fn traces_agree() -> Result<(), Failed> {
    for seed in 1..=COMPARED {
        let [one, two] = [simulate(CALLS, seed).stdout, simulate(CALLS, seed).stdout];
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

/// The same day does the same twice, to the millisecond.
fn days_agree() -> Result<(), Failed> {
    let [one, two] = [0; 2].map(|seed| simulate(DAYS, seed).stdout);
    if one == two { Ok(()) } else { Err("one seed is two days".into()) }
}

/// Runs one seed in a process of its own.
fn simulate(sort: Seeds, seed: u64) -> Output {
    let this = env::current_exe().unwrap();
    Command::new(this).env(sort.one, seed.to_string()).output().unwrap()
}

fn failure(sort: Seeds, seed: u64, ended: &Output) -> String {
    let said = String::from_utf8_lossy(&ended.stderr);
    let replay = format!("{}={seed} cargo test --test simulation", sort.one);
    format!("seed {seed}, {}: replay with\n  {replay}\n{said}", ended.status)
}
