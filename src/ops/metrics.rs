//! `/metrics` for Prometheus. The text is written for each request.
//!
//! Names follow OpenTelemetry's conventions in Prometheus form: dots become underscores, units and `_total` are
//! appended.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{
        HeaderMap, HeaderName, StatusCode,
        header::{ACCEPT, CONTENT_TYPE, VARY},
    },
    response::{IntoResponse, Response},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};
use tokio::{runtime::RuntimeMetrics, time::Instant};

use super::{
    OpsState,
    families::{Families, Family, Sort, Value},
    lower, pool_metrics,
};
use crate::{
    model::Durations,
    monitor::{Monitor, StoreState},
    net::{Closed, Refused},
    phase::Phase,
    telemetry::{STDERR, STDOUT},
};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Label of all tenants that the configuration does not name.
pub(super) const OTHER_TENANTS: &str = "_OTHER";
const PHASES: [Phase; 5] = [Phase::Starting, Phase::Serving, Phase::Draining, Phase::Stopping, Phase::Stopped];

/// In the OpenMetrics format for clients that accept it, else in the older text format.
pub(super) async fn metrics(State(state): State<Arc<OpsState>>, headers: HeaderMap) -> Response {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics(families(&state, None))));
    let mut page = String::new();
    match text::encode(&mut page, &registry) {
        Ok(()) if accepts_open_metrics(&headers) => ([(CONTENT_TYPE, OPEN_METRICS), VARIES], page).into_response(),
        Ok(()) => ([(CONTENT_TYPE, PLAIN_TEXT), VARIES], plain(&page)).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the metrics: {error}\n")).into_response()
        }
    }
}

const VARIES: (HeaderName, &str) = (VARY, "accept");

fn accepts_open_metrics(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.any(|value| value.contains("application/openmetrics-text"))
}

/// A page in Prometheus' text format, in which the name of a counter ends in `_total` everywhere.
fn plain(page: &str) -> String {
    let mut text = String::with_capacity(page.len() + page.len() / 8);
    let lines: Vec<&str> = page.lines().filter(|line| !line.starts_with("# UNIT ") && *line != "# EOF").collect();
    for (at, line) in lines.iter().enumerate() {
        // The type of a family follows its help.
        let kind = [Some(line), lines.get(at + 1)].into_iter().flatten().find_map(|line| line.strip_prefix("# TYPE "));
        match (line.strip_prefix("# "), kind.and_then(|kind| kind.strip_suffix(" counter"))) {
            (Some(comment), Some(name)) => {
                let comment = comment.replacen(name, &format!("{name}_total"), 1);
                text.extend(["# ", &comment, "\n"]);
            }
            _ => text.extend([line, "\n"]),
        }
    }
    text
}

/// All metrics, with exemplars of what happened after a time, if one is given. Parts that are not configured have no
/// series.
pub(super) fn families(state: &OpsState, exemplars_since: Option<Instant>) -> Vec<Family> {
    let mut families = Families::default();
    process(&mut families, state);
    runtimes(&mut families, &state.runtimes.read());
    calls(&mut families, state);
    connections(&mut families, state);
    pool_metrics::write(&mut families, &state.pools, exemplars_since);
    detached(&mut families, state);
    problems(&mut families, &state.monitor);
    security(&mut families, state);
    families.0
}

/// The families as a text.
struct Metrics(Vec<Family>);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|family| {
            let (sort, unit) = match family.sort {
                Sort::Counter => (MetricType::Counter, None),
                Sort::Gauge => (MetricType::Gauge, None),
                Sort::Durations => (MetricType::Histogram, Some(&Unit::Seconds)),
            };
            let mut written = encoder.encode_descriptor(family.name, family.help, unit, sort)?;
            match &family.points[..] {
                [(labels, value)] if labels.is_empty() => encode(written, family.sort, value),
                points => points
                    .iter()
                    .try_for_each(|(labels, value)| encode(written.encode_family(labels)?, family.sort, value)),
            }
        })
    }
}

fn encode(mut point: MetricEncoder<'_>, sort: Sort, value: &Value) -> fmt::Result {
    match value {
        Value::Whole(count) => point.encode_counter::<NoLabelSet, u64, u64>(count, None),
        Value::Number(number) if sort == Sort::Counter => point.encode_counter::<NoLabelSet, f64, u64>(number, None),
        Value::Number(number) => point.encode_gauge(number),
        Value::Durations(durations, _) => {
            let bounds = Durations::BOUNDS.into_iter().chain([f64::INFINITY]);
            let buckets: Vec<_> = bounds.zip(durations.counts).collect();
            let (sum, count) = (durations.sum.as_secs_f64(), durations.count());
            point.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        }
    }
}

/// The process and its build.
fn process(families: &mut Families, state: &OpsState) {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let build = [("version", env!("CARGO_PKG_VERSION")), ("profile", profile)];
    families.gauges("waterwheel_build_info", "Version and build profile, as labels; always 1", [(build, 1.0)]);
    families.gauge("waterwheel_uptime_seconds", "Time since the start", state.started.elapsed().as_secs_f64());
    let now = state.phase.get();
    let phase = |phase: Phase| ([("phase", lower(phase))], f64::from(u8::from(phase == now)));
    families.gauges("waterwheel_phase", "1 for the current phase of the process", PHASES.map(phase));
    let health = |name| ([("service", name)], f64::from(u8::from(state.health.is_serving(name))));
    let names = ["liveness", "readiness", "capacity"].into_iter().chain(state.detached.as_ref().map(|_| "store"));
    families.gauges("waterwheel_health", "1 if grpc.health.v1 reports SERVING for this name", names.map(health));
    let lost = [&STDERR, &STDOUT].map(|lines| ([("stream", lines.name())], lines.lost()));
    let help = "Lines that standard error or standard output did not take";
    families.counters("waterwheel_output_lost_lines", help, lost);
}

fn runtimes(families: &mut Families, runtimes: &[(String, RuntimeMetrics)]) {
    let runtimes = runtimes.iter().map(|(name, runtime)| ([("runtime", name.as_str())], runtime));
    let tasks = runtimes.clone().map(|(labels, it)| (labels, it.num_alive_tasks() as f64));
    families.gauges("tokio_runtime_alive_tasks", "Tasks of a runtime", tasks);
    let depth = runtimes.clone().map(|(labels, it)| (labels, it.global_queue_depth() as f64));
    families.gauges("tokio_runtime_global_queue_depth", "Tasks in the global queue of a runtime", depth);
    let busy = runtimes.clone().map(|(labels, it)| {
        let busy: Duration = (0..it.num_workers()).map(|worker| it.worker_total_busy_duration(worker)).sum();
        (labels, busy.as_secs_f64())
    });
    families.counters("tokio_runtime_busy_seconds", "Time for which a runtime ran tasks", busy);
    let parks = runtimes
        .map(|(labels, it)| (labels, (0..it.num_workers()).map(|worker| it.worker_park_count(worker)).sum::<u64>()));
    let help = "Times that a thread of a runtime parked, mostly because it had no task";
    families.counters("tokio_runtime_parks", help, parks);
}

fn calls(families: &mut Families, state: &OpsState) {
    let calls = state.calls.read();
    let calls = calls.iter().map(|call| {
        let labels = [("rpc_method", call.method), ("kind", &call.kind), ("rpc_status_code", call.status)];
        (labels, &call.durations)
    });
    let help = "Duration of calls, from arrival to the end of the work or of the stream";
    families.durations("rpc_server_call_duration", help, calls);
}

fn connections(families: &mut Families, state: &OpsState) {
    let listeners = state.listeners.get().map_or(&[][..], Vec::as_slice);
    let open = listeners.iter().map(|of| ([("listener", of.name)], of.connections.open() as f64));
    families.gauges("waterwheel_connections", "Open connections", open);
    let accepted = listeners.iter().map(|of| ([("listener", of.name)], of.connections.accepted()));
    families.counters("waterwheel_connections_accepted", "Accepted connections", accepted);
    let refused = listeners.iter().flat_map(|of| {
        let row = |it: &Refused| ([("listener", of.name), ("reason", it.as_str())], of.connections.refused(*it));
        Refused::ALL.iter().map(row)
    });
    families.counters("waterwheel_connections_refused", "Refused connections, by reason", refused);
    let held = listeners.iter().flat_map(|of| {
        [("uploads", of.memory.uploads()), ("answers", of.memory.answers())]
            .map(|(what, bytes)| ([("listener", of.name), ("what", what)], bytes as f64))
    });
    families.gauges("waterwheel_held_bytes", "Bytes of incomplete messages and unread answers", held);
    let closed = listeners.iter().flat_map(|of| {
        let row = |it: &Closed| ([("listener", of.name), ("reason", it.as_str())], of.connections.closed(*it));
        Closed::ALL.iter().map(row)
    });
    families.counters("waterwheel_connections_closed", "Accepted connections that were closed, by reason", closed);
}

/// The store and its jobs, by kind. A served kind has series even if it has no jobs.
fn detached(families: &mut Families, state: &OpsState) {
    let Some(detached) = &state.detached else { return };
    let figures = detached.store().figures();
    if let Some(commits) = &figures.commits {
        let help = "Duration of the transactions that write to the store";
        families.durations("waterwheel_store_commit_duration", help, [([("", ""); 0], commits)]);
    }
    if let Some(bytes) = figures.log_bytes {
        let help = "Log of the store's file that is not merged into it";
        families.gauge("waterwheel_store_log_bytes", help, bytes as f64);
    }
    if let Some(bytes) = figures.free_bytes {
        families.gauge("waterwheel_store_free_bytes", "Bytes that are free on the disk of the store", bytes as f64);
    }
    let Some(counted) = detached.depths() else { return };
    let mut depths: BTreeMap<_, _> = counted.into_iter().collect();
    for kind in state.pools.kinds() {
        depths.entry(kind.to_string()).or_default();
    }
    let jobs = depths.iter().flat_map(|(kind, of)| {
        let states = [("scheduled", of.scheduled), ("ready", of.ready), ("blocked", of.blocked)];
        let states = states.into_iter().chain([("running", of.leased), ("dead", of.dead)]);
        states.map(|(state, jobs)| ([("kind", &**kind), ("state", state)], jobs as f64))
    });
    families.gauges("waterwheel_detached_jobs", "Detached jobs by state", jobs);
    let ages = depths.iter().map(|(kind, of)| ([("kind", &**kind)], of.oldest_ready.unwrap_or_default().as_secs_f64()));
    let help = "Age of the detached job that has been ready for the longest time";
    families.gauges("waterwheel_detached_oldest_ready_age_seconds", help, ages);
}

/// What is wrong, and whether the store answers.
fn problems(families: &mut Families, monitor: &Monitor) {
    let problems = monitor.verdict().problems;
    let problems = problems
        .iter()
        .map(|problem| ([("problem", &*problem.key), ("subject", &*problem.subject), ("pool", &*problem.pool)], 1.0));
    families.gauges("waterwheel_problem", "1 for each problem that Stats reports", problems);
    if let Some(store) = monitor.store() {
        let state = |state: StoreState| ([("state", state.name())], f64::from(u8::from(state == store.state)));
        let states = StoreState::ALL.map(state);
        families.gauges("waterwheel_store_state", "1 for the state of the store", states);
    }
}

/// Denied calls, quotas, and reloads of certificates and keys.
fn security(families: &mut Families, state: &OpsState) {
    let OpsState { access, tls, .. } = state;
    let mut changes = Vec::new();
    if let Some(tls) = tls {
        let left = tls.certificate_seconds_left() as f64;
        families.gauge("waterwheel_certificate_left_seconds", "Time until the certificate expires", left);
        changes.push(("tls", [tls.reloads().done(), tls.reloads().failed()]));
    }
    if let Some(authenticator) = &access.authenticator {
        if let Some(reloads) = authenticator.reloads() {
            changes.push(("keys", [reloads.done(), reloads.failed()]));
        }
        let denied =
            [("unauthenticated", authenticator.unauthenticated()), ("permission_denied", authenticator.denied())];
        let denied = denied.map(|(reason, count)| ([("reason", reason)], count));
        families.counters("waterwheel_calls_denied", "Denied calls and jobs", denied);
    }
    if let Some(quotas) = &*access.quotas.load() {
        let refused = quotas.refused().map(|(tenant, count)| ([("tenant", tenant.unwrap_or(OTHER_TENANTS))], count));
        families.counters("waterwheel_quota_refused", "Jobs over the quota of their tenant", refused);
        let help = "Tenants that the general quota counts separately";
        families.gauge("waterwheel_quota_tenants", help, quotas.tenants() as f64);
    }
    if !changes.is_empty() {
        let changes = changes.iter().flat_map(|(files, [done, failed])| {
            [("taken", done), ("broken", failed)].map(|(how, count)| ([("files", *files), ("outcome", how)], *count))
        });
        families.counters("waterwheel_file_changes", "Reloads of changed files, by outcome", changes);
    }
}
