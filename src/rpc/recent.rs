//! What `src/monitor.rs` knows, as messages: the last minutes, what is wrong, and the drain.

use std::sync::LazyLock;

use prost_types::Timestamp;
use tokio::time::Instant;

use super::{
    DrainProgress,
    convert::{duration, instant, phase, store_state},
    service_state::ServiceState,
    stats::distribution,
};
use crate::{
    model::Reason,
    monitor::{Flow, Level, Monitor, Problem, RecentKind, RecentPool, StoreStats},
    phase::Phase,
    proto,
};

/// Maximum length of the message of a failure, in bytes.
const MAX_MESSAGE: usize = 1 << 10;

static HOST: LazyLock<String> = LazyLock::new(|| {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
});

/// Adds what only operators may read: it names callers and tenants, and quotes failures.
pub(super) fn add_private(service: &ServiceState, stats: &mut proto::Stats) {
    let verdict = service.monitor.verdict();
    stats.problems = verdict.problems.into_iter().map(problem).collect();
    stats.judge_time = verdict.judged.map(instant);
    if service.phase.get() >= Phase::Draining {
        stats.drain = Some(service.control.report());
    }
    for pool in stats.pools.iter_mut().filter(|pool| pool.paused.is_some()) {
        let operator = service.monitor.operator(&pool.name);
        (pool.paused_by, pool.paused_reason) = (operator.principal, operator.reason);
        let since_stored = service.detached.as_ref().and_then(|detached| detached.suspended_for(&pool.name));
        pool.paused = since_stored.map(duration).or(pool.paused);
    }
}

/// Removes what only operators may read.
pub(super) fn remove_private(stats: &mut proto::Stats) {
    stats.pools.iter_mut().flat_map(|pool| &mut pool.kinds).for_each(|kind| kind.last_failure = None);
    if let Some(store) = &mut stats.store {
        store.message.clear();
    }
}

/// The server that answers.
pub(super) fn server() -> proto::ServerInfo {
    proto::ServerInfo { host: HOST.clone(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// The present time.
pub(super) fn now() -> Timestamp {
    instant(Instant::now())
}

/// The store.
pub(super) fn store(monitor: &Monitor) -> Option<proto::StoreStats> {
    let StoreStats { kind, state, since, error } = monitor.store()?;
    let message = error.map(|error| cut(error.to_string())).unwrap_or_default();
    Some(proto::StoreStats {
        kind: kind.to_owned(),
        state: store_state(state).into(),
        since: since.map(instant),
        message,
    })
}

/// Adds the last minute of a pool.
pub(super) fn add(monitor: &Monitor, pool: &mut proto::PoolStats) {
    let RecentPool { recent, minute, kinds, crashes } = monitor.recent(&pool.name);
    (pool.recent, pool.minute) = (recent.map(window), minute.map(window));
    for kind in &mut pool.kinds {
        if let Some(RecentKind { run, usual_run, wait, failures }) = kinds.get(&*kind.name) {
            kind.recent_run = Some(distribution(*run));
            kind.usual_run = usual_run.map(distribution);
            kind.recent_wait = Some(distribution(*wait));
            kind.failures_per_second = *failures;
        }
    }
    for program in &mut pool.programs {
        program.failures_minute = count(crashes.get(&*program.name).copied().unwrap_or(0));
    }
}

/// The answer of `StatsHistory`.
pub(super) fn history(monitor: &Monitor, pool: &str) -> proto::StatsHistoryResponse {
    let (pools, end) = monitor.history(pool);
    let pools = pools.into_iter().map(|history| {
        let [completed, failed, expired, refused] = history.columns;
        proto::PoolHistory { name: history.pool.to_string(), completed, failed, expired, refused }
    });
    proto::StatsHistoryResponse {
        step: Some(duration(Monitor::HISTORY_STEP)),
        end: end.map(instant),
        pools: pools.collect(),
    }
}

/// The progress of a drain.
pub(super) fn drain(progress: &DrainProgress) -> proto::DrainResponse {
    let reached = progress.phase;
    proto::DrainResponse {
        // The drain continues while answers are being sent.
        phase: phase(if progress.cut.is_none() { reached.min(Phase::Stopping) } else { reached }).into(),
        queued: progress.queued as u64,
        running: progress.running as u64,
        finished: progress.finished,
        lost: progress.lost,
        given_back: progress.given_back,
        cut: progress.cut.unwrap_or_default(),
        elapsed: Some(duration(progress.elapsed)),
        expected: Some(duration(progress.expected)),
        hard_stop: Some(duration(progress.hard_stop)),
        likely_lost: progress.likely_lost,
        lost_job_ids: progress.lost_jobs.clone(),
        reason: progress.operator.reason.clone(),
        principal: progress.operator.principal.clone(),
    }
}

/// A text of at most [`MAX_MESSAGE`] bytes.
pub(super) fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_MESSAGE));
    text
}

fn window(flow: Flow) -> proto::Window {
    let rate = |(reason, jobs): &(Reason, u64)| proto::RefusalRate {
        reason: reason.name().to_owned(),
        per_second: flow.per_second(*jobs),
    };
    proto::Window {
        seconds: flow.time.as_secs_f64(),
        arrivals: count(flow.arrivals),
        completed: count(flow.completed),
        failed: count(flow.failed),
        expired: count(flow.expired),
        refused: flow.refused.iter().map(rate).collect(),
    }
}

fn problem(problem: Problem) -> proto::Problem {
    let Problem { key, level, subject, pool, title, detail, todo, hurt, since } = problem;
    let level = match level {
        Level::Warning => proto::ProblemLevel::Warning,
        Level::Error => proto::ProblemLevel::Error,
    };
    proto::Problem {
        key,
        level: level.into(),
        title,
        detail,
        todo,
        subject,
        since: Some(instant(since)),
        hurt_per_second: hurt,
        pool,
    }
}

fn count(jobs: u64) -> u32 {
    u32::try_from(jobs).unwrap_or(u32::MAX)
}
