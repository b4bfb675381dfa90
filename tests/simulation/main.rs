//! The whole service in a simulated network: real clients, services, pools and drains on a virtual clock, with one
//! source of randomness. Each seed has its own load, latencies, partitions, losses, crashes and drains.
//!
//! Each seed runs in a process of its own, so that seeds do not influence each other, and prints its trace. A seed
//! fails with the faults that are found: in each job (`oracle.rs`), and in the accounts, the drain and the queues of
//! each service (`accounting.rs`). Seeds of `day.rs` run replicas that share a store of detached jobs. Environment
//! variables:
//!
//! - `SIMULATION_SEED=17` runs only that seed, in this process, and prints its trace. `SIMULATION_DAY=17` runs a day.
//! - `SIMULATION_SEEDS=5000` runs 5000 seeds instead of 40, and `SIMULATION_DAYS=50` runs 50 days instead of one.
//!   `.ci/run` runs 200 and 2. All ends of jobs must occur from 200 and 3 on, and a day runs twice from 3 on.
//! - `SIMULATION_JOB=call-17`, together with `SIMULATION_DAY`, prints the events of that job.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a failed step is the failure of the test, and this is a harness of its own"
)]

mod accounting;
mod calls;
mod day;
mod operator;
mod oracle;
mod record;
mod run;
mod server;
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

/// A kind of seeds: calls or days.
#[derive(Clone, Copy)]
struct Seeds {
    /// The environment variable with the number of a single seed.
    one: &'static str,
    /// The environment variable with the number of seeds to run.
    many: &'static str,
    by_default: u64,
    in_ci: u64,
    /// Ends of jobs that must occur in the seeds of CI.
    ends: &'static [&'static str],
}

const CALLS: Seeds = Seeds {
    one: "SIMULATION_SEED",
    many: "SIMULATION_SEEDS",
    by_default: 40,
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
    by_default: 1,
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
/// One of so many seeds runs twice to compare their traces.
const COMPARED: u64 = 32;

impl Seeds {
    fn number(self) -> u64 {
        number(self.many).unwrap_or(self.by_default)
    }

    fn is_as_in_ci(self) -> bool {
        self.number() >= self.in_ci
    }
}

fn main() -> ExitCode {
    if let Some(seed) = number(CALLS.one) {
        return run::run(seed);
    }
    if let Some(seed) = number(DAYS.one) {
        return day::run(seed);
    }
    let trials = vec![
        Trial::test("every_call_ends_once_and_all_accounts_agree", || all_hold(CALLS)),
        Trial::test("each_detached_job_of_a_day_ends_once", || all_hold(DAYS)),
        Trial::test("the_trace_of_a_seed_is_reproducible", traces_agree),
        Trial::test("the_trace_of_a_day_is_reproducible", days_agree).with_ignored_flag(!DAYS.is_as_in_ci()),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} must be a number, not {text:?}")))
}

/// Runs all seeds of one kind.
///
/// Of calls: every call ends once or its connection broke. Every accepted job runs at most once and ends once. The
/// counts of the servers, their receipts and the answers to their callers agree.
///
/// Of days: each tick creates one job. Each job ends once and in time, and is removed in time.
fn all_hold(sort: Seeds) -> Result<(), Failed> {
    let seeds = sort.number();
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
    println!("ends of the jobs of {seeds} seeds: {ends:?}");
    match sort.ends.iter().find(|end| sort.is_as_in_ci() && !ends.contains_key(**end)) {
        None => Ok(()),
        Some(end) => Err(format!("no job ended as {end}: {ends:?}").into()),
    }
}

fn add_ends(ends: &mut BTreeMap<String, u64>, ended: &Output) {
    let printed = String::from_utf8_lossy(&ended.stdout);
    let lines = printed.lines().filter_map(|line| line.strip_prefix(run::ENDS)?.trim().rsplit_once(' '));
    for (end, count) in lines {
        *ends.entry(end.to_owned()).or_default() += count.parse::<u64>().unwrap();
    }
}

/// Two runs of a seed are equal, to the byte on the wire and the microsecond.
fn traces_agree() -> Result<(), Failed> {
    for seed in 1..=CALLS.number().div_ceil(COMPARED) {
        let [one, two] = [simulate(CALLS, seed).stdout, simulate(CALLS, seed).stdout];
        let [one, two] = [&one, &two].map(|trace| String::from_utf8_lossy(trace));
        if one.lines().count() < 100 {
            return Err(format!("seed {seed} has no trace").into());
        }
        if one != two {
            let at = one.lines().zip(two.lines()).find(|(one, two)| one != two);
            return Err(format!("seed {seed} has two traces, which differ first at {at:?}").into());
        }
    }
    Ok(())
}

/// Two runs of a day are equal, to the millisecond.
fn days_agree() -> Result<(), Failed> {
    let [one, two] = [0; 2].map(|seed| simulate(DAYS, seed).stdout);
    if one == two { Ok(()) } else { Err("two runs of the same day differ".into()) }
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
