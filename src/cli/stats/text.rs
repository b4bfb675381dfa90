//! A snapshot of `stats` as text.

use super::runners;
use crate::{
    cli::{
        console::{BAD, FAINT, GOOD, STRONG, WARN, paint},
        output::{
            bytes, duration, percent, plain, rough,
            table::{Align, table},
        },
        steer,
    },
    proto::{
        Distribution, FactoryStats, JobCounts, KindStats, LimitBound, LimitStats, Phase, PoolStats, QueueStats, Stats,
        WorkerState, WorkerStats,
    },
};

/// The snapshot, one block per pool, ending in a line end.
pub(super) fn snapshot(stats: &Stats) -> String {
    let uptime = rough(duration(stats.uptime.as_ref()));
    let mut lines = vec![format!("{}  up {uptime}", phase(stats.phase()))];
    for pool in &stats.pools {
        lines.push(String::new());
        lines.extend(pool_block(pool));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn pool_block(pool: &PoolStats) -> Vec<String> {
    let workers = pool.workers.iter().filter(|it| counts_as_worker(it)).count();
    let mut lines = vec![
        format!(
            "{}  {}  {} of {workers} workers busy, {}",
            paint(STRONG, format!("pool {}", plain(&pool.name))),
            phase(pool.phase()),
            pool.in_flight,
            percent(pool.utilization),
        ),
        format!("  queue    {}", queue(&pool.queue.unwrap_or_default())),
    ];
    if let Some(paused) = &pool.paused {
        let paused = format!("for {}: no job starts until \"waterwheel resume\"", rough(duration(Some(paused))));
        lines.push(format!("  paused   {}", paint(WARN, paused)));
    }
    if let Some(size) = pool.size.as_ref().filter(|size| size.min < size.max || size.retiring > 0) {
        lines.push(format!("  size     {}", steer::size(size)));
    }
    let jobs = pool.jobs.clone().unwrap_or_default();
    lines.push(format!("  jobs     {}", ends(&jobs)));
    if !jobs.rejected.is_empty() {
        lines.push(format!("  refused  {}", refusals(&jobs)));
    }
    if pool.slow_polls > 0 {
        let polls = format!("{} handler polls blocked their thread for too long", pool.slow_polls);
        lines.push(format!("  slow     {}", paint(WARN, polls)));
    }
    lines.extend(pool.kinds.iter().filter_map(factory));
    lines.extend(indented(kinds(&pool.kinds)));
    lines.extend(indented(runners::detached(&pool.kinds)));
    lines.extend(indented(limits(&pool.kinds).collect()));
    lines.extend(indented(runners::programs(&pool.programs)));
    lines.extend(indented(runners::attached(&pool.attached)));
    lines.extend(indented(workers_table(&pool.workers)));
    lines
}

fn factory(kind: &KindStats) -> Option<String> {
    let FactoryStats { failures: _, in_a_row, retry_in } = kind.factory.as_ref().filter(|it| it.in_a_row > 0)?;
    let name = plain(&kind.name);
    let retry = rough(duration(retry_in.as_ref()));
    let text = format!("no handler of {name} could be made, {in_a_row} times in a row; next try in {retry}");
    Some(format!("  failing  {}", paint(BAD, text)))
}

fn phase(phase: Phase) -> String {
    let name = phase.as_str_name().trim_start_matches("PHASE_");
    let style = match phase {
        Phase::Serving => GOOD,
        Phase::Starting | Phase::Draining => WARN,
        Phase::Stopping | Phase::Stopped | Phase::Unspecified => BAD,
    };
    paint(style, name)
}

fn queue(queue: &QueueStats) -> String {
    let mut text =
        format!("{}/{} jobs  {}/{}", queue.jobs, queue.jobs_capacity, bytes(queue.bytes), bytes(queue.bytes_capacity),);
    if queue.waiting > 0 {
        let waiting = format!("  {}/{} waiting", queue.waiting, queue.waiting_capacity);
        text.push_str(&waiting);
    }
    let oldest = rough(duration(queue.oldest_age.as_ref()));
    let expected = rough(duration(queue.expected_wait.as_ref()));
    text.push_str(&format!("  oldest {oldest}  expected wait {expected}"));
    text
}

fn ends(jobs: &JobCounts) -> String {
    let JobCounts { accepted, completed, failed, cancelled, expired, panicked, shed, rejected: _ } = jobs;
    let bad = |count: &u64, name| {
        let text = format!("{count} {name}");
        if *count > 0 { paint(WARN, text) } else { text }
    };
    [
        format!("{accepted} accepted"),
        format!("{completed} completed"),
        bad(failed, "failed"),
        bad(cancelled, "cancelled"),
        bad(expired, "expired"),
        bad(panicked, "panicked"),
        bad(shed, "shed"),
    ]
    .join("  ")
}

fn refusals(jobs: &JobCounts) -> String {
    let one = |(reason, count): (&str, u64)| paint(WARN, format!("{count} {}", plain(reason)));
    jobs.rejected.iter().map(|it| one((&it.reason, it.count))).collect::<Vec<_>>().join("  ")
}

fn kinds(kinds: &[KindStats]) -> Vec<String> {
    use Align::{Left, Right};
    if kinds.is_empty() {
        return Vec::new();
    }
    let mut rows = vec![heading(&["kind", "time", "count", "p50", "p90", "p99", "max"])];
    for kind in kinds {
        rows.push(distribution(&plain(&kind.name), "queue", kind.queue_wait));
        rows.push(distribution("", "run", kind.run_time));
    }
    table(&[Left, Left, Right, Right, Right, Right, Right], &rows)
}

/// A line for each kind with limits.
fn limits(kinds: &[KindStats]) -> impl Iterator<Item = String> {
    let limited = kinds.iter().filter_map(|kind| Some((plain(&kind.name), kind.limit?)));
    limited.map(|(kind, LimitStats { all, per_key, running, queued, keys })| {
        let all = bound(all.unwrap_or_default());
        let mut text = format!("limit of {kind}  {running} running  {queued} queued  {all}");
        let per_key = bound(per_key.unwrap_or_default());
        if per_key != NO_BOUND {
            text.push_str(&format!("  each of {keys} keys: {per_key}"));
        }
        text
    })
}

const NO_BOUND: &str = "unbounded";

fn bound(LimitBound { concurrency, rate, burst }: LimitBound) -> String {
    // The message has the time between two starts.
    let rate = (rate * 1e3).round() / 1e3;
    match (concurrency, burst > 0) {
        (0, false) => NO_BOUND.to_owned(),
        (max, false) => format!("at most {max}"),
        (0, true) => format!("{rate}/s, {burst} at once"),
        (max, true) => format!("at most {max}, {rate}/s, {burst} at once"),
    }
}

fn distribution(kind: &str, time: &str, distribution: Option<Distribution>) -> Vec<String> {
    let Distribution { count, p50, p90, p99, max } = distribution.unwrap_or_default();
    let mut row = vec![kind.to_owned(), time.to_owned(), count.to_string()];
    row.extend([p50, p90, p99, max].map(|it| match count {
        0 => "-".to_owned(),
        _ => rough(duration(it.as_ref())),
    }));
    row
}

/// Workers with something to report, and one line for the idle ones.
fn workers_table(workers: &[WorkerStats]) -> Vec<String> {
    use Align::{Left, Right};
    let (idle, shown): (Vec<_>, Vec<_>) = workers.iter().partition(|it| it.state() == WorkerState::Idle);
    // A few idle workers fit; many would push everything else off the screen.
    const FEW: usize = 4;
    let (idle, shown) = match idle.len() {
        0..=FEW => (Vec::new(), workers.iter().collect()),
        _ => (idle, shown),
    };
    let mut lines = Vec::new();
    if !shown.is_empty() {
        let mut rows = vec![heading(&["worker", "state", "completed", "failed", "mean", "progress", "job"])];
        rows.extend(shown.into_iter().map(worker));
        let columns = [Right, Left, Right, Right, Right, Right, Left];
        lines = table(&columns, &rows);
    }
    if !idle.is_empty() {
        lines.push(together(&idle));
    }
    lines
}

fn worker(worker: &WorkerStats) -> Vec<String> {
    let since = rough(duration(worker.since_progress.as_ref()));
    let job = match worker.job_id.as_str() {
        "" => String::new(),
        id => {
            let age = rough(duration(worker.job_age.as_ref()));
            format!("{} for {age}", plain(id))
        }
    };
    vec![
        worker.id.to_string(),
        state(worker.state()),
        worker.completed.to_string(),
        worker.failed.to_string(),
        mean(worker.completed + worker.failed, worker),
        format!("{since} ago"),
        job,
    ]
}

fn mean(jobs: u64, worker: &WorkerStats) -> String {
    match jobs {
        0 => "-".to_owned(),
        _ => rough(duration(worker.mean_run_time.as_ref())),
    }
}

fn state(state: WorkerState) -> String {
    let name = state.as_str_name().trim_start_matches("WORKER_STATE_").to_ascii_lowercase();
    match state {
        WorkerState::Busy => paint(GOOD, name),
        WorkerState::Draining => paint(WARN, name),
        WorkerState::Stuck | WorkerState::Stopped => paint(BAD, name),
        WorkerState::Idle | WorkerState::Unspecified => name,
    }
}

fn together(idle: &[&WorkerStats]) -> String {
    let completed: u64 = idle.iter().map(|it| it.completed).sum();
    let failed: u64 = idle.iter().map(|it| it.failed).sum();
    paint(FAINT, format!("{} idle workers  {completed} completed  {failed} failed", idle.len()))
}

/// Stuck workers were replaced, and stopped ones are gone.
fn counts_as_worker(worker: &WorkerStats) -> bool {
    !matches!(worker.state(), WorkerState::Stuck | WorkerState::Stopped)
}

fn heading(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| paint(FAINT, cell)).collect()
}

fn indented(lines: Vec<String>) -> impl Iterator<Item = String> {
    lines.into_iter().map(|line| format!("  {line}"))
}

#[cfg(test)]
mod tests;
