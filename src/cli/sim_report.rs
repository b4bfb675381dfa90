//! The results of `waterwheel sim`, as a table and as JSON.

use serde_json::{Value, json};

use super::{
    output::{
        Align::{self, Left, Right},
        headed,
    },
    sim::{Case, name},
};
use crate::sim::Outcome;

/// Columns of the table. `tries` are submissions per job. The last two columns, for the tenants that do not flood the
/// workers, are shown only with `--flood`.
const HEADS: [&str; 11] = [
    "service",
    "arrivals",
    "load",
    "useful",
    "missed",
    "refused",
    "wait p99",
    "recovery",
    "tries",
    "others served",
    "others p99",
];
const COLUMNS: [Align; 11] = [Left, Left, Right, Right, Right, Right, Right, Right, Right, Right, Right];

/// The table's figures of one run.
pub(super) struct Figures {
    useful_share: f64,
    missed: f64,
    refused: f64,
    wait_p99_ms: f64,
    recovery_ms: Option<f64>,
    tries: f64,
    /// Figures of all tenants except the flooding one.
    others: Option<(f64, f64)>,
}

impl Figures {
    pub(super) fn new(case: &Case, outcome: &Outcome) -> Self {
        let tally = &outcome.tally;
        Self {
            useful_share: outcome.useful_share,
            missed: outcome.admitted_then_missed,
            refused: tally.refused as f64 / tally.attempts.max(1) as f64,
            wait_p99_ms: outcome.wait_of_all(0.99),
            recovery_ms: recovery_ms(outcome),
            tries: tally.attempts as f64 / tally.arrived.max(1) as f64,
            others: case.flood.map(|_| outcome.of_others(0.99)),
        }
    }
}

fn recovery_ms(outcome: &Outcome) -> Option<f64> {
    outcome.recovery.map(|recovery| recovery.as_secs_f64() * 1e3)
}

pub(super) fn table(is_flooded: bool, rows: Vec<Vec<String>>) -> String {
    let shown = if is_flooded { HEADS.len() } else { HEADS.len() - 2 };
    headed(&HEADS[..shown], &COLUMNS[..shown], rows).join("\n")
}

/// Means over the seeds of a case.
pub(super) fn row(case: &Case, seeds: &[Figures]) -> Vec<String> {
    let mean = |figure: fn(&Figures) -> f64| seeds.iter().map(figure).sum::<f64>() / seeds.len() as f64;
    // The longest recovery; `-` if a run did not recover.
    let recoveries: Option<Vec<f64>> = seeds.iter().map(|figures| figures.recovery_ms).collect();
    let recovery = recoveries.map(|all| all.into_iter().fold(0.0, f64::max));
    let useful = mean(|figures| figures.useful_share);
    let mut row = vec![
        case.service.clone(),
        case.arrivals.clone(),
        format!("{}x", case.times),
        // Not a number if nothing could be served.
        if useful.is_finite() { percent(useful) } else { "-".to_owned() },
        percent(mean(|figures| figures.missed)),
        percent(mean(|figures| figures.refused)),
        format!("{:.0}ms", mean(|figures| figures.wait_p99_ms)),
        recovery.map_or("-".to_owned(), |recovery| format!("{recovery:.0}ms")),
        format!("{:.2}", mean(|figures| figures.tries)),
    ];
    if case.flood.is_some() {
        row.push(percent(mean(|figures| figures.others.map_or(0.0, |others| others.0))));
        row.push(format!("{:.0}ms", mean(|figures| figures.others.map_or(0.0, |others| others.1))));
    }
    row
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// All figures of one run.
pub(super) fn json(case: &Case, seed: u64, outcome: &Outcome) -> Value {
    let Case { load, .. } = case;
    let tally = &outcome.tally;
    let served = |(arrived, served): (u64, u64)| (arrived > 0).then(|| served as f64 / arrived as f64);
    let waits = (0..tally.tenants.len()).map(|tenant| outcome.wait(tenant, 0.99));
    let (others_served, others_wait_p99_ms) = case.flood.map(|_| outcome.of_others(0.99)).unzip();
    json!({
        "load": case.times,
        "service": case.service,
        "arrivals": case.arrivals,
        "tenants": tally.tenants.len(),
        // The load of the flooding tenant alone.
        "flood": case.flood,
        "workers": load.workers,
        "deadline_ms": load.deadline.as_secs_f64() * 1e3,
        // Time during which jobs arrived.
        "lasts_s": load.lasts.as_secs_f64(),
        "queue": load.queue,
        "retry": name(&load.retry),
        "seed": seed,
        "useful_share": outcome.useful_share,
        "admitted_then_missed": outcome.admitted_then_missed,
        // `null` without a disturbance, or without a recovery.
        "recovery_ms": recovery_ms(outcome),
        // Jobs, submissions, refused submissions, and accepted jobs.
        "arrived": tally.arrived,
        "attempts": tally.attempts,
        "refused": tally.refused,
        "admitted": tally.admitted,
        "useful_s": tally.useful.as_secs_f64(),
        "wasted_s": tally.wasted.as_secs_f64(),
        "wait_p50_ms": outcome.wait_of_all(0.5),
        "wait_p99_ms": outcome.wait_of_all(0.99),
        // The longest 99th percentile of any tenant.
        "worst_tenant_wait_p99_ms": waits.fold(0.0, f64::max),
        // Jain's index over the tenants' served shares.
        "fairness": outcome.fairness,
        // Served share by class, the most important first; `null` without arrivals.
        "served_by_class": tally.classes.map(served),
        // For all tenants except the flooding one; `null` if no tenant floods.
        "others_served": others_served,
        "others_wait_p99_ms": others_wait_p99_ms,
    })
}
