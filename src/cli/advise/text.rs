//! The advice as text.

use std::{fmt::Write, time::Duration};

use super::{
    Idle, Report,
    formulas::{Advice, KindStats},
};
use crate::cli::{
    console::{STRONG, paint},
    output::{exact, plain, rough},
};

pub(super) fn report(report: &Report) -> String {
    let mut text = format!("watched for {}\n", rough(seconds(report.watched_s)));
    for advice in &report.pools {
        text.push('\n');
        text.push_str(&pool(advice, report.busy_goal));
    }
    for Idle { pool, arrived } in &report.idle {
        let what = if *arrived == 0 { "no job arrived" } else { "no job ended" };
        writeln!(text, "\npool {}: {what}; watch it under load, or for longer with --over", plain(pool))
            .expect("a string takes all");
    }
    text
}

fn pool(advice: &Advice, busy_goal: f64) -> String {
    let Advice { arrived, refused, arrivals_per_s, ended, mean_run_s, busy_workers, .. } = advice;
    let Advice { workers, workers_advised, utilization, waiting_share, mean_wait_s, max_wait_s, .. } = advice;
    let Advice { queue_jobs, queue_jobs_advised, kinds, pool: _, .. } = advice;
    let name = plain(&advice.pool);
    let run = exact(seconds(*mean_run_s));
    let longest = rough(seconds(*max_wait_s));
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

fn kind(kind: &KindStats) -> String {
    let KindStats { kind, count, run_p50_s, run_p99_s, wait_p99_s } = kind;
    format!(
        "            {}: {count} since the start, run p50 {} p99 {}, wait p99 {}",
        plain(kind),
        exact(seconds(*run_p50_s)),
        exact(seconds(*run_p99_s)),
        exact(seconds(*wait_p99_s)),
    )
}

/// Settings for the configuration. A longer queue does no harm, because admission bounds the wait in it.
fn settings(advice: &Advice) -> String {
    let name = plain(&advice.pool);
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
