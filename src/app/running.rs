//! What the log says about running jobs: the stale ones, a list of them now and then, and what a drain waits for.

use std::{collections::HashSet, convert::Infallible, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval, interval_at};
use tracing::info;

use super::Control;
use crate::{
    incidents::{self, Incident},
    model::{JobId, JobStage},
    net::Server,
    pool::{JobFilter, JobOrder, ListedJob, Pools, RunningJob},
    rpc::{DrainControl, DrainProgress},
};

/// Time between two looks for stale jobs.
const LOOK: Duration = Duration::from_secs(1);
/// Maximum number of stale jobs that are looked at.
const MAX_STALE: usize = 1000;
/// Maximum number of jobs in a list of running jobs.
const MAX_LISTED: usize = 20;
/// Time between two lines of a drain.
const DRAIN_LINES: Duration = Duration::from_secs(5);
/// Maximum number of jobs in such a line.
const MAX_AWAITED: usize = 5;

/// Logs stale jobs, and a list of running ones every `dump_every` unless that is zero. It does not end.
pub(super) async fn log(pools: Pools, dump_every: Duration) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut known, mut dumped) = (HashSet::new(), Instant::now());
    loop {
        looks.tick().await;
        known = log_stale(&pools, &known);
        if !dump_every.is_zero() && dumped.elapsed() >= dump_every {
            dumped = Instant::now();
            dump(&pools);
        }
    }
}

/// Logs stale jobs that are not `known`. Returns all of them.
fn log_stale(pools: &Pools, known: &HashSet<JobId>) -> HashSet<JobId> {
    let stale = longest(pools, MAX_STALE, JobFilter { stale: true, ..JobFilter::default() });
    for listed in stale.iter().filter(|listed| !known.contains(&listed.job)) {
        let ListedJob { job, pool, kind, names, .. } = listed;
        incidents::log(pool, "STALE", || Incident {
            what: "jobs run for longer than stale_after",
            kind: kind.to_string(),
            job: job.to_string(),
            detached_job: names.detached_job().unwrap_or_default().to_owned(),
            request_id: names.request_id.as_ref().map(ToString::to_string).unwrap_or_default(),
            tenant: names.tenant.as_deref().unwrap_or_default().to_owned(),
            cause: run(listed),
            ..Incident::default()
        });
    }
    stale.iter().map(|listed| listed.job).collect()
}

/// Logs the counts of each pool, and the jobs that have run for the longest time.
fn dump(pools: &Pools) {
    for pool in pools.all() {
        let load = pool.load();
        info!(pool = %pool.name(), running = load.running, queued = load.queued, "the pool has these jobs");
    }
    for listed in longest(pools, MAX_LISTED, JobFilter::default()) {
        let ListedJob { job, pool, kind, names, .. } = &listed;
        let request_id = names.request_id.as_ref().map(tracing::field::display);
        let (detached_job, tenant) = (names.detached_job(), names.tenant.as_deref());
        info!(%pool, %kind, %job, detached_job, request_id, tenant, "a job runs: {}", run(&listed));
    }
}

/// Logs what a drain waits for, every five seconds.
pub(super) async fn log_drain(control: &Control, public: &Server) -> Infallible {
    let mut lines = interval_at(Instant::now() + DRAIN_LINES, DRAIN_LINES);
    lines.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        lines.tick().await;
        let DrainProgress { queued, running, finished, expected, hard_stop, .. } = control.progress();
        let awaited = longest(control.pools(), MAX_AWAITED, JobFilter::default());
        let awaited: Vec<_> = awaited.iter().map(awaited_job).collect();
        info!(
            queued,
            running,
            finished,
            unsent_answers = public.unread_answers().len(),
            expected_ms = expected.as_millis(),
            hard_stop_ms = hard_stop.as_millis(),
            jobs = awaited.join("; "),
            "the drain waits",
        );
    }
}

/// The running jobs that arrived first.
fn longest(pools: &Pools, limit: usize, filter: JobFilter) -> Vec<ListedJob> {
    pools.list(&JobFilter { stages: vec![JobStage::Running], order: JobOrder::Oldest, ..filter }, limit).jobs
}

/// A job that a drain waits for.
fn awaited_job(listed: &ListedJob) -> String {
    let detached = listed.names.detached_job().map(|id| format!(" of {id}")).unwrap_or_default();
    format!("{}{detached} ({}) {}", listed.job, listed.kind, run(listed))
}

/// How long a job has run.
fn run(listed: &ListedJob) -> String {
    let Some(RunningJob { worker, run, since_progress, .. }) = listed.run else { return String::new() };
    let [run, silent] = [run, since_progress].map(|time| time.as_millis());
    format!("for {run} ms on worker {worker}, without progress for {silent} ms")
}
