//! The results of `waterwheel sim`, as a table and as JSON.

use std::fmt;

use serde::Serialize;

use super::Case;
use crate::{
    cli::output::table::{Align, table},
    sim::Outcome,
};

/// The figures of one run, and one line of JSON.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    load: f64,
    service: &'static str,
    arrivals: &'static str,
    tenants: usize,
    /// What one more tenant, one of them, asked for alone.
    flood: Option<f64>,
    workers: usize,
    deadline_ms: f64,
    /// How long jobs arrived.
    lasts_s: f64,
    queue: usize,
    retry: &'static str,
    seed: u64,
    useful_share: f64,
    admitted_then_missed: f64,
    /// `null` where nothing was out of the ordinary, or all was never well again.
    recovery_ms: Option<f64>,
    /// Jobs; attempts to get room; attempts that were refused; jobs that got room.
    arrived: u64,
    attempts: u64,
    refused: u64,
    admitted: u64,
    useful_s: f64,
    wasted_s: f64,
    wait_p50_ms: f64,
    wait_p99_ms: f64,
    /// The longest 99th percentile of any tenant.
    worst_tenant_wait_p99_ms: f64,
    /// Jain's index over the tenants' served shares.
    fairness: f64,
    /// Served share by class, the most important first; `null` where none arrived.
    served_by_class: [Option<f64>; 4],
    /// Of all tenants but the one that floods; `null` where none does.
    others_served: Option<f64>,
    others_wait_p99_ms: Option<f64>,
}

impl Row {
    pub(super) fn new(case: &Case, seed: u64, outcome: &Outcome) -> Self {
        let share = |(arrived, served): (u64, u64)| (arrived > 0).then(|| served as f64 / arrived as f64);
        let tally = &outcome.tally;
        let (others_served, others_wait_p99_ms) = case.flood.map(|_| outcome.of_others(0.99)).unzip();
        Self {
            load: case.times,
            service: case.service,
            arrivals: case.arrivals,
            tenants: tally.tenants.len(),
            flood: case.flood,
            workers: case.load.workers,
            deadline_ms: case.load.deadline.as_secs_f64() * 1e3,
            lasts_s: case.load.lasts.as_secs_f64(),
            queue: case.load.queue,
            retry: case.load.retry.name(),
            seed,
            useful_share: outcome.useful_share,
            admitted_then_missed: outcome.admitted_then_missed,
            recovery_ms: outcome.recovery.map(|recovery| recovery.as_secs_f64() * 1e3),
            arrived: tally.arrived,
            attempts: tally.attempts,
            refused: tally.refused,
            admitted: tally.admitted,
            useful_s: tally.useful.as_secs_f64(),
            wasted_s: tally.wasted.as_secs_f64(),
            wait_p50_ms: outcome.wait_of_all(0.5),
            wait_p99_ms: outcome.wait_of_all(0.99),
            worst_tenant_wait_p99_ms: (0..tally.tenants.len())
                .map(|tenant| outcome.wait(tenant, 0.99))
                .fold(0.0, f64::max),
            fairness: outcome.fairness,
            served_by_class: tally.classes.map(share),
            others_served,
            others_wait_p99_ms,
        }
    }
}

/// In per cent; nothing where nothing could be had.
fn share(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", share * 100.0) } else { "-".to_owned() }
}

/// Means over the seeds, for people.
pub(super) struct Table {
    lines: Vec<Vec<String>>,
    is_flooded: bool,
}

impl Table {
    /// With what the others have, where one tenant floods the workers.
    pub(super) fn new(is_flooded: bool) -> Self {
        let heads = ["service", "arrivals", "load", "useful", "missed", "refused", "wait p99", "recovery", "tries"];
        let others = ["others served", "others p99"].into_iter().filter(|_| is_flooded);
        Self { lines: vec![heads.into_iter().chain(others).map(str::to_owned).collect()], is_flooded }
    }

    pub(super) fn add(&mut self, rows: &[Row]) {
        let Some(first) = rows.first() else { return };
        let mean = |figure: fn(&Row) -> f64| rows.iter().map(figure).sum::<f64>() / rows.len() as f64;
        // The longest says more than a mean would; one that never recovered says most.
        let recoveries: Option<Vec<f64>> = rows.iter().map(|row| row.recovery_ms).collect();
        let recovery = recoveries.map(|all| all.into_iter().fold(0.0, f64::max));
        let mut line = vec![
            first.service.to_owned(),
            first.arrivals.to_owned(),
            format!("{}x", first.load),
            share(mean(|row| row.useful_share)),
            format!("{:.1} %", mean(|row| row.admitted_then_missed) * 100.0),
            format!("{:.1} %", mean(|row| row.refused as f64 / row.attempts.max(1) as f64) * 100.0),
            format!("{:.0}ms", mean(|row| row.wait_p99_ms)),
            recovery.map_or("-".to_owned(), |recovery| format!("{recovery:.0}ms")),
            format!("{:.2}", mean(|row| row.attempts as f64 / row.arrived.max(1) as f64)),
        ];
        if self.is_flooded {
            line.push(format!("{:.1} %", mean(|row| row.others_served.unwrap_or_default()) * 100.0));
            line.push(format!("{:.0}ms", mean(|row| row.others_wait_p99_ms.unwrap_or_default())));
        }
        self.lines.push(line);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Align::{Left, Right};
        let columns = [Left, Left, Right, Right, Right, Right, Right, Right, Right, Right, Right];
        let columns = &columns[..self.lines[0].len()];
        table(columns, &self.lines).iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}
