//! HTTP pages for operators and their tools, on the same listener as the operators' gRPC services.
//!
//! | path | what |
//! |---|---|
//! | `/livez`, `/readyz` | 200 or 503, by the same rules as `liveness` and `readiness` of `grpc.health.v1` |
//! | `/metrics` | Prometheus metrics, with names in the style of OpenTelemetry |
//! | `/debug/tasks` | the workers and the jobs that the pools hold, as JSON |
//! | `/` and its views | the page for people |
//!
//! All figures are read on request, from existing counters.

mod families;
mod metrics;
mod otlp;
mod page;
mod pool_metrics;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    runtime::{Handle, RuntimeMetrics},
    time::Instant,
};

use crate::{
    detached::Detached,
    memory::Memory,
    model::{JobStage, RequestId},
    monitor::Monitor,
    net::{ConnectionTracker, Tls},
    phase::PhaseCell,
    pool::{JobFilter, ListedJob, Pool, Pools, RunningJob, WorkerStats},
    rpc::{AccessControl, Calls, Health, Pages},
};

pub use otlp::export;
pub use page::PageMode;

/// Maximum number of jobs of a pool that are listed, the oldest first.
const MAX_JOBS: usize = 1000;

/// The enabled pages. The listener must be private in any case, because a client that reaches it can drain the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub struct Options {
    /// `/livez` and `/readyz`.
    pub probes: bool,
    /// `/metrics`.
    pub metrics: bool,
    /// `/debug/tasks`, which shows request ids and names of kinds.
    pub debug_tasks: bool,
    /// The page for people.
    pub page: PageMode,
}

/// The parts of the process that the pages show.
#[derive(Clone)]
pub struct OpsState {
    /// The served pools.
    pub pools: Pools,
    /// The detached jobs; `None` without a store.
    pub detached: Option<Detached>,
    /// What happened in the last minutes.
    pub monitor: Monitor,
    /// Phase of the process.
    pub phase: PhaseCell,
    /// Durations of calls.
    pub calls: Calls,
    /// Health of the process.
    pub health: Health,
    /// The serving runtimes.
    pub runtimes: Runtimes,
    /// The listeners, once they exist.
    pub listeners: Arc<OnceLock<Vec<Listener>>>,
    /// Counts of denied calls.
    pub access: AccessControl,
    /// TLS of the callers' listeners.
    pub tls: Option<Arc<Tls>>,
    /// Start of the process.
    pub started: Instant,
}

/// A listener, with its counters.
#[derive(Debug)]
pub struct Listener {
    /// Its name in the metrics.
    pub name: &'static str,
    /// Its connections.
    pub connections: ConnectionTracker,
    /// Its incomplete messages and unread answers.
    pub memory: Memory,
}

/// The pages about `state` that `options` enable.
pub fn pages(options: Options, state: Arc<OpsState>) -> Pages {
    let Options { probes, metrics, debug_tasks, page } = options;
    let mut router = Router::new();
    let mut paths = Vec::new();
    if probes {
        router = router.route("/livez", get(livez)).route("/readyz", get(readyz));
        paths.extend(["/livez", "/readyz"]);
    }
    if metrics {
        router = router.route("/metrics", get(metrics::metrics));
        paths.push("/metrics");
    }
    if debug_tasks {
        router = router.route("/debug/tasks", get(tasks));
        paths.push("/debug/tasks");
    }
    if page != PageMode::Off {
        router = page::add(page, router);
        paths.extend(page::paths());
    }
    Pages { router: router.with_state(state), paths, may_act: page == PageMode::Act }
}

/// Whether the process makes progress. A drain does not change the answer.
async fn livez(State(state): State<Arc<OpsState>>) -> Response {
    answer(state.health.is_serving("liveness"), "a pool lost workers to jobs that do not stop; restart the process")
}

/// Whether the process should get calls.
async fn readyz(State(state): State<Arc<OpsState>>) -> Response {
    answer(state.health.is_serving("readiness"), "the process is starting or draining")
}

/// The state of every worker, and the progress of every job in the pools. Times are in milliseconds.
async fn tasks(State(state): State<Arc<OpsState>>) -> Json<Value> {
    let pools: BTreeMap<_, _> = state.pools.all().iter().map(|pool| (pool.name().to_string(), show(pool))).collect();
    Json(json!({ "phase": lower(state.phase.get()), "pools": pools }))
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
    let ListedJob { job, pool: _, kind, names, stage, run, ended: _, age, left, traceparent, stop } = held;
    let mut shown = json!({
        "job": job.to_string(),
        "request_id": names.request_id.as_ref().map(RequestId::as_str),
        "detached_job": names.detached_job(),
        "kind": &**kind,
        "tenant": names.tenant.as_deref().unwrap_or_default(),
        "age_ms": millis(*age),
        "left_ms": millis(*left),
        "stopping": stop.is_some(),
    });
    if !traceparent.is_empty() {
        shown["traceparent"] = traceparent.as_str().into();
    }
    shown["stage"] = match stage {
        JobStage::Waiting => "waiting",
        JobStage::Queued => "queued",
        JobStage::Running if run.is_some_and(|run| run.stuck) => "stuck",
        JobStage::Running => "running",
        JobStage::Completed | JobStage::Failed => "ended",
    }
    .into();
    if let Some(RunningJob { worker, run, since_progress, .. }) = run {
        shown["worker"] = (*worker).into();
        shown["run_ms"] = millis(*run).into();
        shown["since_progress_ms"] = millis(*since_progress).into();
    }
    shown
}

fn worker(worker: &WorkerStats) -> Value {
    json!({
        "id": worker.id,
        "state": lower(worker.state),
        "job": worker.job.map(|job| job.to_string()),
        "completed": worker.completed,
        "failed": worker.failed,
        "mean_run_ms": millis(worker.mean_run),
        "since_progress_ms": millis(worker.since_progress),
    })
}

/// In milliseconds, rounded to the microsecond.
fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

/// The name of a variant, in lower case.
fn lower(variant: impl fmt::Debug) -> String {
    format!("{variant:?}").to_lowercase()
}

fn answer(well: bool, otherwise: &'static str) -> Response {
    if well {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{otherwise}\n")).into_response()
    }
}

/// The runtimes of the process, by name. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Runtimes(Arc<Mutex<Vec<(String, Handle)>>>);

impl Runtimes {
    /// Adds the current runtime, if there is one.
    pub fn add_current(&self, name: String) {
        if let Ok(handle) = Handle::try_current() {
            self.0.lock().push((name, handle));
        }
    }

    /// The figures of each runtime, by name.
    fn read(&self) -> Vec<(String, RuntimeMetrics)> {
        let mut all: Vec<_> = self.0.lock().iter().map(|(name, handle)| (name.clone(), handle.metrics())).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}
