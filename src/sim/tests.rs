//! Tests of the admission policy under simulated loads, with a few seeds each.

use std::time::Duration;

use super::{Disturbance, LaterLoad, Load, Outcome, Pattern, Retry, Served, Service, Source, run, world::run_with};
use crate::model::Criticality;

mod batches;
mod others;

use others::{CodelLifo, Expired, Fifo, HalfBudget};

const SEEDS: u64 = 4;

/// Runs a load against one policy.
type Run = fn(&Load) -> Outcome;

/// A bounded queue, and workers that ignore deadlines.
const FIFO: Run = |load| run_with(Box::new(Fifo::new(load.workers, load.queue, Expired::Run)), load);
/// The same, but jobs that have expired in the queue are dropped.
const FIFO_EXPIRY: Run = |load| run_with(Box::new(Fifo::new(load.workers, load.queue, Expired::Dropped)), load);
/// Controlled delay (CoDel); last in, first out while the queue is not empty.
const CODEL_LIFO: Run = |load| run_with(Box::new(CodelLifo::new(load.workers, load.queue)), load);
/// Accepts a job if its expected wait is at most half of its budget, without an adaptive margin.
const HALF_BUDGET: Run = |load| run_with(Box::new(HalfBudget::new(load.workers, load.queue)), load);

/// The useful share, and the share of admitted jobs that missed their deadline: means over the seeds.
fn means(load: impl Fn(u64) -> Load) -> (f64, f64) {
    means_of(run, load)
}

fn means_of(run: Run, load: impl Fn(u64) -> Load) -> (f64, f64) {
    let outcomes: Vec<Outcome> = (0..SEEDS).map(|seed| run(&load(seed))).collect();
    let mean = |figure: fn(&Outcome) -> f64| outcomes.iter().map(figure).sum::<f64>() / SEEDS as f64;
    (mean(|outcome| outcome.useful_share), mean(|outcome| outcome.admitted_then_missed))
}

#[test]
fn under_overload_nearly_all_work_is_useful() {
    let cases = [(Service::Exponential, 2.0, 0.95), (Service::Exponential, 10.0, 0.95)];
    let lognormal = [(Service::Lognormal, 2.0, 0.88), (Service::Lognormal, 10.0, 0.88)];
    for (service, times, least) in cases.into_iter().chain(lognormal) {
        for tenants in [1, 10, 100] {
            let tenants = vec![(1.0, Some(Criticality::Critical)); tenants];
            let load = |seed| Load { tenants: tenants.clone(), ..Load::steady(times, 60, service, seed) };
            let (useful, missed) = means(load);
            let case = format!("{service:?} at {times}, {} tenants", tenants.len());
            assert!(useful >= least, "{case}: {useful:.3} useful");
            assert!(missed <= 0.028, "{case}: {missed:.4} missed");
        }
    }
}

#[test]
fn without_overload_nearly_all_jobs_complete() {
    let (useful, missed) = means(|seed| Load::steady(0.7, 40, Service::Exponential, seed));
    assert!(useful > 0.995 && missed < 0.005, "{useful:.3} useful, {missed:.4} missed");
}

#[test]
fn a_bounded_queue_alone_wastes_nearly_all_worker_time() {
    let (useful, missed) = means_of(FIFO, |seed| Load::steady(2.0, 40, Service::Exponential, seed));
    assert!(useful < 0.1 && missed > 0.8, "{useful:.3} useful, {missed:.4} missed");
}

#[test]
fn important_classes_are_served_first_and_the_others_still_run() {
    let load = |seed| Load { tenants: vec![(1.0, None)], ..Load::steady(2.0, 40, Service::Exponential, seed) };
    let outcomes: Vec<Outcome> = (0..SEEDS).map(|seed| run(&load(seed))).collect();
    let served = [0, 1, 2, 3].map(|rank| {
        let class: Served = outcomes.iter().map(|outcome| &outcome.tally.classes[rank]).sum();
        class.share().expect("jobs of each class arrive")
    });
    assert!(served[0] >= 0.99 && served[1] >= 0.80 && served[2] > 0.05 && served[3] > 0.02, "{served:?}");
    assert!(outcomes.iter().all(|outcome| outcome.admitted_then_missed <= 0.05));
}

/// One tenant sends ten times the capacity of the workers; nine others send a twentieth of it each.
fn flooded(workers: usize, seed: u64) -> Load {
    let class = Some(Criticality::Critical);
    let tenants = std::iter::once((10.0, class)).chain((0..9).map(|_| (0.05, class))).collect();
    Load { tenants, ..nine_tenants(workers, 10.45, seed) }
}

/// The nine tenants alone; together they send `times` the capacity.
fn nine_tenants(workers: usize, times: f64, seed: u64) -> Load {
    let deadline = Duration::from_secs(8) / u32::try_from(workers.min(8)).expect("a few");
    let tenants = vec![(1.0, Some(Criticality::Critical)); 9];
    Load { tenants, workers, deadline, ..Load::steady(times, 60, Service::Exponential, seed) }
}

/// For the nine tenants: the 99th percentile of their waits, in milliseconds, and the served share of their jobs.
fn nine_tenants_of(load: impl Fn(u64) -> Load) -> (f64, f64) {
    let (mut waits, mut arrived) = (Vec::new(), 0);
    for seed in 0..SEEDS {
        let outcome = run(&load(seed));
        let first = outcome.tally.tenants.len() - 9;
        arrived += outcome.tally.tenants[first..].iter().map(|tenant| tenant.arrived).sum::<u64>();
        waits.extend(outcome.tally.waits[first..].concat());
        assert!(outcome.admitted_then_missed <= 0.05, "{:.3} missed", outcome.admitted_then_missed);
    }
    waits.sort_by(f64::total_cmp);
    (waits[waits.len() * 99 / 100], waits.len() as f64 / arrived as f64)
}

/// Running jobs are not interrupted. So even a job of the highest priority waits until a worker is free, and for other
/// jobs of that priority. With `n` workers, exponential run times of mean `S`, and a load `a` of such jobs, their waits
/// are exponential with mean `S / n / (1 - a)` (Cobham, "Priority assignment in waiting line problems", 1954).
#[test]
fn a_flooding_tenant_hardly_delays_the_others() {
    for workers in [1, 2, 4, 8, 16] {
        let (wait, served) = nine_tenants_of(|seed| flooded(workers, seed));
        let (quiet, _) = nine_tenants_of(|seed| nine_tenants(workers, 0.45, seed));
        let ideal = 50.0 / workers as f64 / 0.55 * 100_f64.ln();
        assert!(served >= 0.995, "{workers} workers: {served:.4} of the other tenants' jobs were served");
        let waits = format!("the p99 is {wait:.0} ms, without the flood {quiet:.0} ms, with priority {ideal:.0} ms");
        assert!(quiet < wait && wait < 2.1 * ideal, "{workers} workers: {waits}");
    }
    // A deadline of ten mean run times: jobs of the flooding tenant miss it, but those of the others are accepted.
    for (workers, least) in [(2, 0.975), (4, 0.995), (8, 0.995)] {
        let deadline = Duration::from_millis(500);
        let (_, served) = nine_tenants_of(|seed| Load { deadline, ..flooded(workers, seed) });
        assert!(served >= least, "{workers} workers, 500 ms: {served:.4} of the other tenants' jobs were served");
    }
    let useful = run(&flooded(8, 0)).useful_share;
    assert!(useful > 0.95, "{useful:.3}");
}

#[test]
fn the_pool_recovers_soon_after_a_disturbance() {
    let (from, until) = (Duration::from_secs(10), Duration::from_secs(20));
    let slow = Some(Disturbance { from, until, what: 4.0 });
    let lost = Some(Disturbance { from, until, what: 4 });
    let then = Some(LaterLoad { times: 0.7, lasts: Duration::from_secs(5) });
    for seed in 0..SEEDS {
        let calm = Load::steady(0.8, 25, Service::Exponential, seed);
        for (what, within, load) in [
            ("a slow-down of four times", 2, Load { slow, ..calm.clone() }),
            ("the loss of half of the workers", 1, Load { lost, ..calm.clone() }),
            ("ten times the load", 1, Load { then, ..Load::steady(10.0, 20, Service::Exponential, seed) }),
        ] {
            let outcome = run(&load);
            let recovery = outcome.recovery.unwrap_or(Duration::MAX);
            assert!(recovery <= Duration::from_secs(within), "{what}: {recovery:?}");
            assert!(outcome.useful_share > 0.8, "{what}: {:.3} useful", outcome.useful_share);
        }
    }
}

#[test]
fn other_policies_show_their_known_results() {
    let at = |policy, times| means_of(policy, |seed| Load::steady(times, 20, Service::Exponential, seed));
    let (useful, missed) = at(CODEL_LIFO, 2.0);
    assert!(useful > 0.97 && (0.45..0.55).contains(&missed), "CoDel: {useful:.3} useful, {missed:.3} missed");
    let (useful, missed) = at(FIFO_EXPIRY, 2.0);
    assert!((0.3..0.45).contains(&useful) && (0.45..0.55).contains(&missed), "FIFO: {useful:.3}, {missed:.3}");
    let (useful, missed) = at(HALF_BUDGET, 4.0);
    let (own, own_missed) = at(run, 4.0);
    assert!(own > useful && own_missed < missed, "{own:.3} {own_missed:.4}, without a margin {useful:.3} {missed:.4}");
}

#[test]
fn a_queue_without_deadlines_recovers_slowly() {
    let then = Some(LaterLoad { times: 0.7, lasts: Duration::from_secs(5) });
    let outcome = FIFO(&Load { then, ..Load::steady(2.0, 20, Service::Exponential, 1) });
    assert!(outcome.recovery.is_none_or(|recovery| recovery > Duration::from_secs(3)), "{:?}", outcome.recovery);
}

/// The rows of `benches/plot.py`.
#[test]
#[ignore = "prints what docs/overload.md draws"]
fn figures_of_five_policies() {
    use std::io::Write as _;

    let policies: [(&str, Run); 5] = [
        ("ours", run),
        ("half-budget", HALF_BUDGET),
        ("codel-lifo", CODEL_LIFO),
        ("fifo-expiry", FIFO_EXPIRY),
        ("fifo", FIFO),
    ];
    for load in [0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0] {
        for (policy, seed) in policies.iter().flat_map(|policy| (0..20).map(move |seed| (policy, seed))) {
            let outcome = policy.1(&Load::steady(load, 20, Service::Exponential, seed));
            let row = serde_json::json!({
                "policy": policy.0, "load": load, "seed": seed, "service": "exponential", "arrivals": "poisson",
                "useful_share": outcome.useful_share, "admitted_then_missed": outcome.admitted_then_missed,
            });
            writeln!(std::io::stdout(), "{row}").unwrap();
        }
    }
}

#[test]
fn under_bursty_overload_most_work_is_useful() {
    for (pattern, least) in [(Pattern::OnOff, 0.77), (Pattern::Bursts, 0.88)] {
        let source = Source::Drawn { pattern, mean: Duration::from_millis(50), service: Service::Exponential };
        for tenants in [1, 10] {
            let tenants = vec![(1.0, Some(Criticality::Critical)); tenants];
            let steady = |seed| Load::steady(2.0, 40, Service::Exponential, seed);
            let load = |seed| Load { source: source.clone(), tenants: tenants.clone(), ..steady(seed) };
            let (useful, missed) = means(load);
            let case = format!("{pattern:?}, {} tenants", tenants.len());
            assert!(useful >= least && missed <= 0.045, "{case}: {useful:.3} useful, {missed:.4} missed");
        }
    }
}

#[test]
fn retries_do_not_reduce_the_useful_work() {
    let tries = |retry| {
        let outcome = run(&Load { retry, ..Load::steady(2.0, 30, Service::Exponential, 5) });
        let (useful, missed) = (outcome.useful_share, outcome.admitted_then_missed);
        assert!(useful > 0.95 && missed < 0.03, "{retry:?}: {useful:.3} useful, {missed:.4} missed");
        outcome.tally.attempts as f64 / outcome.tally.arrived as f64
    };
    let [never, obey, grpc, ignore] = [Retry::Never, Retry::Obey, Retry::Grpc, Retry::Ignore].map(tries);
    assert!(never == 1.0 && obey > 1.5 && ignore > 1.5, "{never:.2} {obey:.2} {ignore:.2}");
    assert!(grpc > 1.0 && grpc < 1.3, "{grpc:.2}");
}

#[test]
fn a_thousand_tenants_get_similar_shares() {
    let tenants = vec![(1.0, Some(Criticality::Critical)); 1000];
    let load = Load { tenants, ..Load::steady(2.0, 60, Service::Exponential, 2) };
    let outcome = run(&load);
    assert!(outcome.useful_share > 0.93 && outcome.admitted_then_missed < 0.05, "{:.3}", outcome.useful_share);
    assert!(outcome.fairness > 0.8, "{:.3}", outcome.fairness);
}

#[test]
fn the_same_seed_gives_the_same_results() {
    let results = || {
        let outcome = run(&Load::steady(2.0, 10, Service::Lognormal, 7));
        (outcome.tally.arrived, outcome.tally.admitted, outcome.tally.missed, outcome.tally.useful)
    };
    assert_eq!(results(), results());
}
