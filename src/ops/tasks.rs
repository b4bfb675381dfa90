//! `/debug/tasks`: workers and jobs as JSON.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{Json, extract::State};
use serde_json::{Value, json};

use super::Subject;
use crate::{
    model::RequestId,
    pool::{JobFilter, ListedJob, Pool, Stage, WorkerState, WorkerStats},
};

/// Most jobs of a pool that are listed, the oldest first.
const MAX_JOBS: usize = 1000;

/// The state of every worker, and the progress of every job in the pools. Times are in milliseconds.
pub(super) async fn tasks(State(subject): State<Arc<Subject>>) -> Json<Value> {
    let pools: BTreeMap<_, _> = subject.pools.all().iter().map(|pool| (pool.name().to_string(), show(pool))).collect();
    Json(json!({ "phase": format!("{:?}", subject.phase.get()).to_lowercase(), "pools": pools }))
}

fn show(pool: &Pool) -> Value {
    let stats = pool.stats();
    let jobs: Vec<_> = pool.list(&JobFilter::held(), MAX_JOBS).jobs.iter().map(job).collect();
    json!({
        "queued": stats.queued,
        "running": stats.in_flight,
        "waiting": stats.waiting,
        "expected_wait_ms": millis(stats.expected_wait),
        "most_listed": MAX_JOBS,
        "jobs": jobs,
        "workers": stats.workers.iter().map(worker).collect::<Vec<_>>(),
    })
}

fn job(held: &ListedJob) -> Value {
    let ListedJob { job, pool: _, kind, names, stage, age, left, traceparent, stopping } = held;
    let mut shown = json!({
        "job": job.to_string(),
        "request_id": names.request_id.as_ref().map(RequestId::as_str),
        "kind": &**kind,
        "tenant": names.tenant.as_deref().unwrap_or_default(),
        "age_ms": millis(*age),
        "left_ms": millis(*left),
        "stopping": stopping,
    });
    if !traceparent.is_empty() {
        shown["traceparent"] = traceparent.as_str().into();
    }
    shown["stage"] = match stage {
        Stage::Waiting => "waiting",
        Stage::Queued => "queued",
        Stage::Running { stuck: false, .. } => "running",
        Stage::Running { stuck: true, .. } => "stuck",
        Stage::Ended(_) => "ended",
    }
    .into();
    if let Stage::Running { worker, run, since_progress, .. } = stage {
        shown["worker"] = (*worker).into();
        shown["run_ms"] = millis(*run).into();
        shown["since_progress_ms"] = millis(*since_progress).into();
    }
    shown
}

fn worker(worker: &WorkerStats) -> Value {
    json!({
        "id": worker.id,
        "state": state_name(worker.state),
        "job": worker.job.map(|job| job.to_string()),
        "completed": worker.completed,
        "failed": worker.failed,
        "mean_run_ms": millis(worker.mean_run),
        "since_progress_ms": millis(worker.since_progress),
    })
}

pub(super) fn state_name(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Idle => "idle",
        WorkerState::Busy => "busy",
        WorkerState::Draining => "draining",
        WorkerState::Stopped => "stopped",
        WorkerState::Stuck => "stuck",
    }
}

/// In milliseconds, rounded to the microsecond.
fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}
