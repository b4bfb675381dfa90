//! A snapshot of `stats` as text.

use std::fmt::Write;

use crate::{
    cli::{
        console::{BAD, FAINT, GOOD, STRONG, WARN, paint},
        operate,
        output::{bytes, percent, pluralized, sanitized, short, table},
    },
    proto::{
        AttachedWorkerStats, DetachedStats, Distribution, FactoryStats, JobCounts, KindStats, LimitBound, LimitStats,
        Phase, PoolStats, ProcessState, ProgramStats, QueueStats, Stats, WorkerState, WorkerStats,
    },
};

/// The snapshot, one block per pool, ending in a line end.
pub(super) fn snapshot(stats: &Stats) -> String {
    let uptime = short(stats.uptime);
    let mut lines = vec![format!("{}  up {uptime}", phase(stats.phase()))];
    for pool in &stats.pools {
        lines.push(String::new());
        lines.extend(pool_block(pool));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn pool_block(pool: &PoolStats) -> Vec<String> {
    let workers = live_workers(pool);
    let mut lines = vec![
        format!(
            "{}  {}  {} of {workers} workers busy, {}",
            paint(STRONG, format!("pool {}", sanitized(&pool.name))),
            phase(pool.phase()),
            pool.in_flight,
            percent(pool.utilization),
        ),
        format!("  queue    {}", queue(&pool.queue.unwrap_or_default())),
    ];
    if let Some(paused) = &pool.paused {
        let paused = format!("for {}: no job starts until \"waterwheel resume\"", short(Some(*paused)));
        lines.push(format!("  paused   {}", paint(WARN, paused)));
    }
    if let Some(size) = pool.size.as_ref().filter(|size| size.min < size.max || size.retiring > 0) {
        lines.push(format!("  size     {}", operate::size(size)));
    }
    let jobs = pool.jobs.clone().unwrap_or_default();
    lines.push(format!("  jobs     {}", ends(&jobs)));
    if !jobs.rejected.is_empty() {
        lines.push(format!("  refused  {}", refusals(&jobs)));
    }
    if pool.stale > 0 {
        let stale = format!("{}; see \"waterwheel jobs --stale\"", pluralized(pool.stale, "running job"));
        lines.push(format!("  stale    {}", paint(WARN, stale)));
    }
    if pool.slow_polls > 0 {
        let polls = format!("{} handler polls blocked their thread for too long", pool.slow_polls);
        lines.push(format!("  slow     {}", paint(WARN, polls)));
    }
    lines.extend(pool.kinds.iter().filter_map(factory));
    lines.extend(indented(kinds(&pool.kinds)));
    lines.extend(indented(detached(&pool.kinds)));
    lines.extend(indented(limits(&pool.kinds).collect()));
    lines.extend(indented(programs(&pool.programs)));
    lines.extend(indented(attached(&pool.attached)));
    lines.extend(indented(workers_table(&pool.workers)));
    lines
}

fn factory(kind: &KindStats) -> Option<String> {
    let FactoryStats { failures: _, in_a_row, retry_in } = kind.factory.as_ref().filter(|it| it.in_a_row > 0)?;
    let name = sanitized(&kind.name);
    let retry = short(*retry_in);
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
    let oldest = short(queue.oldest_age);
    let expected = short(queue.expected_wait);
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
    let one = |(reason, count): (&str, u64)| paint(WARN, format!("{count} {}", sanitized(reason)));
    jobs.rejected.iter().map(|it| one((&it.reason, it.count))).collect::<Vec<_>>().join("  ")
}

fn kinds(kinds: &[KindStats]) -> Vec<String> {
    let rows = kinds.iter().flat_map(|kind| {
        [distribution(&sanitized(&kind.name), "queue", kind.queue_wait), distribution("", "run", kind.run_time)]
    });
    table(&["kind", "time", ">count", ">p50", ">p90", ">p99", ">max"], rows.collect())
}

/// A line for each kind with limits.
fn limits(kinds: &[KindStats]) -> impl Iterator<Item = String> {
    let limited = kinds.iter().filter_map(|kind| Some((kind, kind.limit?)));
    limited.map(|(kind, LimitStats { all, per_key, running, queued, keys })| {
        let (name, wait) = (sanitized(&kind.name), short(kind.expected_wait));
        let all = bound(all.unwrap_or_default());
        let mut text = format!("limit of {name}  {running} running  {queued} queued  expected wait {wait}  {all}");
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
        _ => short(it),
    }));
    row
}

/// Workers with something to report, and one line for all idle ones.
fn workers_table(workers: &[WorkerStats]) -> Vec<String> {
    // A few idle workers are listed; many would push everything else off the screen.
    const FEW: usize = 4;
    let heads = [">worker", "state", ">completed", ">failed", ">mean", ">progress", "job"];
    let idle: Vec<_> = workers.iter().filter(|it| it.state() == WorkerState::Idle).collect();
    let are_few = idle.len() <= FEW;
    let shown = workers.iter().filter(|it| are_few || it.state() != WorkerState::Idle);
    let mut lines = table(&heads, shown.map(worker).collect());
    if !are_few {
        lines.push(together(&idle));
    }
    lines
}

fn worker(worker: &WorkerStats) -> Vec<String> {
    let since = short(worker.since_progress);
    let job = match worker.job_id.as_str() {
        "" => String::new(),
        id => {
            let age = short(worker.job_age);
            format!("{} for {age}", sanitized(id))
        }
    };
    vec![
        worker.id.to_string(),
        state(worker.state()),
        worker.completed.to_string(),
        worker.failed.to_string(),
        match worker.completed + worker.failed {
            0 => "-".to_owned(),
            _ => short(worker.mean_run_time),
        },
        format!("{since} ago"),
        job,
    ]
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

/// Number of workers. Stuck ones were replaced, and stopped ones are gone.
pub(in crate::cli) fn live_workers(pool: &PoolStats) -> usize {
    let is_gone = |worker: &&WorkerStats| matches!(worker.state(), WorkerState::Stuck | WorkerState::Stopped);
    pool.workers.len() - pool.workers.iter().filter(is_gone).count()
}

fn indented(lines: Vec<String>) -> impl Iterator<Item = String> {
    lines.into_iter().map(|line| format!("  {line}"))
}

/// A line for each program, and one for how its last process failed.
fn programs(programs: &[ProgramStats]) -> Vec<String> {
    programs.iter().flat_map(program).collect()
}

fn program(program: &ProgramStats) -> Vec<String> {
    let ProgramStats { name, processes, starts, failures, last_failure } = program;
    let (jobs, memory) = processes.iter().fold((0, 0), |sum, it| (sum.0 + it.jobs, sum.1 + it.memory_bytes));
    let mut line = format!("program {}  ", sanitized(name));
    for state in
        [ProcessState::Starting, ProcessState::Idle, ProcessState::Busy, ProcessState::Leaving, ProcessState::Failing]
    {
        let count = processes.iter().filter(|process| process.state() == state).count();
        let word = state.as_str_name().trim_start_matches("PROCESS_STATE_").to_ascii_lowercase();
        let text = format!("{count} {word}");
        match (count, state) {
            (0, _) => continue,
            (_, ProcessState::Failing) => line.push_str(&paint(BAD, text)),
            _ => line.push_str(&text),
        }
        line.push_str("  ");
    }
    write!(line, "{jobs} jobs  {}  {starts} started", bytes(memory)).expect("a string takes all");
    let failure =
        (*failures > 0).then(|| paint(WARN, format!("{failures} failed, the last one: {}", sanitized(last_failure))));
    [line].into_iter().chain(failure.map(|failure| format!("  {failure}"))).collect()
}

/// A table of the workers that are attached.
fn attached(workers: &[AttachedWorkerStats]) -> Vec<String> {
    let row = |worker: &AttachedWorkerStats| {
        let AttachedWorkerStats { name, peer, concurrency, running, abandoned, jobs, leaving, labels: _ } = worker;
        let note = match (leaving, abandoned) {
            (true, _) => paint(WARN, "leaving"),
            (false, 0) => String::new(),
            (false, given_up) => paint(WARN, format!("{given_up} ignored a cancel")),
        };
        vec![sanitized(name), sanitized(peer), concurrency.to_string(), running.to_string(), jobs.to_string(), note]
    };
    table(&["attached", "peer", ">slots", ">running", ">jobs", ""], workers.iter().map(row).collect())
}

/// A line for each kind with detached jobs.
pub(super) fn detached<'a>(kinds: impl IntoIterator<Item = &'a KindStats>) -> Vec<String> {
    let row = |kind: &KindStats| {
        let jobs = kind.detached.filter(|it| *it != DetachedStats::default())?;
        let DetachedStats { scheduled, ready, blocked, running, dead, oldest_ready_age } = jobs;
        let mut row = vec![sanitized(&kind.name)];
        row.extend([scheduled, ready, blocked, running].map(|count| count.to_string()));
        row.push(if dead > 0 { paint(WARN, dead) } else { dead.to_string() });
        row.push(oldest_ready_age.map_or_else(|| "-".to_owned(), |age| short(Some(age))));
        Some(row)
    };
    let heads = ["detached", ">scheduled", ">ready", ">blocked", ">running", ">dead", ">oldest ready"];
    table(&heads, kinds.into_iter().filter_map(row).collect())
}
