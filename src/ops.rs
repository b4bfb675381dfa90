//! HTTP pages for operators and their tools, beside the gRPC services of the same listener.
//!
//! | path | what |
//! |---|---|
//! | `/livez`, `/readyz` | 200 or 503, by the same rules as `liveness` and `readiness` of `grpc.health.v1` |
//! | `/metrics` | Prometheus, with names in the manner of OpenTelemetry |
//! | `/debug/tasks` | the workers and the jobs that the pools hold, as JSON |
//!
//! All figures are read on request, from counters that exist anyway.

mod metrics;
mod tasks;

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use parking_lot::Mutex;
use tokio::{
    runtime::{Handle, RuntimeMetrics},
    time::Instant,
};

use crate::{
    detached::Detached,
    net::Tls,
    phase::PhaseCell,
    pool::Pools,
    rpc::{Calls, Guard, Health, Pages},
};

/// Which pages are served. A client that reaches the listener can drain the service, so that it is private in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub struct Options {
    /// `/livez` and `/readyz`. Default true.
    pub probes: bool,
    /// `/metrics`. Default true.
    pub metrics: bool,
    /// `/debug/tasks`, which shows request ids and names of kinds. Default true.
    pub debug_tasks: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { probes: true, metrics: true, debug_tasks: true }
    }
}

/// What the pages show.
#[derive(Clone)]
pub struct Subject {
    /// The served pools.
    pub pools: Pools,
    /// The detached jobs; `None` without a store.
    pub detached: Option<Detached>,
    /// Phase of the process.
    pub phase: PhaseCell,
    /// Durations of calls.
    pub calls: Calls,
    /// Health of the process.
    pub health: Health,
    /// The serving runtimes.
    pub runtimes: Runtimes,
    /// The connections of each listener, once there are any.
    pub connections: Arc<OnceLock<Vec<(&'static str, ReadConnections)>>>,
    /// Counts of denied calls.
    pub guard: Guard,
    /// TLS of the callers' listeners.
    pub tls: Option<Arc<Tls>>,
    /// Start of the process.
    pub started: Instant,
}

/// Reads the figures of a listener.
pub type ReadConnections = Box<dyn Fn() -> Connections + Send + Sync>;

/// The connections of a listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Connections {
    /// Open now.
    pub open: u64,
    /// Accepted.
    pub accepted: u64,
    /// Refused, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Accepted and closed, by reason.
    pub closed: Vec<(&'static str, u64)>,
    /// Bytes of incomplete messages and of unread answers.
    pub held: Vec<(&'static str, usize)>,
}

/// The pages about `subject` that `options` enable.
#[must_use]
pub fn pages(options: Options, subject: Subject) -> Pages {
    let Options { probes, metrics, debug_tasks } = options;
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
        router = router.route("/debug/tasks", get(tasks::tasks));
        paths.push("/debug/tasks");
    }
    Pages { router: router.with_state(Arc::new(subject)), paths }
}

/// Whether the process makes progress. A drain does not change it.
async fn livez(State(subject): State<Arc<Subject>>) -> Response {
    answer(subject.health.is_serving("liveness"), "a pool lost workers to jobs that do not stop; restart the process")
}

/// Whether the process should get calls.
async fn readyz(State(subject): State<Arc<Subject>>) -> Response {
    answer(subject.health.is_serving("readiness"), "the process is starting or draining")
}

fn answer(well: bool, otherwise: &'static str) -> Response {
    if well {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{otherwise}\n")).into_response()
    }
}

/// The runtimes of the process, by name. Clones share them.
#[derive(Clone, Default)]
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

impl fmt::Debug for Runtimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().iter().map(|(name, _)| name)).finish()
    }
}
