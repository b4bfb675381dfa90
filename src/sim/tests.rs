//! The claims of the admission policy, on a few seeds each.

use std::time::Duration;

use super::{Disturbance, Load, Outcome, Pattern, Retry, Service, Source, run, world::run_with};
use crate::model::Criticality;

mod others;

use others::{CodelLifo, Expired, Fifo, HalfBudget};

const SEEDS: u64 = 4;

/// Runs a load against one policy.
type Run = fn(&Load) -> Outcome;

/// A queue of bounded length, and workers that know of no deadline: what most people write.
const FIFO: Run = |load| run_with(Box::new(Fifo::new(load.workers, load.queue, Expired::Run)), load);
/// The same, without the jobs that have expired when a worker is free for them.
const FIFO_EXPIRY: Run = |load| run_with(Box::new(Fifo::new(load.workers, load.queue, Expired::Dropped)), load);
/// Controlled delay, and last in first out while the queue does not empty.
const CODEL_LIFO: Run = |load| run_with(Box::new(CodelLifo::new(load.workers, load.queue)), load);
/// Accepts where the expected wait is at most half of the budget, without a margin that learns.
const HALF_BUDGET: Run = |load| run_with(Box::new(HalfBudget::new(load.workers, load.queue)), load);

/// Useful share and admitted-then-missed, as means over the seeds.
fn means(load: impl Fn(u64) -> Load) -> (f64, f64) {
    means_of(run, load)
}

fn means_of(run: Run, load: impl Fn(u64) -> Load) -> (f64, f64) {
    let outcomes: Vec<Outcome> = (0..SEEDS).map(|seed| run(&load(seed))).collect();
    let mean = |figure: fn(&Outcome) -> f64| outcomes.iter().map(figure).sum::<f64>() / SEEDS as f64;
    (mean(|outcome| outcome.useful_share), mean(|outcome| outcome.admitted_then_missed))
}

#[test]
fn overload_leaves_nearly_all_of_the_work_useful() {
    let cases = [(Service::Exponential, 2.0, 0.95), (Service::Exponential, 10.0, 0.95)];
    let lognormal = [(Service::Lognormal, 2.0, 0.88), (Service::Lognormal, 10.0, 0.88)];
    for (service, times, least) in cases.into_iter().chain(lognormal) {
        for tenants in [1, 10, 100] {
            let tenants = vec![(1.0, Some(Criticality::Critical)); tenants];
            let load = |seed| Load { tenants: tenants.clone(), ..Load::steady(times, 60, service, seed) };
            let (useful, missed) = means(load);
            let told = format!("{service:?} at {times}, {} tenants", tenants.len());
            assert!(useful >= least, "{told}: {useful:.3} useful");
            assert!(missed <= 0.028, "{told}: {missed:.4} missed");
        }
    }
}

#[test]
fn a_pool_that_is_not_overloaded_refuses_nobody() {
    let (useful, missed) = means(|seed| Load::steady(0.7, 40, Service::Exponential, seed));
    assert!(useful > 0.995 && missed < 0.005, "{useful:.3} useful, {missed:.4} missed");
}

#[test]
fn a_bounded_queue_alone_wastes_the_workers() {
    let (useful, missed) = means_of(FIFO, |seed| Load::steady(2.0, 40, Service::Exponential, seed));
    assert!(useful < 0.1 && missed > 0.8, "{useful:.3} useful, {missed:.4} missed");
}

#[test]
fn the_more_important_classes_come_first_and_the_others_still_move() {
    let load = |seed| Load { tenants: vec![(1.0, None)], ..Load::steady(2.0, 40, Service::Exponential, seed) };
    let outcomes: Vec<Outcome> = (0..SEEDS).map(|seed| run(&load(seed))).collect();
    let served = [0, 1, 2, 3].map(|rank| {
        let of = |figure: fn((u64, u64)) -> u64| {
            outcomes.iter().map(|outcome| figure(outcome.tally.classes[rank])).sum::<u64>() as f64
        };
        of(|class| class.1) / of(|class| class.0)
    });
    assert!(served[0] >= 0.99 && served[1] >= 0.80 && served[2] > 0.05 && served[3] > 0.02, "{served:?}");
    assert!(outcomes.iter().all(|outcome| outcome.admitted_then_missed <= 0.05));
}

/// One tenant with ten times what the workers can do, beside nine with a twentieth each.
fn flood(workers: usize, seed: u64) -> Load {
    let class = Some(Criticality::Critical);
    let tenants = std::iter::once((10.0, class)).chain((0..9).map(|_| (0.05, class))).collect();
    Load { tenants, ..nine(workers, 10.45, seed) }
}

/// The nine alone, where the load is 0.45.
fn nine(workers: usize, times: f64, seed: u64) -> Load {
    let deadline = Duration::from_secs(8) / u32::try_from(workers.min(8)).expect("a few");
    let tenants = vec![(1.0, Some(Criticality::Critical)); 9];
    Load { tenants, workers, deadline, ..Load::steady(times, 60, Service::Exponential, seed) }
}

/// The 99th of a hundred waits of the nine, in milliseconds, and the share of their jobs that was served.
fn of_the_nine(load: impl Fn(u64) -> Load) -> (f64, f64) {
    let (mut waits, mut arrived) = (Vec::new(), 0);
    for seed in 0..SEEDS {
        let outcome = run(&load(seed));
        let nine = outcome.tally.tenants.len() - 9;
        arrived += outcome.tally.tenants[nine..].iter().map(|tenant| tenant.0).sum::<u64>();
        waits.extend(outcome.tally.waits[nine..].concat());
        assert!(outcome.admitted_then_missed <= 0.05, "{:.3} missed", outcome.admitted_then_missed);
    }
    waits.sort_by(f64::total_cmp);
    (waits[waits.len() * 99 / 100], waits.len() as f64 / arrived as f64)
}

/// No job is taken from a worker, so that even one that goes before all others waits for an end, and for those of its
/// own sort: with `n` workers, exponential runs of mean `S` and a share `a` of them asked for, such waits are exponential
/// with mean `S / n / (1 - a)` (Cobham, Priority assignment in waiting line problems, 1954).
#[test]
fn a_tenant_that_asks_for_too_much_takes_nothing_from_the_others() {
    for workers in [1, 2, 4, 8, 16] {
        let (wait, served) = of_the_nine(|seed| flood(workers, seed));
        let (quiet, _) = of_the_nine(|seed| nine(workers, 0.45, seed));
        let first = 50.0 / workers as f64 / 0.55 * 100_f64.ln();
        assert!(served >= 0.995, "{workers} workers: {served:.4} of the quiet tenants' jobs were served");
        let told = format!("p99 of a wait is {wait:.0} ms, {quiet:.0} without the flood, of who goes first {first:.0}");
        assert!(quiet < wait && wait < 2.1 * first, "{workers} workers: {told}");
    }
    // Ten mean runs to the deadline: those who ask for too much miss theirs, which is no reason to refuse the nine.
    for (workers, least) in [(2, 0.975), (4, 0.995), (8, 0.995)] {
        let deadline = Duration::from_millis(500);
        let (_, served) = of_the_nine(|seed| Load { deadline, ..flood(workers, seed) });
        assert!(served >= least, "{workers} workers, 500 ms: {served:.4} of the quiet tenants' jobs were served");
    }
    let useful = run(&flood(8, 0)).useful_share;
    assert!(useful > 0.95, "{useful:.3}");
}

#[test]
fn all_is_well_again_soon() {
    let (from, until) = (Duration::from_secs(10), Duration::from_secs(20));
    let slow = Some(Disturbance { from, until, what: 4.0 });
    let lost = Some(Disturbance { from, until, what: 4 });
    let then = Some((0.7, Duration::from_secs(5)));
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
fn other_policies_do_what_is_known_of_them() {
    let at = |policy, times| means_of(policy, |seed| Load::steady(times, 20, Service::Exponential, seed));
    let (useful, missed) = at(CODEL_LIFO, 2.0);
    assert!(useful > 0.97 && (0.45..0.55).contains(&missed), "CoDel: {useful:.3} useful, {missed:.3} missed");
    let (useful, missed) = at(FIFO_EXPIRY, 2.0);
    assert!((0.3..0.45).contains(&useful) && (0.45..0.55).contains(&missed), "FIFO: {useful:.3}, {missed:.3}");
    let (useful, missed) = at(HALF_BUDGET, 4.0);
    let (ours, our_missed) = at(run, 4.0);
    assert!(
        ours > useful && our_missed < missed,
        "{ours:.3} {our_missed:.4}, without a margin {useful:.3} {missed:.4}"
    );
}

#[test]
fn a_queue_that_knows_no_deadline_stays_full_of_the_past() {
    let then = Some((0.7, Duration::from_secs(5)));
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
fn rushes_and_lulls_leave_nearly_all_of_the_work_useful() {
    for (pattern, least) in [(Pattern::OnOff, 0.77), (Pattern::Bursts, 0.88)] {
        let source = Source::Drawn { pattern, mean: Duration::from_millis(50), service: Service::Exponential };
        for tenants in [1, 10] {
            let tenants = vec![(1.0, Some(Criticality::Critical)); tenants];
            let steady = |seed| Load::steady(2.0, 40, Service::Exponential, seed);
            let load = |seed| Load { source: source.clone(), tenants: tenants.clone(), ..steady(seed) };
            let (useful, missed) = means(load);
            let told = format!("{pattern:?}, {} tenants", tenants.len());
            assert!(useful >= least && missed <= 0.045, "{told}: {useful:.3} useful, {missed:.4} missed");
        }
    }
}

#[test]
fn retries_take_nothing_from_the_work_whether_callers_do_as_they_are_told_or_not() {
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
fn a_thousand_tenants_are_served_alike() {
    let tenants = vec![(1.0, Some(Criticality::Critical)); 1000];
    let load = Load { tenants, ..Load::steady(2.0, 60, Service::Exponential, 2) };
    let outcome = run(&load);
    assert!(outcome.useful_share > 0.93 && outcome.admitted_then_missed < 0.05, "{:.3}", outcome.useful_share);
    assert!(outcome.fairness > 0.8, "{:.3}", outcome.fairness);
}

#[test]
fn one_seed_is_one_story() {
    let tell = || {
        let outcome = run(&Load::steady(2.0, 10, Service::HeavyTailed, 7));
        (outcome.tally.arrived, outcome.tally.admitted, outcome.tally.missed, outcome.tally.useful)
    };
    assert_eq!(tell(), tell());
}
