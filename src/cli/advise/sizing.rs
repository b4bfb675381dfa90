use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{
    cli::output::duration,
    proto::{PoolStats, WorkerState, WorkerStats},
};

/// Refusals of jobs that the pool would have run, had it been larger.
const FOR_WANT_OF_ROOM: [&str; 3] = ["QUEUE_FULL", "DEADLINE_UNREACHABLE", "TENANT_SHARE"];
/// Longest wait in mean run times, and its floor: the bound of admission.
const LONGEST_WAIT: f64 = 20.0;
const LEAST_LONGEST_WAIT: f64 = 0.1;

/// What the operator wants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Goals {
    pub(super) busy: f64,
    pub(super) max_wait: Option<Duration>,
}

/// What a pool did while it was watched, and what follows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Advice {
    pub(super) pool: String,
    /// Jobs that came; of those, the ones that were refused for want of room.
    pub(super) arrived: u64,
    pub(super) refused: u64,
    pub(super) arrivals_per_s: f64,
    /// Jobs that ran to an end, and their mean run time.
    pub(super) ended: u64,
    pub(super) mean_run_s: f64,
    /// Arrivals per second × mean run time: workers that are busy on average if all that comes is run.
    pub(super) busy_workers: f64,
    pub(super) workers: usize,
    pub(super) workers_advised: usize,
    /// Of the advised workers: share of the time, share of the jobs that wait, and their mean wait (Erlang's C formula).
    pub(super) utilization: f64,
    pub(super) waiting_share: f64,
    pub(super) mean_wait_s: f64,
    pub(super) max_wait_s: f64,
    pub(super) queue_jobs: u64,
    /// Jobs that the advised workers start within the longest wait.
    pub(super) queue_jobs_advised: u64,
    pub(super) kinds: Vec<Kind>,
}

/// What the histograms of a kind say, since the start of the server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Kind {
    pub(super) kind: String,
    pub(super) count: u64,
    pub(super) run_p50_s: f64,
    pub(super) run_p99_s: f64,
    pub(super) wait_p99_s: f64,
}

/// What follows from two snapshots of a pool; `None` where no job came or ended between them.
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
    let workers_advised = whole(busy_workers / goals.busy).max(1);
    let default_wait = (LONGEST_WAIT * mean_run_s).max(LEAST_LONGEST_WAIT);
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
        queue_jobs_advised: whole(workers_advised as f64 / mean_run_s * max_wait_s).max(1) as u64,
        kinds: kinds(after),
    })
}

/// Jobs that came meanwhile; of those that were refused, the ones that the pool would have run.
pub(super) fn arrived(before: &PoolStats, after: &PoolStats) -> u64 {
    (accepted(after) + refused(after)).saturating_sub(accepted(before) + refused(before))
}

/// Share of the arrivals that find all `workers` busy, where `busy` of them are on average: Erlang's C formula.
///
/// It holds for arrivals that know nothing of each other and exponential run times.
fn erlang_c(workers: usize, busy: f64) -> f64 {
    // Erlang's B formula by its recursion over the number of workers, which stays between 0 and 1.
    let blocked = (1..=workers).fold(1.0, |blocked, n| busy * blocked / (n as f64 + busy * blocked));
    let utilization = busy / workers as f64;
    blocked / (1.0 - utilization * (1.0 - blocked))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded up, and not negative")]
fn whole(number: f64) -> usize {
    // What is over by rounding alone takes no further worker.
    (number - 1e-9).ceil() as usize
}

fn accepted(pool: &PoolStats) -> u64 {
    pool.jobs.as_ref().map_or(0, |jobs| jobs.accepted)
}

fn refused(pool: &PoolStats) -> u64 {
    let counts = pool.jobs.iter().flat_map(|jobs| &jobs.rejected);
    counts.filter(|count| FOR_WANT_OF_ROOM.contains(&count.reason.as_str())).map(|count| count.count).sum()
}

/// Jobs that ended meanwhile on the workers that are there, and how long they ran together. What a worker did that has
/// retired is not known, and the mean does without it.
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

fn kinds(pool: &PoolStats) -> Vec<Kind> {
    let kinds = pool.kinds.iter().filter_map(|kind| {
        let (run, wait) = (kind.run_time.as_ref()?, kind.queue_wait.as_ref()?);
        (run.count > 0).then(|| Kind {
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
