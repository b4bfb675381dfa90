//! `waterwheel advise`: measures a server, and advises sizes by Little's law and Erlang's C formula.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use clap::Args;
use serde::Serialize;
use tokio::time::sleep;

use super::{
    access::ReadArgs,
    connect::Target,
    console::{Console, STRONG, paint},
    failure::{Exit, Failure},
    flags::{any_duration, duration_in, number_in},
    output::{duration, exact, sanitized, seconds, short_duration},
    stats,
};
use crate::proto::{PoolStats, Stats, WorkerStats};

/// Reasons of refusals that a larger pool would have prevented.
const POOL_TOO_SMALL: [&str; 3] = ["QUEUE_FULL", "DEADLINE_UNREACHABLE", "TENANT_SHARE"];
/// Default of the longest wait, in mean run times. Admission uses the same bound.
const MAX_WAIT_IN_RUNS: f64 = 20.0;
/// Lower bound of that default, in seconds.
const MIN_MAX_WAIT_S: f64 = 0.1;

/// Advise sizes of pools and queues from what a server measures.
///
/// It compares two snapshots: how many jobs arrived, and how long they ran. From these, Little's law gives
/// the busy workers and the queue length; each step is shown. Watch the server under its usual load, at its busiest
/// time.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel advise --over 1s")]
pub(super) struct AdviseArgs {
    /// Advise on this pool only.
    #[arg(long, value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: String,
    /// How long to watch the server.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration_in(Duration::from_millis(100)..=Duration::from_secs(86_400)))]
    over: Duration,
    /// Share of the time for which the workers should be busy, from 0.05 to 0.95; the rest is for bursts.
    #[arg(long, value_name = "SHARE", default_value = "0.7", value_parser = number_in(0.05..=0.95))]
    busy: f64,
    /// Longest that a job should wait in the queue. [default: 20 mean run times, 100ms at the least]
    #[arg(long, value_name = "TIME", value_parser = any_duration)]
    max_wait: Option<Duration>,
    #[command(flatten)]
    server: ReadArgs,
}

/// The figures of the observed time, and the advice for each pool.
#[derive(Debug, Serialize)]
struct Report {
    watched_s: f64,
    busy_goal: f64,
    pools: Vec<Advice>,
    /// Pools in which no job ended.
    idle: Vec<Idle>,
}

/// A pool in which no job ended.
#[derive(Debug, Serialize)]
struct Idle {
    pool: String,
    /// Jobs that arrived.
    arrived: u64,
}

/// Figures of a pool during the observed time, and the advice.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Advice {
    pool: String,
    /// Arrived jobs, and those among them that were refused because the pool is too small.
    arrived: u64,
    refused: u64,
    arrivals_per_s: f64,
    /// Jobs that ended after a run, and their mean run time.
    ended: u64,
    mean_run_s: f64,
    /// Arrivals per second × mean run time: busy workers on average, if all arrivals run.
    busy_workers: f64,
    workers: usize,
    workers_advised: usize,
    /// For the advised number of workers: their busy share, the share of jobs that wait, and the mean wait (Erlang's C
    /// formula).
    utilization: f64,
    waiting_share: f64,
    mean_wait_s: f64,
    max_wait_s: f64,
    queue_jobs: u64,
    /// Jobs that the advised workers start within the longest wait.
    queue_jobs_advised: u64,
}

pub(super) async fn run(args: AdviseArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let before = stats::ask(&args.server, args.pool.clone()).await?;
    sleep(args.over).await;
    let after = stats::ask(&args.server, args.pool.clone()).await?;
    let report = compare(&args, &before, &after)?;
    console.report(&report, || text(&report)).await?;
    Ok(Exit::Done)
}

fn compare(args: &AdviseArgs, before: &Stats, after: &Stats) -> Result<Report, Failure> {
    let restarted = || {
        let what = format!("the server at {} restarted while it was watched", args.server.address());
        Failure::new(Exit::Failed, what, "run the command again")
    };
    let watched = duration(after.uptime).checked_sub(duration(before.uptime));
    let watched = watched.filter(|watched| !watched.is_zero()).ok_or_else(restarted)?;
    let earlier: BTreeMap<&str, _> = before.pools.iter().map(|pool| (pool.name.as_str(), pool)).collect();
    let mut report =
        Report { watched_s: watched.as_secs_f64(), busy_goal: args.busy, pools: Vec::new(), idle: Vec::new() };
    for pool in &after.pools {
        let before = earlier.get(pool.name.as_str()).ok_or_else(restarted)?;
        match advise(before, pool, watched, args) {
            Some(advice) => report.pools.push(advice),
            None => report.idle.push(Idle { pool: pool.name.clone(), arrived: arrived(before, pool) }),
        }
    }
    Ok(report)
}

/// The advice from two snapshots of a pool; `None` if no job arrived or ended between them.
fn advise(before: &PoolStats, after: &PoolStats, watched: Duration, args: &AdviseArgs) -> Option<Advice> {
    let seconds = watched.as_secs_f64();
    let refused = refused(after).saturating_sub(refused(before));
    let arrived = arrived(before, after);
    let (ended, ran) = worked(before, after);
    if arrived == 0 || ended == 0 || ran.is_zero() {
        return None;
    }
    let arrivals_per_s = arrived as f64 / seconds;
    let mean_run_s = ran.as_secs_f64() / ended as f64;
    let busy_workers = arrivals_per_s * mean_run_s;
    let workers_advised = round_up(busy_workers / args.busy).max(1);
    let default_wait = (MAX_WAIT_IN_RUNS * mean_run_s).max(MIN_MAX_WAIT_S);
    let max_wait_s = args.max_wait.map_or(default_wait, |wait| wait.as_secs_f64());
    let waiting_share = erlang_c(workers_advised, busy_workers);
    Some(Advice {
        pool: after.name.clone(),
        arrived,
        refused,
        arrivals_per_s,
        ended,
        mean_run_s,
        busy_workers,
        workers: stats::live_workers(after),
        workers_advised,
        utilization: busy_workers / workers_advised as f64,
        waiting_share,
        mean_wait_s: waiting_share * mean_run_s / (workers_advised as f64 - busy_workers),
        max_wait_s,
        queue_jobs: after.queue.map_or(0, |queue| queue.jobs_capacity),
        queue_jobs_advised: round_up(workers_advised as f64 / mean_run_s * max_wait_s).max(1) as u64,
    })
}

/// Jobs that arrived between the snapshots. Of the refused ones, only those count that a larger pool would have
/// accepted.
fn arrived(before: &PoolStats, after: &PoolStats) -> u64 {
    (accepted(after) + refused(after)).saturating_sub(accepted(before) + refused(before))
}

/// Share of the arrivals that find all `workers` busy, if `busy` of them are busy on average: Erlang's C formula.
///
/// It holds for independent arrivals and exponential run times.
fn erlang_c(workers: usize, busy: f64) -> f64 {
    // Erlang's B formula, by recursion over the number of workers; it stays between 0 and 1.
    let blocked = (1..=workers).fold(1.0, |blocked, n| busy * blocked / (n as f64 + busy * blocked));
    let utilization = busy / workers as f64;
    blocked / (1.0 - utilization * (1.0 - blocked))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded up, and not negative")]
fn round_up(number: f64) -> usize {
    // Ignore rounding error.
    (number - 1e-9).ceil() as usize
}

fn accepted(pool: &PoolStats) -> u64 {
    pool.jobs.as_ref().map_or(0, |jobs| jobs.accepted)
}

fn refused(pool: &PoolStats) -> u64 {
    let counts = pool.jobs.iter().flat_map(|jobs| &jobs.rejected);
    counts.filter(|count| POOL_TOO_SMALL.contains(&count.reason.as_str())).map(|count| count.count).sum()
}

/// Jobs that ended between the snapshots, and their total run time. Retired workers are not counted.
fn worked(before: &PoolStats, after: &PoolStats) -> (u64, Duration) {
    let sums = |worker: &WorkerStats| (worker.completed + worker.failed, duration(worker.total_run_time));
    let earlier: BTreeMap<u32, _> = before.workers.iter().map(|worker| (worker.id, sums(worker))).collect();
    after.workers.iter().fold((0, Duration::ZERO), |(ended, ran), worker| {
        let (jobs, time) = sums(worker);
        let (jobs_before, time_before) = earlier.get(&worker.id).copied().unwrap_or_default();
        (ended + jobs.saturating_sub(jobs_before), ran + time.saturating_sub(time_before))
    })
}

fn text(report: &Report) -> String {
    let mut text = format!("watched for {}\n", short_duration(seconds(report.watched_s)));
    for advice in &report.pools {
        text.push('\n');
        text.push_str(&pool(advice, report.busy_goal));
    }
    for Idle { pool, arrived } in &report.idle {
        let what = if *arrived == 0 { "no job arrived" } else { "no job ended" };
        writeln!(text, "\npool {}: {what}; watch it under load, or for longer with --over", sanitized(pool))
            .expect("a string takes all");
    }
    text
}

fn pool(advice: &Advice, busy_goal: f64) -> String {
    let Advice { arrived, refused, arrivals_per_s, ended, mean_run_s, busy_workers, .. } = advice;
    let Advice { workers, workers_advised, utilization, waiting_share, mean_wait_s, max_wait_s, .. } = advice;
    let Advice { queue_jobs, queue_jobs_advised, .. } = advice;
    let name = sanitized(&advice.pool);
    let run = exact(seconds(*mean_run_s));
    let longest = short_duration(seconds(*max_wait_s));
    let lines = [
        format!("pool {}", paint(STRONG, &name)),
        format!(
            "  arrivals  {arrived} jobs, {refused} of them refused because the pool is too small: {arrivals_per_s:.1}/s"
        ),
        format!("  run time  {run} on average of {ended} jobs that ended"),
        format!("  busy      {arrivals_per_s:.1}/s × {run} = {busy_workers:.2} workers (Little's law: L = λ · S)"),
        format!("  workers   {busy_workers:.2} / {busy_goal} busy = {workers_advised}; there are {workers}"),
        format!(
            "  waiting   {:.0} % of the time busy; {:.1} % of the jobs wait, {} on the mean of all (Erlang C)",
            utilization * 100.0,
            waiting_share * 100.0,
            exact(seconds(*mean_wait_s)),
        ),
        format!(
            "  queue     {workers_advised} workers / {run} × {longest} of wait = {queue_jobs_advised} jobs (L = λ · W); it holds {queue_jobs}"
        ),
        format!("  advice    {}", settings(advice)),
    ];
    lines.join("\n") + "\n"
}

/// Settings for the configuration. A longer queue does no harm, because admission limits the wait in it.
fn settings(advice: &Advice) -> String {
    let name = sanitized(&advice.pool);
    let mut settings = Vec::new();
    if advice.workers < advice.workers_advised {
        settings.push(format!(
            "set pool.{name}.workers = {}; for work that takes CPU, no more than the cores; beyond that, add a machine",
            advice.workers_advised
        ));
    } else if advice.workers > 2 * advice.workers_advised {
        settings.push(format!("pool.{name}.workers = {} is enough for this load", advice.workers_advised));
    }
    if advice.queue_jobs < advice.queue_jobs_advised {
        settings.push(format!("set pool.{name}.queue.jobs = {}", advice.queue_jobs_advised));
    }
    if settings.is_empty() { "leave workers and queue as they are".to_owned() } else { settings.join("; ") }
}

#[cfg(test)]
#[path = "tests/advise.rs"]
mod tests;
