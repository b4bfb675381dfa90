//! Rules of the scheduler that the loads of `waterwheel sim` do not test, each with a case that fails without it.

use std::{num::NonZeroU32, time::Duration};

use tokio::time::Instant;

use super::{
    super::{Arrival, Bounds, Caps, Core, Verdict},
    Numbers,
    flows::{
        Arrives::{Closed, Open},
        Figures, FlowCase, TestFlow, means,
    },
};
use crate::model::{Criticality, KindId, KindLimits, Limit, Outcome, Rate, Share, WhenFull};

const NO_BOUND: Limit = Limit { concurrency: None, rate: None };
const FREE: KindLimits = KindLimits { all: NO_BOUND, per_key: NO_BOUND, keys: 100, share: Share::Each };
const A: TestFlow = TestFlow::PLAIN;

fn at_most(jobs: u32) -> Limit {
    Limit { concurrency: NonZeroU32::new(jobs), rate: None }
}

/// Runs flows on eight workers, which complete 160 jobs per second. Kind 0 has these limits, kind 1 none.
fn limited(limits: KindLimits, places: usize, flows: &[TestFlow]) -> Vec<Figures> {
    let case = FlowCase { workers: 8, places, limits: &[limits, FREE], flows, seconds: 30, explains: false };
    means(&case, 2)
}

fn unlimited(flows: &[TestFlow]) -> Vec<Figures> {
    limited(FREE, 1024, flows)
}

fn open(rate: f64) -> TestFlow {
    TestFlow { arrives: Open(rate), ..A }
}

fn keyed(keys: u32, rate: f64, deadline: f64) -> TestFlow {
    TestFlow { keys, deadline, ..open(rate) }
}

fn useful(figures: &[Figures]) -> f64 {
    figures.iter().map(|flow| flow.useful).sum::<f64>() / 8.0 / 30.0
}

/// If jobs behind ordering keys counted in the classes above, 70 % of the other jobs would be served.
#[test]
fn a_long_key_queue_of_a_more_important_class_keeps_no_worker_idle() {
    let important = TestFlow { class: Criticality::CriticalPlus, ..keyed(4, 120.0, 10.0) };
    let [_, plain] = unlimited(&[important, open(80.0)])[..] else { panic!("two flows") };
    assert!(plain.served() > 0.9, "{:.3} served", plain.served());
}

/// If blocked jobs counted before a ready job of their tenant, 92.5 % of the worker time would be useful.
#[test]
fn a_ready_job_passes_jobs_of_its_tenant_that_ordering_keys_block() {
    let useful = useful(&unlimited(&[keyed(4, 120.0, 2.0), open(160.0)]));
    assert!(useful > 0.96, "{useful:.3} useful");
}

/// If they did not count in their own class, 3.9 % of the jobs would miss their deadline.
#[test]
fn jobs_behind_ordering_keys_count_in_their_class() {
    let [jobs] = unlimited(&[keyed(20, 320.0, 2.0)])[..] else { panic!("one flow") };
    assert!(jobs.missed() < 0.015, "{:.3} missed", jobs.missed());
}

/// If the work in its key queue did not count, 59 % of the jobs of a hot key would miss their deadline.
#[test]
fn a_hot_key_accepts_only_jobs_that_it_can_serve_in_time() {
    let [hot, _] = unlimited(&[keyed(1, 100.0, 5.0), open(320.0)])[..] else { panic!("two flows") };
    assert!(hot.missed() < 0.2, "{:.3} missed", hot.missed());
}

/// If the wait for limits did not count, 59 to 92 % of the jobs would miss their deadline.
#[test]
fn a_limited_kind_accepts_only_jobs_that_can_start_in_time() {
    let one_in_100_ms = Rate { interval: Duration::from_millis(100), burst: NonZeroU32::MIN };
    let rate = Limit { rate: Some(one_in_100_ms), ..NO_BOUND };
    for limits in [
        KindLimits { all: at_most(1), ..FREE },
        KindLimits { all: rate, ..FREE },
        KindLimits { per_key: at_most(1), ..FREE },
        KindLimits { per_key: rate, ..FREE },
    ] {
        let flood = TestFlow { deadline: 2.0, limit_keys: 2, ..open(100.0) };
        let [flood, other] = limited(limits, 1024, &[flood, TestFlow { kind: 1, ..open(110.0) }])[..] else {
            panic!("two flows")
        };
        assert!(flood.missed() < 0.01 && other.served() > 0.95, "{limits:?}: {flood:?}, {other:?}");
    }
}

/// If queued jobs of a limited kind did not count before others, 2.7 % of the others would miss their deadline. If they
/// counted in full, 77 % of the jobs in the classes below would be served.
#[test]
fn a_limited_kind_counts_before_others_for_what_its_limit_allows() {
    let six = KindLimits { all: at_most(6), ..FREE };
    let [_, other] = limited(six, 1024, &[open(320.0), TestFlow { kind: 1, ..open(320.0) }])[..] else {
        panic!("two flows")
    };
    assert!(other.missed() < 0.013, "{:.3} missed", other.missed());
    let two = KindLimits { all: at_most(2), ..FREE };
    let important = TestFlow { class: Criticality::CriticalPlus, deadline: 2.0, ..open(200.0) };
    let [_, other] = limited(two, 1024, &[important, TestFlow { kind: 1, ..open(110.0) }])[..] else {
        panic!("two flows")
    };
    assert!(other.served() > 0.95, "{:.3} served", other.served());
}

/// If the kinds of a class did not alternate, 6 % of the jobs of a limited one would be served.
#[test]
fn kinds_of_a_class_alternate() {
    let four = KindLimits { all: at_most(4), ..FREE };
    let figures = limited(four, 1024, &[open(160.0), TestFlow { kind: 1, ..open(320.0) }]);
    assert!(figures[0].served() > 0.35, "{:.3} served", figures[0].served());
}

/// If a limited kind could fill the queue, 79 % of the worker time would be useful.
#[test]
fn a_limited_kind_leaves_half_of_a_small_queue_to_the_others() {
    let one = KindLimits { all: at_most(1), ..FREE };
    let flood = TestFlow { deadline: 5.0, ..open(200.0) };
    let useful = useful(&limited(one, 16, &[flood, TestFlow { kind: 1, ..open(140.0) }]));
    assert!(useful > 0.88, "{useful:.3} useful");
}

/// If only the first caller of a tenant were checked, 2.4 % of the jobs would miss their deadline. If the callers of a
/// tenant did not count before a further one, 1.9 % would.
#[test]
fn waiting_callers_are_admitted_by_the_same_policy() {
    let wait = |flow| TestFlow { when_full: WhenFull::Wait, ..flow };
    let flood = wait(TestFlow { deadline: 5.0, ..open(1600.0) });
    let nine = wait(TestFlow { tenant: "b", tenants: 9, ..open(72.0) });
    let [flood, nine] = limited(FREE, 16, &[flood, nine])[..] else { panic!("two flows") };
    assert!(flood.missed() < 0.014 && nine.served() > 0.99, "{flood:?}, {nine:?}");
}

/// Three jobs of four are stale before they start. Without `DropOldest`, the others would wait more than twice as long,
/// because the queue is full of jobs that arrived before them.
#[test]
fn newest_jobs_wait_for_a_shorter_time_if_they_replace_old_ones() {
    let wait_of = |when_full| {
        let flow = TestFlow { deadline: 10.0, when_full, ..open(640.0) };
        let figures = unlimited(&[flow])[0];
        let busy = useful(&[figures]);
        assert!(busy > 0.95, "{when_full:?}: {busy:.3} useful");
        figures.waited / figures.served
    };
    let [queued, replaced] = [WhenFull::Reject, WhenFull::DropOldest].map(wait_of);
    assert!(replaced < 0.5 * queued, "{replaced:.3} s instead of {queued:.3} s");
}

/// An idle tenant keeps its tag. Otherwise a tenant with long jobs would get two thirds of a worker.
#[test]
fn a_tenant_with_one_long_job_at_a_time_gets_half_of_the_worker() {
    let long = TestFlow { arrives: Closed(1), mean: 1.0, deadline: 100.0, ..A };
    let short = TestFlow { tenant: "b", kind: 1, arrives: Closed(30), deadline: 100.0, ..A };
    let case =
        FlowCase { workers: 1, places: 1024, limits: &[FREE; 2], flows: &[long, short], seconds: 60, explains: false };
    let share = means(&case, 4)[0].useful / 60.0;
    assert!((0.42..0.56).contains(&share), "{share:.3} of the worker");
}

/// Two tenants send a new job whenever they get an answer.
#[test]
fn the_expected_wait_includes_jobs_that_another_tenant_will_send() {
    for callers in [1, 10] {
        let of = |tenant, callers| TestFlow { tenant, arrives: Closed(callers), deadline: 100.0, ..A };
        let flows = &[of("a", callers), of("b", 30)];
        let case = FlowCase { workers: 2, places: 1024, limits: &[FREE], flows, seconds: 30, explains: true };
        for flow in means(&case, 2) {
            let off = flow.expected / flow.waited;
            assert!(
                (0.75..1.25).contains(&off),
                "the expected wait is {off:.2} of the real one, with {callers} callers"
            );
        }
    }
}

/// The jobs of one tenant hit their run timeout, and keep their worker for two seconds after that.
#[test]
fn a_tenant_whose_jobs_ignore_a_cancel_gets_half_of_the_worker() {
    let civil = TestFlow { arrives: Closed(31), mean: 0.4, deadline: 10_000.0, when_full: WhenFull::Wait, ..A };
    let stubborn = TestFlow { tenant: "stubborn", kind: 1, arrives: Closed(6), ignores: 2.0, ..civil };
    let flows = &[civil, stubborn];
    let case = FlowCase { workers: 1, places: 1024, limits: &[FREE; 2], flows, seconds: 2_000, explains: true };
    let figures = means(&case, 3);
    let share = figures[1].held / (figures[0].held + figures[1].held);
    assert!((0.45..=0.55).contains(&share), "jobs that ignore a cancel have {share:.3} of the worker");
    for flow in figures {
        let off = flow.expected / flow.waited;
        assert!((0.75..=1.25).contains(&off), "the expected wait is {off:.3} of the real one");
    }
}

#[test]
fn expected_waits_are_right_for_tenants_with_short_and_long_jobs() {
    let short = TestFlow { arrives: Closed(40), mean: 0.1, deadline: 10_000.0, when_full: WhenFull::Wait, ..A };
    let long = TestFlow { tenant: "long", kind: 1, arrives: Closed(12), mean: 0.5, ..short };
    let flows = &[short, long];
    let case = FlowCase { workers: 1, places: 1024, limits: &[FREE; 2], flows, seconds: 500, explains: true };
    for flow in means(&case, 2) {
        let off = flow.expected / flow.waited;
        assert!((0.75..=1.25).contains(&off), "the expected wait is {off:.3} of the real one");
    }
}

const JOBS: u32 = 100_000;

/// Jobs of many tenants and limit keys in a pool that never queues.
#[test]
fn unused_limit_keys_are_forgotten() {
    let caps = Caps { jobs: 16, bytes: 64, waiting: 8, tenant_share: 1.0, stuck: 0 };
    let (now, mut core) = (Instant::now(), Core::<Numbers>::new(caps, 1, 1));
    let none = Limit { concurrency: None, rate: None };
    let per_key = Limit { concurrency: Some(NonZeroU32::MIN), rate: None };
    let limits = KindLimits { all: none, per_key, ..FREE };
    core.reconfigure(now, caps, &[limits], &mut Vec::new());
    core.resize(now, Bounds { min: 1, max: 1 }, || 0, &mut Vec::new());
    for job in 0..JOBS {
        let (tenant, limit_key) = ((job % 1_000).to_string(), (job % 150).to_string());
        let arrival = Arrival {
            job,
            kind: KindId(0),
            class: Criticality::Critical,
            bytes: 1,
            start_by: now + Duration::from_secs(1),
            finish_by: now + Duration::from_secs(1),
            tenant: &tenant,
            ordering_key: "",
            limit_key: &limit_key,
            when_full: WhenFull::Reject,
            is_stored: false,
            shard: 0,
        };
        let verdict = core.offer(now, arrival, |_| job, &mut Vec::new());
        let Verdict::Start(grant) = verdict else { panic!("the worker is idle") };
        core.end(now, grant.key, Outcome::Completed, Duration::from_micros(10));
        core.release(now, grant.key, grant.state, &mut Vec::new());
        if job % 1_000 == 0 {
            core.assert_invariants();
        }
    }
    core.assert_invariants();
    assert_eq!(core.limits.uses(|_| 0)[0].1.keys, 0, "no key is remembered");
}
