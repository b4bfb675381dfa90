//! A snapshot of `stats` as text.

use super::problems::{kinds, problems};
use crate::{
    cli::{
        console::{BAD, FAINT, GOOD, STRONG, WARN, paint},
        operate,
        output::{percent, pluralized, row, sanitized, short, table},
    },
    file::size_text,
    proto::{
        AttachedWorkerStats, DetachedStats, Distribution, FactoryStats, JobCounts, KindStats, LimitBound, LimitStats,
        Phase, PoolStats, ProcessState, ProgramStats, QueueStats, Stats, StoreState, StoreStats, WorkerState,
        WorkerStats,
    },
};

/// The snapshot, one block per pool, ending in a line end.
pub(super) fn snapshot(stats: &Stats) -> String {
    let uptime = short(stats.uptime);
    let mut lines = vec![format!("{}  up {uptime}", phase(stats.phase()))];
    lines.extend(problems(stats));
    lines.extend(stats.store.as_ref().filter(|store| store.state() != StoreState::Ok).map(store));
    for pool in &stats.pools {
        lines.push(String::new());
        lines.extend(pool_block(pool));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn pool_block(pool: &PoolStats) -> Vec<String> {
    let (name, workers) = (paint(STRONG, format!("pool {}", sanitized(&pool.name))), live_workers(pool));
    let (phase, busy) = (phase(pool.phase()), percent(pool.utilization));
    let mut lines = vec![format!("{name}  {phase}  {} of {workers} workers busy, {busy}", pool.in_flight)];
    lines.extend(figures(pool).into_iter().filter_map(|(what, text)| Some(format!("  {what:<7}  {}", text?))));
    lines.extend(pool.kinds.iter().filter_map(factory));
    lines.extend(indented(kinds(&pool.kinds)));
    lines.extend(indented(detached(&pool.kinds)));
    lines.extend(indented(limits(&pool.kinds).collect()));
    lines.extend(indented(pool.programs.iter().flat_map(program).collect()));
    lines.extend(indented(attached(&pool.attached)));
    lines.extend(indented(workers_table(&pool.workers)));
    lines
}

/// The figures of the pool itself, by name. `None` if there is nothing to report.
fn figures(pool: &PoolStats) -> [(&'static str, Option<String>); 7] {
    let warning = |text| paint(WARN, text);
    let paused = |time| format!("for {}: no job starts until \"waterwheel resume\"", short(Some(time)));
    let size = pool.size.as_ref().filter(|size| size.min < size.max || size.retiring > 0);
    let jobs = pool.jobs.clone().unwrap_or_default();
    let stale = || format!("{}; see \"waterwheel jobs --stale\"", pluralized(pool.stale, "running job"));
    let slow = || format!("{} handler polls blocked their thread for too long", pool.slow_polls);
    [
        ("queue", Some(queue(&pool.queue.unwrap_or_default()))),
        ("paused", pool.paused.map(paused).map(warning)),
        ("size", size.map(operate::size)),
        ("jobs", Some(ends(&jobs))),
        ("refused", (!jobs.rejected.is_empty()).then(|| refusals(&jobs))),
        ("stale", (pool.stale > 0).then(stale).map(warning)),
        ("slow", (pool.slow_polls > 0).then(slow).map(warning)),
    ]
}

/// A line for a kind whose handlers cannot be made.
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
    let QueueStats { jobs, jobs_capacity, waiting, waiting_capacity, .. } = queue;
    let [held, capacity] = [queue.bytes, queue.bytes_capacity].map(size_text);
    let waiting = if *waiting > 0 { format!("  {waiting}/{waiting_capacity} waiting") } else { String::new() };
    let [oldest, expected] = [queue.oldest_age, queue.expected_wait].map(short);
    format!("{jobs}/{jobs_capacity} jobs  {held}/{capacity}{waiting}  oldest {oldest}  expected wait {expected}")
}

fn ends(jobs: &JobCounts) -> String {
    let JobCounts { accepted, completed, failed, cancelled, expired, panicked, shed, rejected: _ } = jobs;
    let bad =
        [(failed, "failed"), (cancelled, "cancelled"), (expired, "expired"), (panicked, "panicked"), (shed, "shed")];
    let bad = bad.map(|(count, name)| match count {
        0 => format!("0 {name}"),
        _ => paint(WARN, format!("{count} {name}")),
    });
    format!("{accepted} accepted  {completed} completed  {}", bad.join("  "))
}

fn refusals(jobs: &JobCounts) -> String {
    let rejected = jobs.rejected.iter().map(|it| paint(WARN, format!("{} {}", it.count, sanitized(&it.reason))));
    rejected.collect::<Vec<_>>().join("  ")
}

/// A line for a store that does not answer.
fn store(store: &StoreStats) -> String {
    let state = store.state().as_str_name().trim_start_matches("STORE_STATE_");
    paint(BAD, format!("store {}  {state}  {}", sanitized(&store.kind), sanitized(&store.message)))
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
    // The server derives the rate from the time between two starts, so it is not exact.
    let rate = (rate * 1e3).round() / 1e3;
    match (concurrency, burst > 0) {
        (0, false) => NO_BOUND.to_owned(),
        (max, false) => format!("at most {max}"),
        (0, true) => format!("{rate}/s, {burst} at once"),
        (max, true) => format!("at most {max}, {rate}/s, {burst} at once"),
    }
}

pub(super) fn distribution(kind: &str, time: &str, distribution: Option<Distribution>) -> Vec<String> {
    let Distribution { count, p50, p90, p99, max } = distribution.unwrap_or_default();
    let [p50, p90, p99, max] = [p50, p90, p99, max].map(|it| if count == 0 { "-".to_owned() } else { short(it) });
    row![kind, time, count, p50, p90, p99, max]
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
        lines.push(idle_line(&idle));
    }
    lines
}

fn worker(worker: &WorkerStats) -> Vec<String> {
    let job = match worker.job_id.as_str() {
        "" => String::new(),
        id => format!("{} for {}", sanitized(id), short(worker.job_age)),
    };
    let mean = match worker.completed + worker.failed {
        0 => "-".to_owned(),
        _ => short(worker.mean_run_time),
    };
    let progress = format!("{} ago", short(worker.since_progress));
    row![worker.id, state(worker.state()), worker.completed, worker.failed, mean, progress, job]
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

/// One line for all idle workers.
fn idle_line(idle: &[&WorkerStats]) -> String {
    let completed: u64 = idle.iter().map(|it| it.completed).sum();
    let failed: u64 = idle.iter().map(|it| it.failed).sum();
    paint(FAINT, format!("{} idle workers  {completed} completed  {failed} failed", idle.len()))
}

/// Number of workers. Stuck ones were replaced, and stopped ones are gone.
fn live_workers(pool: &PoolStats) -> usize {
    let is_gone = |worker: &&WorkerStats| matches!(worker.state(), WorkerState::Stuck | WorkerState::Stopped);
    pool.workers.len() - pool.workers.iter().filter(is_gone).count()
}

fn indented(lines: Vec<String>) -> impl Iterator<Item = String> {
    lines.into_iter().map(|line| format!("  {line}"))
}

/// A line for a program, and one for how its last process failed.
fn program(program: &ProgramStats) -> Vec<String> {
    use ProcessState::{Busy, Failing, Idle, Leaving, Starting};
    let ProgramStats { name, processes, starts, failures, last_failure, .. } = program;
    let (jobs, memory) = processes.iter().fold((0, 0), |sum, it| (sum.0 + it.jobs, sum.1 + it.memory_bytes));
    let mut parts = vec![format!("program {}", sanitized(name))];
    for state in [Starting, Idle, Busy, Leaving, Failing] {
        let word = state.as_str_name().trim_start_matches("PROCESS_STATE_").to_ascii_lowercase();
        match processes.iter().filter(|process| process.state() == state).count() {
            0 => {}
            count if state == Failing => parts.push(paint(BAD, format!("{count} {word}"))),
            count => parts.push(format!("{count} {word}")),
        }
    }
    parts.extend([format!("{jobs} jobs"), size_text(memory), format!("{starts} started")]);
    let failure = format!("{failures} failed, the last one: {}", sanitized(last_failure));
    let failure = (*failures > 0).then(|| format!("  {}", paint(WARN, failure)));
    [parts.join("  ")].into_iter().chain(failure).collect()
}

/// A table of the workers that are attached.
fn attached(workers: &[AttachedWorkerStats]) -> Vec<String> {
    let row = |worker: &AttachedWorkerStats| {
        let AttachedWorkerStats { name, peer, concurrency, running, abandoned, jobs, leaving, .. } = worker;
        let note = match (leaving, abandoned) {
            (true, _) => paint(WARN, "leaving"),
            (false, 0) => String::new(),
            (false, given_up) => paint(WARN, format!("{given_up} ignored a cancel")),
        };
        row![sanitized(name), sanitized(peer), concurrency, running, jobs, note]
    };
    table(&["attached", "peer", ">slots", ">running", ">jobs", ""], workers.iter().map(row).collect())
}

/// A line for each kind with detached jobs.
pub(super) fn detached<'a>(kinds: impl IntoIterator<Item = &'a KindStats>) -> Vec<String> {
    let row = |kind: &KindStats| {
        let jobs = kind.detached.filter(|it| *it != DetachedStats::default())?;
        let DetachedStats { scheduled, ready, blocked, running, dead, oldest_ready_age } = jobs;
        let dead = if dead > 0 { paint(WARN, dead) } else { dead.to_string() };
        let oldest = oldest_ready_age.map_or_else(|| "-".to_owned(), |age| short(Some(age)));
        Some(row![sanitized(&kind.name), scheduled, ready, blocked, running, dead, oldest])
    };
    let heads = ["detached", ">scheduled", ">ready", ">blocked", ">running", ">dead", ">oldest ready"];
    table(&heads, kinds.into_iter().filter_map(row).collect())
}
