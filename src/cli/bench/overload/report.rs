use std::{
    collections::BTreeMap,
    fmt::{Display, Formatter, Result},
    time::Duration,
};

use serde::Serialize;

use super::{
    OverloadArgs, Work,
    calls::{Call, Ended, Tally},
};
use crate::cli::{
    bench::report::Machine,
    output::{
        bytes, counted, setting,
        table::{Align, table},
    },
};

/// Share of the calls that may be sent late without a remark, and what is late.
const LATE: f64 = 0.01;
const LATE_MS: f64 = 20.0;

/// What the workers can do.
#[derive(Debug, Serialize)]
pub(super) struct Capacity {
    pub(super) jobs_per_s: f64,
    /// Worker seconds per second.
    pub(super) busy_workers: f64,
    pub(super) mean_run_ms: f64,
}

/// One load.
#[derive(Debug, Serialize)]
pub(super) struct Step {
    load: f64,
    offered: usize,
    offered_per_s: f64,
    completed: usize,
    /// Worker time of jobs that were answered in time over min(demand, capacity).
    useful_share: f64,
    admitted: usize,
    admitted_then_missed: f64,
    missed_by_reason: BTreeMap<String, u64>,
    refused: u64,
    refused_by_reason: BTreeMap<String, u64>,
    /// Of admitted calls, those that missed included, from the instant at which they were to be sent.
    admitted_p50_ms: f64,
    admitted_p99_ms: f64,
    refused_p99_ms: f64,
    /// How much later than planned the 99th of a hundred calls was sent.
    sent_late_p99_ms: f64,
    /// The most that the server had in RAM.
    server_memory_bytes: u64,
    server_cores: f64,
    client_cores: f64,
}

/// What `bench overload` prints.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    machine: Machine,
    work: Work,
    workers: u16,
    connections: u16,
    deadline_ms: f64,
    duration_s: f64,
    capacity: Capacity,
    steps: Vec<Step>,
}

impl Step {
    pub(super) fn new(
        args: &OverloadArgs,
        capacity: &Capacity,
        load: f64,
        tally: &Tally,
        server_memory_bytes: u64,
        [server_cores, client_cores]: [f64; 2],
    ) -> Self {
        let seconds = args.duration.as_secs_f64();
        let offered = tally.calls.len();
        let (completed, useful) = tally.completed();
        let demand = offered as f64 * capacity.mean_run_ms / 1e3;
        let could = demand.min(capacity.busy_workers * seconds);
        let (missed_by_reason, refused_by_reason) = (tally.misses(), tally.refusals());
        let (missed, refused): (u64, u64) = (missed_by_reason.values().sum(), refused_by_reason.values().sum());
        let admitted = offered - usize::try_from(refused).unwrap_or(offered);
        let latency = |call: &Call| call.latency;
        let is_refused = |call: &&Call| matches!(call.ended, Ended::Refused(_));
        let admitted_ms = sorted(tally.calls.iter().filter(|call| !is_refused(call)).map(latency));
        let refused_ms = sorted(tally.calls.iter().filter(is_refused).map(latency));
        Self {
            load,
            offered,
            offered_per_s: offered as f64 / seconds,
            completed,
            useful_share: useful.as_secs_f64() / could,
            admitted,
            admitted_then_missed: missed as f64 / admitted.max(1) as f64,
            missed_by_reason,
            refused,
            refused_by_reason,
            admitted_p50_ms: quantile(&admitted_ms, 0.5),
            admitted_p99_ms: quantile(&admitted_ms, 0.99),
            refused_p99_ms: quantile(&refused_ms, 0.99),
            sent_late_p99_ms: quantile(&sorted(tally.calls.iter().map(|call| call.late)), 1.0 - LATE),
            server_memory_bytes,
            server_cores,
            client_cores,
        }
    }

    fn row(&self) -> Vec<String> {
        let reasons: Vec<_> =
            self.refused_by_reason.iter().map(|(reason, count)| format!("{reason} × {count}")).collect();
        vec![
            format!("{}x", self.load),
            format!("{:.0}/s", self.offered_per_s),
            format!("{:.1} %", self.useful_share * 100.0),
            format!("{:.1} %", self.admitted_then_missed * 100.0),
            format!("{:.0}ms", self.admitted_p99_ms),
            format!("{:.1}ms", self.refused_p99_ms),
            bytes(self.server_memory_bytes),
            format!("{:.2}", self.server_cores),
            format!("{:.2}", self.client_cores),
            reasons.join(", "),
        ]
    }
}

impl Report {
    pub(super) fn new(machine: Machine, args: &OverloadArgs, capacity: Capacity, steps: Vec<Step>) -> Self {
        Self {
            machine,
            work: args.work,
            workers: args.workers(),
            connections: args.connections,
            deadline_ms: args.deadline.as_secs_f64() * 1e3,
            duration_s: args.duration.as_secs_f64(),
            capacity,
            steps,
        }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { machine, work: _, workers, connections, deadline_ms, duration_s, capacity, steps } = self;
        let deadline = setting(Duration::from_secs_f64(deadline_ms / 1e3));
        writeln!(
            f,
            "{} on {}, deadline {deadline}, {duration_s}s a load in an open loop over {connections} connections",
            self.work.place().1,
            counted(usize::from(*workers), "worker"),
        )?;
        let Capacity { jobs_per_s, busy_workers, mean_run_ms } = capacity;
        writeln!(
            f,
            "capacity  {jobs_per_s:.1} jobs/s of {mean_run_ms:.1}ms, {busy_workers:.2} workers busy, closed loop"
        )?;
        let heads = [
            "load",
            "offered",
            "useful",
            "missed",
            "admitted p99",
            "refused p99",
            "memory",
            "server cores",
            "client cores",
            "refused by reason",
        ];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        rows.extend(steps.iter().map(Step::row));
        let mut columns = [Align::Right; 10];
        columns[9] = Align::Left;
        table(&columns, &rows).iter().try_for_each(|line| writeln!(f, "{line}"))?;
        for step in steps {
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
        writeln!(f, "machine   {machine}")
    }
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: OverloadArgs,
    }

    fn call(latency_ms: u64, ended: Ended) -> Call {
        Call { latency: Duration::from_millis(latency_ms), late: Duration::ZERO, ended }
    }

    #[test]
    fn shares_are_of_what_could_have_been_had() {
        let args = Line::parse_from(["overload", "--duration", "1s"]).args;
        let capacity = || Capacity { jobs_per_s: 4.0, busy_workers: 2.0, mean_run_ms: 500.0 };
        let done = || call(100, Ended::Completed { run: Duration::from_millis(450) });
        let calls = vec![
            done(),
            done(),
            done(),
            call(500, Ended::Missed("RUN_TIMEOUT".into())),
            call(1, Ended::Refused("QUEUE_FULL".into())),
            call(3, Ended::Refused("QUEUE_FULL".into())),
        ];
        let step = Step::new(&args, &capacity(), 1.5, &Tally { calls }, 1 << 20, [0.5, 0.25]);
        // 1.35 of the 2 seconds that the workers had, of 3 that were asked for.
        assert!((step.useful_share - 0.675).abs() < 1e-9, "{step:?}");
        assert!((step.admitted_then_missed - 0.25).abs() < 1e-9 && step.admitted == 4, "{step:?}");
        assert_eq!((step.admitted_p99_ms, step.refused_p99_ms), (500.0, 3.0), "{step:?}");
        assert_eq!(step.refused_by_reason["QUEUE_FULL"], 2);

        let step = Step::new(&args, &capacity(), 0.5, &Tally { calls: vec![done()] }, 0, [0.0, 0.0]);
        assert!((step.useful_share - 0.9).abs() < 1e-9, "of what was asked for: {step:?}");
    }
}
