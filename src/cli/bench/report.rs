//! What `bench` prints: the figures, named as programs read them.

mod text;

use std::{collections::BTreeMap, fs, thread};

use serde::Serialize;

use super::{
    Rpc,
    load::{Measurement, Plan},
};

/// The machine that the figures belong to.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    cores: usize,
    cpu: Option<String>,
    kernel: Option<String>,
    /// `release`, or `debug`: figures of the latter are good for nothing.
    build: &'static str,
    version: &'static str,
}

/// The settings of a load.
#[derive(Debug, Serialize)]
struct Settings {
    kind: String,
    connections: usize,
    in_flight_per_connection: usize,
    payload_bytes: usize,
    deadline_s: f64,
    client_threads: usize,
}

/// One measurement.
#[derive(Debug, Serialize)]
struct Figures {
    rpc: Rpc,
    elapsed_s: f64,
    replies: u64,
    throughput_per_s: f64,
    latency_us: Latency,
    errors: BTreeMap<String, u64>,
    unanswered: u64,
    server_cpu_us_per_request: Option<f64>,
    client_cpu_us_per_request: Option<f64>,
    write_syscalls_per_reply: Option<f64>,
}

/// Latencies of completed calls, in microseconds.
#[derive(Debug, Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    p99_9: f64,
    max: f64,
}

/// What `bench` prints of one load.
#[derive(Debug, Serialize)]
pub(super) struct LoadReport {
    machine: Machine,
    settings: Settings,
    server: String,
    server_pid: Option<u32>,
    #[serde(flatten)]
    figures: Figures,
}

impl Machine {
    /// This machine, as far as it can be told.
    pub(super) fn this() -> Self {
        let line = |path: &str| Some(fs::read_to_string(path).ok()?.trim().to_owned());
        let model = |text: String| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        Self {
            cores: thread::available_parallelism().map_or(1, Into::into),
            cpu: line("/proc/cpuinfo").and_then(model),
            kernel: line("/proc/sys/kernel/osrelease"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

impl From<&Plan> for Settings {
    fn from(plan: &Plan) -> Self {
        Self {
            kind: plan.job.kind.clone(),
            connections: plan.connections,
            in_flight_per_connection: plan.in_flight,
            payload_bytes: plan.job.payload.len(),
            deadline_s: plan.deadline.as_secs_f64(),
            client_threads: plan.client_threads,
        }
    }
}

impl Figures {
    fn of(rpc: Rpc, measurement: &Measurement) -> Self {
        let latencies = &measurement.totals.latencies;
        let at = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1e3;
        let errors = measurement.totals.errors.iter().map(|(reason, count)| (reason.to_string(), *count));
        Self {
            rpc,
            elapsed_s: measurement.elapsed.as_secs_f64(),
            replies: measurement.replies,
            throughput_per_s: measurement.throughput(),
            latency_us: Latency { p50: at(0.5), p90: at(0.9), p99: at(0.99), p99_9: at(0.999), max: at(1.0) },
            errors: errors.collect(),
            unanswered: measurement.totals.unanswered,
            server_cpu_us_per_request: measurement.server_cpu_us(),
            client_cpu_us_per_request: measurement.client_cpu_us(),
            write_syscalls_per_reply: measurement.write_syscalls_per_reply(),
        }
    }
}

impl LoadReport {
    /// Whether any call was answered as it should be.
    pub(super) fn has_replies(&self) -> bool {
        self.figures.replies > self.figures.errors.values().sum()
    }

    /// The report of one load.
    pub(super) fn new(machine: Machine, plan: &Plan, measurement: &Measurement) -> Self {
        Self {
            machine,
            settings: plan.into(),
            server: plan.server.to_string(),
            server_pid: plan.server_pid,
            figures: Figures::of(plan.rpc, measurement),
        }
    }
}
