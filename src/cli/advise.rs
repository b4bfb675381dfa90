//! `waterwheel advise`: measures a server and advises sizes. `advise_formulas.rs` has the formulas.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use clap::Args;
use serde::Serialize;
use tokio::time::sleep;

use super::{
    access::ServerArgs,
    advise_formulas::{Advice, Goals, KindTimes, advise, arrived},
    console::{Console, STRONG, paint},
    failure::{Exit, Failure},
    output::{duration, exact, sanitized, short_duration},
    stats,
    values::{any_duration, duration_in, number_in},
};
use crate::proto::Stats;

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
    server: ServerArgs,
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
        let what = format!("the server at {} restarted while it was watched", args.server.server);
        Failure::new(Exit::Failed, what, "run the command again")
    };
    let watched = duration(after.uptime.as_ref()).checked_sub(duration(before.uptime.as_ref()));
    let watched = watched.filter(|watched| !watched.is_zero()).ok_or_else(restarted)?;
    let goals = Goals { busy: args.busy, max_wait: args.max_wait };
    let earlier: BTreeMap<&str, _> = before.pools.iter().map(|pool| (pool.name.as_str(), pool)).collect();
    let mut report =
        Report { watched_s: watched.as_secs_f64(), busy_goal: args.busy, pools: Vec::new(), idle: Vec::new() };
    for pool in &after.pools {
        let before = earlier.get(pool.name.as_str()).ok_or_else(restarted)?;
        match advise(before, pool, watched, &goals) {
            Some(advice) => report.pools.push(advice),
            None => report.idle.push(Idle { pool: pool.name.clone(), arrived: arrived(before, pool) }),
        }
    }
    Ok(report)
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
    let Advice { queue_jobs, queue_jobs_advised, kinds, pool: _, .. } = advice;
    let name = sanitized(&advice.pool);
    let run = exact(seconds(*mean_run_s));
    let longest = short_duration(seconds(*max_wait_s));
    let mut lines = vec![
        format!("pool {}", paint(STRONG, &name)),
        format!(
            "  arrivals  {arrived} jobs, {refused} of them refused because the pool is too small: {arrivals_per_s:.1}/s"
        ),
        format!("  run time  {run} on average of {ended} jobs that ended"),
    ];
    lines.extend(kinds.iter().map(kind));
    lines.extend([
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
    ]);
    lines.join("\n") + "\n"
}

fn kind(kind: &KindTimes) -> String {
    let KindTimes { kind, count, run_p50_s, run_p99_s, wait_p99_s } = kind;
    format!(
        "            {}: {count} since the start, run p50 {} p99 {}, wait p99 {}",
        sanitized(kind),
        exact(seconds(*run_p50_s)),
        exact(seconds(*run_p99_s)),
        exact(seconds(*wait_p99_s)),
    )
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

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{AdviseArgs, run};
    use crate::{
        cli::{
            failure::Exit,
            fake::{self, Line, Ran, ReadBy, Script},
        },
        proto::{
            Distribution, JobCounts, KindStats, PoolStats, QueueStats, RejectedCount, Stats, WorkerState, WorkerStats,
        },
    };

    /// A pool of 4 workers after so many seconds: 60 jobs came in each, 20 of them were refused, and runs took 100 ms.
    fn snapshot(seconds: u64) -> Stats {
        let rejected = |reason: &str, count| RejectedCount { reason: reason.to_owned(), count };
        let worker = |id| WorkerStats {
            id,
            state: WorkerState::Busy as i32,
            completed: 9 * seconds,
            failed: seconds,
            total_run_time: Some(format!("{seconds}s").parse().unwrap()),
            ..WorkerStats::default()
        };
        let runs =
            Distribution { count: 40 * seconds, p50: Some("0.070s".parse().unwrap()), ..Distribution::default() };
        Stats {
            uptime: Some(format!("{}s", 1000 + seconds).parse().unwrap()),
            pools: vec![PoolStats {
                name: "io".to_owned(),
                queue: Some(QueueStats { jobs_capacity: 64, ..QueueStats::default() }),
                jobs: Some(JobCounts {
                    accepted: 40 * seconds,
                    rejected: vec![rejected("QUEUE_FULL", 20 * seconds), rejected("INVALID_FIELD", 7 * seconds)],
                    ..JobCounts::default()
                }),
                kinds: vec![KindStats {
                    name: "resize".to_owned(),
                    queue_wait: Some(Distribution::default()),
                    run_time: Some(runs),
                    ..KindStats::default()
                }],
                workers: (0..4).map(worker).collect(),
                ..PoolStats::default()
            }],
            ..Stats::default()
        }
    }

    async fn advise(line: &[&str], snapshots: Vec<Stats>) -> Ran {
        let line = Line::<AdviseArgs>::try_parse_from(["advise", "--over", "100ms"].iter().chain(line)).unwrap();
        let format = line.format;
        fake::run(Script { snapshots, ..Script::default() }, ReadBy::Program, format, async |address, console| {
            let mut args = line.args;
            args.server.server = address;
            run(args, console).await
        })
        .await
    }

    #[tokio::test]
    async fn each_step_is_shown() {
        let ran = advise(&[], vec![snapshot(10), snapshot(20)]).await;
        let text = ran.text();
        for step in [
            "watched for 10s",
            "600 jobs, 200 of them refused because the pool is too small: 60.0/s",
            "100ms on average of 400 jobs",
            "resize: 800 since the start, run p50 70ms",
            "60.0/s × 100ms = 6.00 workers",
            "6.00 / 0.7 busy = 9; there are 4",
            "9 workers / 100ms × 2.0s of wait = 180 jobs (L = λ · W); it holds 64",
            "set pool.io.workers = 9",
            "set pool.io.queue.jobs = 180",
        ] {
            assert!(text.contains(step), "{step}: {text}");
        }
        assert_eq!(ran.exit, Exit::Done);
    }

    #[tokio::test]
    async fn goals_are_the_operators() {
        let ran =
            advise(&["--busy", "0.5", "--max-wait", "500ms", "--output", "json"], vec![snapshot(1), snapshot(2)]).await;
        let report: serde_json::Value = serde_json::from_str(&ran.text()).unwrap();
        let pool = &report["pools"][0];
        assert_eq!(
            (pool["workers_advised"].as_u64(), pool["queue_jobs_advised"].as_u64()),
            (Some(12), Some(60)),
            "{pool}"
        );
        assert_eq!(pool["utilization"].as_f64(), Some(0.5), "{pool}");
    }

    #[tokio::test]
    async fn a_pool_that_rests_is_named_without_advice() {
        let later = Stats { uptime: Some("1011s".parse().unwrap()), ..snapshot(10) };
        let ran = advise(&[], vec![snapshot(10), later]).await;
        assert!(ran.text().contains("pool io: no job arrived; watch"), "{}", ran.text());
        let mut busy = Stats { uptime: Some("1011s".parse().unwrap()), ..snapshot(10) };
        busy.pools[0].jobs.as_mut().unwrap().accepted += 3;
        let ran = advise(&[], vec![snapshot(10), busy]).await;
        assert!(ran.text().contains("pool io: no job ended; watch"), "{}", ran.text());
    }

    #[tokio::test]
    async fn workers_that_retired_do_not_count() {
        let mut earlier = snapshot(10);
        let gone = WorkerStats {
            id: 9,
            completed: 5000,
            total_run_time: Some("9000s".parse().unwrap()),
            ..WorkerStats::default()
        };
        earlier.pools[0].workers.push(gone);
        let ran = advise(&[], vec![earlier, snapshot(20)]).await;
        assert!(ran.text().contains("100ms on average of 400 jobs"), "{}", ran.text());
    }

    #[tokio::test]
    async fn a_restart_between_the_snapshots_is_reported() {
        let ran = advise(&[], vec![snapshot(20), snapshot(10)]).await;
        assert!(ran.err.contains("restarted while it was watched"), "{}", ran.err);
    }
}
