//! The formulas of `advise`: Little's law, and Erlang's C.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{
    cli::output::duration,
    proto::{PoolStats, WorkerState, WorkerStats},
};

/// Reasons of refusals that a larger pool would have prevented.
const POOL_TOO_SMALL: [&str; 3] = ["QUEUE_FULL", "DEADLINE_UNREACHABLE", "TENANT_SHARE"];
/// Default of the longest wait, in mean run times. Admission uses the same bound.
const MAX_WAIT_IN_RUNS: f64 = 20.0;
/// Lower bound of that default, in seconds.
const MIN_MAX_WAIT_S: f64 = 0.1;

/// Goals of the operator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Goals {
    pub(super) busy: f64,
    pub(super) max_wait: Option<Duration>,
}

/// Figures of a pool during the observed time, and the advice.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Advice {
    pub(super) pool: String,
    /// Arrived jobs, and those among them that were refused because the pool is too small.
    pub(super) arrived: u64,
    pub(super) refused: u64,
    pub(super) arrivals_per_s: f64,
    /// Jobs that ended after a run, and their mean run time.
    pub(super) ended: u64,
    pub(super) mean_run_s: f64,
    /// Arrivals per second × mean run time: busy workers on average, if all arrivals run.
    pub(super) busy_workers: f64,
    pub(super) workers: usize,
    pub(super) workers_advised: usize,
    /// For the advised number of workers: their busy share, the share of jobs that wait, and the mean wait (Erlang's C
    /// formula).
    pub(super) utilization: f64,
    pub(super) waiting_share: f64,
    pub(super) mean_wait_s: f64,
    pub(super) max_wait_s: f64,
    pub(super) queue_jobs: u64,
    /// Jobs that the advised workers start within the longest wait.
    pub(super) queue_jobs_advised: u64,
    pub(super) kinds: Vec<KindTimes>,
}

/// The histograms of a kind since the start of the server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct KindTimes {
    pub(super) kind: String,
    pub(super) count: u64,
    pub(super) run_p50_s: f64,
    pub(super) run_p99_s: f64,
    pub(super) wait_p99_s: f64,
}

/// The advice from two snapshots of a pool; `None` if no job arrived or ended between them.
pub(super) fn advise(before: &PoolStats, after: &PoolStats, watched: Duration, goals: &Goals) -> Option<Advice> {
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
    let workers_advised = round_up(busy_workers / goals.busy).max(1);
    let default_wait = (MAX_WAIT_IN_RUNS * mean_run_s).max(MIN_MAX_WAIT_S);
    let max_wait_s = goals.max_wait.map_or(default_wait, |wait| wait.as_secs_f64());
    let waiting_share = erlang_c(workers_advised, busy_workers);
    Some(Advice {
        pool: after.name.clone(),
        arrived,
        refused,
        arrivals_per_s,
        ended,
        mean_run_s,
        busy_workers,
        workers: live_workers(after),
        workers_advised,
        utilization: busy_workers / workers_advised as f64,
        waiting_share,
        mean_wait_s: waiting_share * mean_run_s / (workers_advised as f64 - busy_workers),
        max_wait_s,
        queue_jobs: after.queue.map_or(0, |queue| queue.jobs_capacity),
        queue_jobs_advised: round_up(workers_advised as f64 / mean_run_s * max_wait_s).max(1) as u64,
        kinds: kinds(after),
    })
}

/// Jobs that arrived between the snapshots, without refusals that a larger pool would not have prevented.
pub(super) fn arrived(before: &PoolStats, after: &PoolStats) -> u64 {
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
    let sums = |worker: &WorkerStats| (worker.completed + worker.failed, duration(worker.total_run_time.as_ref()));
    let earlier: BTreeMap<u32, _> = before.workers.iter().map(|worker| (worker.id, sums(worker))).collect();
    after.workers.iter().fold((0, Duration::ZERO), |(ended, ran), worker| {
        let (jobs, time) = sums(worker);
        let (jobs_before, time_before) = earlier.get(&worker.id).copied().unwrap_or_default();
        (ended + jobs.saturating_sub(jobs_before), ran + time.saturating_sub(time_before))
    })
}

fn live_workers(pool: &PoolStats) -> usize {
    let gone = [WorkerState::Stopped as i32, WorkerState::Stuck as i32];
    pool.workers.iter().filter(|worker| !gone.contains(&worker.state)).count()
}

fn kinds(pool: &PoolStats) -> Vec<KindTimes> {
    let kinds = pool.kinds.iter().filter_map(|kind| {
        let (run, wait) = (kind.run_time.as_ref()?, kind.queue_wait.as_ref()?);
        (run.count > 0).then(|| KindTimes {
            kind: kind.name.clone(),
            count: run.count,
            run_p50_s: duration(run.p50.as_ref()).as_secs_f64(),
            run_p99_s: duration(run.p99.as_ref()).as_secs_f64(),
            wait_p99_s: duration(wait.p99.as_ref()).as_secs_f64(),
        })
    });
    kinds.collect()
}

#[cfg(test)]
mod tests {
    use super::erlang_c;

    #[test]
    fn erlangs_formula_is_as_in_its_tables() {
        for (workers, busy, table) in [(1, 0.5, 0.5), (2, 1.0, 1.0 / 3.0), (5, 4.0, 0.5541), (10, 8.0, 0.4092)] {
            let share = erlang_c(workers, busy);
            assert!((share - table).abs() < 5e-4, "{workers} workers, {busy} busy: {share}");
        }
    }
}
