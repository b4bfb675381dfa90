//! The report of `bench`, as text and JSON.

use std::{
    collections::BTreeMap,
    fmt::{Display, Formatter, Result},
    time::Duration,
};

use serde::Serialize;

use super::{BenchArgs, Counts, Rpc};

/// The load, and its results.
#[derive(Debug, Serialize)]
pub(super) struct LoadReport {
    server: String,
    rpc: Rpc,
    kind: String,
    connections: usize,
    in_flight_per_connection: usize,
    payload_bytes: usize,
    deadline_s: f64,
    elapsed_s: f64,
    completed: u64,
    throughput_per_s: f64,
    latency_us: Latency,
    errors: BTreeMap<String, u64>,
    unanswered: u64,
    /// `release`, or `debug`, whose figures are not meaningful.
    build: &'static str,
    version: &'static str,
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

impl LoadReport {
    pub(super) fn new(args: &BenchArgs, counts: &Counts, unanswered: u64) -> Self {
        let Counts { latencies, errors } = counts;
        let at = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1e3;
        let elapsed_s = args.duration.as_secs_f64();
        Self {
            server: args.server.server.to_string(),
            rpc: args.rpc,
            kind: args.kind.clone(),
            connections: args.connections,
            in_flight_per_connection: args.in_flight,
            payload_bytes: args.payload,
            deadline_s: args.deadline.as_secs_f64(),
            elapsed_s,
            completed: latencies.len(),
            throughput_per_s: latencies.len() as f64 / elapsed_s,
            latency_us: Latency { p50: at(0.5), p90: at(0.9), p99: at(0.99), p99_9: at(0.999), max: at(1.0) },
            errors: errors.clone(),
            unanswered,
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// Whether any call completed.
    pub(super) fn has_completed(&self) -> bool {
        self.completed > 0
    }
}

impl Display for LoadReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { server, kind, connections, in_flight_per_connection, payload_bytes, build, version, .. } = self;
        let method = match self.rpc {
            Rpc::Submit => "Submit",
            Rpc::SubmitMany => "SubmitMany",
        };
        let load = format!("{connections} connections × {in_flight_per_connection} in flight");
        writeln!(f, "{method} of {kind} on {server}: {load}, {payload_bytes}-byte payload")?;
        writeln!(f, "throughput  {:.0}/s", self.throughput_per_s)?;
        let Latency { p50, p90, p99, p99_9, max } = &self.latency_us;
        let points = [("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p99_9), ("max", max)];
        let points = points.map(|(name, micros)| format!("{name} {:.2?}", Duration::from_secs_f64(micros / 1e6)));
        writeln!(f, "latency     {}", points.join("   "))?;
        for (reason, count) in &self.errors {
            writeln!(f, "error       {reason} × {count}")?;
        }
        if self.unanswered > 0 {
            writeln!(f, "unanswered  {} calls, a second past their deadline", self.unanswered)?;
        }
        writeln!(f, "client      {build} build of {version}")
    }
}
