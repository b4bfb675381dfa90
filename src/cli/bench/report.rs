//! What `bench` prints.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    time::Duration,
};

use serde::Serialize;

use super::{
    Rpc,
    child::Flavour,
    compare::{Comparison, Round, Spread},
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

/// What `bench --compare-bare` prints.
#[derive(Debug, Serialize)]
pub(super) struct ComparisonReport {
    machine: Machine,
    settings: Settings,
    burst_s: f64,
    /// Whether both sides are the bare echo, so that the ratios show the noise.
    control: bool,
    bare_executable: String,
    compare_bare: CompareBare,
    submit_many: SubmitMany,
    rounds: Vec<RoundReport>,
}

/// The subject over the bare echo: medians over the rounds, and how they spread.
#[derive(Debug, Serialize)]
struct CompareBare {
    cpu_ratio: Option<f64>,
    throughput_ratio: Option<f64>,
    cpu_ratio_spread: Option<Spread>,
    throughput_ratio_spread: Option<Spread>,
}

/// `SubmitMany` over `Submit` on the subject: median over the rounds, and how it spreads.
#[derive(Debug, Serialize)]
struct SubmitMany {
    jobs_per_cpu_second_ratio: Option<f64>,
    jobs_per_cpu_second_ratio_spread: Option<Spread>,
}

/// The raw figures of one round.
#[derive(Debug, Serialize)]
struct RoundReport {
    bare: Figures,
    submit: Figures,
    submit_many: Figures,
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
            cores: std::thread::available_parallelism().map_or(1, Into::into),
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

    /// Writes the report for people.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Figures { rpc, latency_us, errors, unanswered, .. } = &self.figures;
        writeln!(out, "{} of {} on {}: {}", rpc.method(), self.settings.kind, self.server, self.settings)?;
        writeln!(out, "throughput  {:.0}/s", self.figures.throughput_per_s)?;
        writeln!(out, "latency     {latency_us}")?;
        writeln!(out, "server cpu  {}", per_request(self.figures.server_cpu_us_per_request))?;
        writeln!(out, "client cpu  {}", per_request(self.figures.client_cpu_us_per_request))?;
        if let Some(writes) = self.figures.write_syscalls_per_reply {
            writeln!(out, "writes      {writes:.3} system calls of the server per reply")?;
        }
        for (reason, count) in errors {
            writeln!(out, "error       {reason} × {count}")?;
        }
        if *unanswered > 0 {
            writeln!(out, "unanswered  {unanswered} calls, a second past their deadline")?;
        }
        writeln!(out, "machine     {}", self.machine)
    }
}

impl ComparisonReport {
    /// The report of a comparison.
    pub(super) fn new(machine: Machine, comparison: &Comparison, rounds: &[Round]) -> Self {
        let spread = |ratio: fn(&Round) -> Option<f64>| Spread::of(rounds.iter().filter_map(ratio));
        let (cpu, throughput) = (spread(Round::cpu_ratio), spread(Round::throughput_ratio));
        let many = spread(Round::jobs_per_cpu_second_ratio);
        let median = |spread: Option<Spread>| spread.map(|spread| spread.median);
        let raw = |round: &Round| RoundReport {
            bare: Figures::of(Rpc::Submit, &round.bare),
            submit: Figures::of(Rpc::Submit, &round.submit),
            submit_many: Figures::of(Rpc::SubmitMany, &round.submit_many),
        };
        Self {
            machine,
            settings: (&comparison.plan).into(),
            burst_s: comparison.burst.as_secs_f64(),
            control: comparison.subject == Flavour::Bare,
            bare_executable: comparison.bare_executable.display().to_string(),
            compare_bare: CompareBare {
                cpu_ratio: median(cpu),
                throughput_ratio: median(throughput),
                cpu_ratio_spread: cpu,
                throughput_ratio_spread: throughput,
            },
            submit_many: SubmitMany { jobs_per_cpu_second_ratio: median(many), jobs_per_cpu_second_ratio_spread: many },
            rounds: rounds.iter().map(raw).collect(),
        }
    }

    /// Writes the report for people.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let subject = if self.control { "bare (control)" } else { "waterwheel" };
        writeln!(out, "{} rounds of {} s bursts in turn: {}", self.rounds.len(), self.burst_s, self.settings)?;
        writeln!(out, "{:<28}{:>12}{:>14}{:>16}", "medians", "cpu µs/job", "jobs/s", "writes/reply")?;
        self.row(out, "bare tonic echo, Submit", |round| &round.bare)?;
        self.row(out, &format!("{subject}, Submit"), |round| &round.submit)?;
        self.row(out, &format!("{subject}, SubmitMany"), |round| &round.submit_many)?;
        writeln!(out, "{:<28}{:>12}{:>14}{:>16}", "ratios", "median", "quartiles", "range")?;
        ratio(out, "cpu / bare", self.compare_bare.cpu_ratio_spread)?;
        ratio(out, "throughput / bare", self.compare_bare.throughput_ratio_spread)?;
        ratio(out, "jobs/cpu s, Many / Submit", self.submit_many.jobs_per_cpu_second_ratio_spread)?;
        writeln!(out, "machine {}", self.machine)
    }

    fn row(&self, out: &mut dyn Write, name: &str, side: fn(&RoundReport) -> &Figures) -> io::Result<()> {
        let median = |figure: fn(&Figures) -> Option<f64>, digits: usize| {
            let values = self.rounds.iter().filter_map(|round| figure(side(round)));
            Spread::of(values).map_or("-".into(), |spread| format!("{:.digits$}", spread.median))
        };
        let cpu = median(|figures| figures.server_cpu_us_per_request, 2);
        let throughput = median(|figures| Some(figures.throughput_per_s), 0);
        let writes = median(|figures| figures.write_syscalls_per_reply, 3);
        writeln!(out, "{name:<28}{cpu:>12}{throughput:>14}{writes:>16}")
    }
}

fn ratio(out: &mut dyn Write, name: &str, spread: Option<Spread>) -> io::Result<()> {
    let Some(spread) = spread else { return writeln!(out, "{name:<28}{:>12}", "-") };
    let quartiles = format!("{:.2}–{:.2}", spread.lower_quartile, spread.upper_quartile);
    let range = format!("{:.2}–{:.2}", spread.min, spread.max);
    writeln!(out, "{name:<28}{:>12.3}{quartiles:>14}{range:>16}", spread.median)
}

fn per_request(cpu: Option<f64>) -> String {
    cpu.map_or("unknown; name its process with --server-pid".into(), |cpu| format!("{cpu:.2} µs per request"))
}

impl std::fmt::Display for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { connections, in_flight_per_connection, payload_bytes, .. } = self;
        write!(f, "{connections} connections × {in_flight_per_connection} in flight, {payload_bytes}-byte payload")
    }
}

impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { p50, p90, p99, p99_9, max } = self;
        let points = [("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p99_9), ("max", max)];
        let written = points.map(|(name, micros)| format!("{name} {:.3?}", Duration::from_secs_f64(micros / 1e6)));
        f.write_str(&written.join("   "))
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unknown = || "unknown".to_owned();
        let cpu = self.cpu.clone().unwrap_or_else(unknown);
        let kernel = self.kernel.clone().unwrap_or_else(unknown);
        write!(f, "{} cores of {cpu}, kernel {kernel}, {} build {}", self.cores, self.build, self.version)
    }
}
