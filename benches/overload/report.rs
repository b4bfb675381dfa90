use std::{
    collections::BTreeMap,
    fmt::{Display, Formatter, Result},
    fs, thread,
    time::Duration,
};

use serde::Serialize;

use crate::{
    OverloadArgs, Work,
    arrivals::Retry,
    calls::{Call, Ended, Tally},
};

/// Fraction of calls that may be sent late without a note, and the delay that counts as late.
const LATE: f64 = 0.01;
const LATE_MS: f64 = 20.0;

/// The measured capacity of the workers.
#[derive(Debug, Serialize)]
pub(crate) struct Capacity {
    pub(crate) jobs_per_s: f64,
    /// Worker seconds per second.
    pub(crate) busy_workers: f64,
    pub(crate) mean_run_ms: f64,
}

/// The machine of the measurements.
#[derive(Debug, Serialize)]
struct Machine {
    cores: usize,
    cpu: Option<String>,
    kernel: Option<String>,
    /// `release`, or `debug`, whose figures are not meaningful.
    build: &'static str,
    version: &'static str,
}

impl Machine {
    fn this() -> Self {
        let text = |path: &str| fs::read_to_string(path).ok();
        let model = |text: String| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        Self {
            cores: thread::available_parallelism().map_or(1, Into::into),
            cpu: text("/proc/cpuinfo").and_then(model),
            kernel: text("/proc/sys/kernel/osrelease").map(|line| line.trim().to_owned()),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// The results of one load.
#[derive(Debug, Serialize)]
pub(crate) struct Step {
    load: f64,
    offered: usize,
    offered_per_s: f64,
    completed: usize,
    /// Worker time of jobs that were answered in time, divided by the lesser of the requested and the available worker
    /// time.
    useful_share: f64,
    useful_s: f64,
    asked_s: f64,
    admitted: usize,
    admitted_then_missed: f64,
    missed_by_reason: BTreeMap<String, u64>,
    refused: u64,
    refused_by_reason: BTreeMap<String, u64>,
    /// Latency of admitted calls, including those that missed, from the planned time of sending.
    admitted_p50_ms: f64,
    admitted_p99_ms: f64,
    refused_p99_ms: f64,
    /// Attempts per call.
    tries: f64,
    /// Retries that obeyed the retry delay: their number, how late they were sent, and the fraction that was late by at
    /// most a tenth of the delay.
    retries_obeyed: usize,
    retries_late_p50_ms: f64,
    retries_late_p99_ms: f64,
    retries_on_time: Option<f64>,
    /// Fraction served by class, the most important first. `null` if no job of the class arrived.
    served_by_class: [Option<f64>; 4],
    /// 99th percentile of the delay of sending.
    sent_late_p99_ms: f64,
    /// Peak resident memory of the server.
    server_memory_bytes: u64,
    server_cores: f64,
    client_cores: f64,
}

/// The output of the benchmark.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    work: Work,
    workers: u16,
    connections: u16,
    deadline_ms: f64,
    duration_s: f64,
    retry: &'static str,
    classes: bool,
    capacity: Capacity,
    steps: Vec<Step>,
}

impl Step {
    pub(crate) fn new(
        args: &OverloadArgs,
        capacity: &Capacity,
        load: f64,
        tally: &Tally,
        server_memory_bytes: u64,
        [server_cores, client_cores]: [f64; 2],
    ) -> Self {
        let seconds = args.duration.as_secs_f64();
        let offered = tally.calls.len();
        let (completed, _) = tally.completed();
        let useful = tally.useful.as_secs_f64();
        let asked = useful + unserved(tally, capacity);
        // The available worker time does not depend on the measured capacity.
        let could = asked.min(f64::from(args.workers()) * seconds);
        let retried = || tally.calls.iter().flat_map(|call| &call.retried);
        let retries_late = sorted(retried().map(|retry| retry.late));
        let on_time = retried().filter(|retry| retry.late <= retry.delay / 10).count();
        let (missed_by_reason, refused_by_reason) = (tally.misses(), tally.refusals());
        let (missed, refused): (u64, u64) = (missed_by_reason.values().sum(), refused_by_reason.values().sum());
        let admitted = offered - usize::try_from(refused).unwrap_or(offered);
        assert_eq!(offered as u64, completed as u64 + missed + refused, "each call is accounted for");
        let latency = |call: &Call| call.latency;
        let is_refused = |call: &&Call| matches!(call.ended, Ended::Refused(_));
        let admitted_ms = sorted(tally.calls.iter().filter(|call| !is_refused(call)).map(latency));
        let refused_ms = sorted(tally.calls.iter().filter(is_refused).map(latency));
        Self {
            load,
            offered,
            offered_per_s: offered as f64 / seconds,
            completed,
            useful_share: if could > 0.0 { useful / could } else { 1.0 },
            useful_s: useful,
            asked_s: asked,
            admitted,
            admitted_then_missed: missed as f64 / admitted.max(1) as f64,
            missed_by_reason,
            refused,
            refused_by_reason,
            admitted_p50_ms: quantile(&admitted_ms, 0.5),
            admitted_p99_ms: quantile(&admitted_ms, 0.99),
            refused_p99_ms: quantile(&refused_ms, 0.99),
            tries: tally.calls.iter().map(|call| f64::from(call.attempts)).sum::<f64>() / offered.max(1) as f64,
            retries_obeyed: retries_late.len(),
            retries_late_p50_ms: quantile(&retries_late, 0.5),
            retries_late_p99_ms: quantile(&retries_late, 0.99),
            retries_on_time: (!retries_late.is_empty()).then(|| on_time as f64 / retries_late.len() as f64),
            served_by_class: served_by_class(tally),
            sent_late_p99_ms: quantile(&sorted(tally.calls.iter().map(|call| call.late)), 1.0 - LATE),
            server_memory_bytes,
            server_cores,
            client_cores,
        }
    }

    fn retries(&self) -> String {
        let Self { tries, retries_obeyed, retries_late_p50_ms: p50, retries_late_p99_ms: p99, .. } = self;
        let tries = format!("{tries:.2} tries a call");
        let Some(on_time) = self.retries_on_time else { return tries };
        let on_time = percent(on_time);
        format!("{tries}; {retries_obeyed} obeyed the delay, {p50:.1}ms late, p99 {p99:.1}ms; {on_time} within a tenth")
    }

    fn row(&self) -> String {
        let reasons: Vec<_> =
            self.refused_by_reason.iter().map(|(reason, count)| format!("{reason} × {count}")).collect();
        format!(
            "{:>5}x {:>8.0}/s {:>8} {:>8} {:>11.0}ms {:>10.1}ms {:>6.0}MiB {:>12.2}/{:.2}  {}",
            self.load,
            self.offered_per_s,
            percent(self.useful_share),
            percent(self.admitted_then_missed),
            self.admitted_p99_ms,
            self.refused_p99_ms,
            self.server_memory_bytes as f64 / f64::from(1 << 20),
            self.server_cores,
            self.client_cores,
            reasons.join(", "),
        )
    }
}

impl Report {
    pub(crate) fn new(args: &OverloadArgs, capacity: Capacity, steps: Vec<Step>) -> Self {
        Self {
            machine: Machine::this(),
            work: args.work,
            workers: args.workers(),
            connections: args.connections,
            deadline_ms: args.deadline.as_secs_f64() * 1e3,
            duration_s: args.duration.as_secs_f64(),
            retry: args.retry.name(),
            classes: args.classes,
            capacity,
            steps,
        }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { machine, work: _, workers, connections, deadline_ms, duration_s, retry, classes, capacity, steps } =
            self;
        writeln!(
            f,
            "{} on {workers} workers, deadline {deadline_ms}ms, {duration_s}s a load in an open loop over {connections} connections",
            self.work.place().1,
        )?;
        let Capacity { jobs_per_s, busy_workers, mean_run_ms } = capacity;
        writeln!(
            f,
            "capacity  {jobs_per_s:.1} jobs/s of {mean_run_ms:.1}ms, {busy_workers:.2} workers busy, closed loop"
        )?;
        writeln!(
            f,
            "  load    offered   useful   missed  admitted p99  refused p99     memory  server/client cores  refused"
        )?;
        steps.iter().try_for_each(|step| writeln!(f, "{}", step.row()))?;
        for step in steps {
            if *retry != Retry::Never.name() {
                writeln!(f, "retries   {}x: {}", step.load, step.retries())?;
            }
            if *classes {
                let shares = step.served_by_class.map(|share| share.map_or("-".to_owned(), percent));
                writeln!(f, "classes   {}x: {} served, the most important first", step.load, shares.join(", "))?;
            }
            for (reason, count) in &step.missed_by_reason {
                writeln!(f, "missed    {}x: {reason} × {count}", step.load)?;
            }
            if step.sent_late_p99_ms > LATE_MS {
                let Step { load, sent_late_p99_ms: late, .. } = step;
                writeln!(
                    f,
                    "note      {load}x: calls were sent up to {late:.0}ms late; this machine is too busy for that load"
                )?;
            }
        }
        let Machine { cores, cpu, kernel, build, version } = machine;
        let [cpu, kernel] = [cpu, kernel].map(|text| text.as_deref().unwrap_or("unknown"));
        writeln!(f, "machine   {cores} cores of {cpu}, kernel {kernel}, {build} build of {version}")
    }
}

/// Requested worker seconds of the jobs in the window that were not served. Unknown service times count as the mean.
fn unserved(tally: &Tally, capacity: &Capacity) -> f64 {
    let calls = tally.calls.iter().filter(|call| !call.is_served());
    calls.map(|call| call.asks.map_or(capacity.mean_run_ms / 1e3, |asks| asks.as_secs_f64())).sum()
}

fn served_by_class(tally: &Tally) -> [Option<f64>; 4] {
    std::array::from_fn(|rank| {
        let of_class: Vec<_> = tally.calls.iter().filter(|call| call.class.rank() == rank).collect();
        let served = of_class.iter().filter(|call| call.is_served()).count();
        (!of_class.is_empty()).then(|| served as f64 / of_class.len() as f64)
    })
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// In milliseconds, ascending.
fn sorted(durations: impl Iterator<Item = Duration>) -> Vec<f64> {
    let mut sorted: Vec<f64> = durations.map(|duration| duration.as_secs_f64() * 1e3).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).ceil() as usize).copied().unwrap_or_default()
}
