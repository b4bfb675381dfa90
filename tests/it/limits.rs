//! Kinds and limit keys keep their limits and do not block other jobs. Tenants keep their quotas. Refusals name the
//! limit, and a retry after their delay is accepted.

// tidy: real time, because the pushback is a promise about the clock of real callers.

use std::{num::NonZeroU32, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tonic::Code;
use waterwheel::{
    Job, Pool,
    app::OwnKind,
    handler::{Kind, KindOptions},
    model::{KindLimits, Limit, Rate},
    proto::{self, SubmitRequest},
};

use crate::{
    ops_pages,
    process::Process,
    refusal::{Refusal, Way},
    service::{Caller, Service, job, queued},
    support::{Counter, Gate, assert_idle, gated_counting, pass_time, pool},
};

fn some(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).expect("not zero")
}

fn rate(interval: Duration, burst: u32) -> Limit {
    Limit { concurrency: None, rate: Some(Rate { interval, burst: some(burst) }) }
}

fn at_most(jobs: u32) -> Limit {
    Limit { concurrency: Some(some(jobs)), rate: None }
}

/// A kind with limits that counts the jobs that start and waits for its gate.
fn held(name: &str, all: Limit, per_key: Limit, gate: &Gate, begun: &Counter) -> Kind {
    let limits = KindLimits { all, per_key, ..KindLimits::default() };
    gated_counting(name, gate, begun).options(KindOptions { limits, ..KindOptions::default() })
}

fn spawn(jobs: &mut JoinSet<()>, pool: &Pool, job: Job) {
    let ticket = pool.try_submit(job).expect("accepted");
    jobs.spawn(async move {
        ticket.await.expect("it completes");
    });
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_kind_with_a_rate_start_on_time_and_not_earlier() {
    let (gate, begun) = (Gate::new(), Counter::new());
    gate.open();
    let interval = Duration::from_millis(100);
    let pool = pool(8).kind(held("paced", rate(interval, 2), Limit::default(), &gate, &begun)).build();
    let start = Instant::now();
    let mut jobs = JoinSet::new();
    for _ in 0..12 {
        spawn(&mut jobs, &pool, Job::new("paced", ""));
    }
    let mut ends = Vec::new();
    while let Some(ended) = jobs.join_next().await {
        ended.expect("no panic");
        ends.push(start.elapsed().as_millis());
    }
    let late: Vec<u128> = ends.iter().enumerate().map(|(at, end)| end - 100 * at.saturating_sub(1) as u128).collect();
    // A timer may be late by its tick of a millisecond.
    assert!(late.iter().all(|late| *late <= 12), "{ends:?}");
    assert_eq!(begun.get(), 12);
    assert_idle(&pool, 8);
}

#[tokio::test(start_paused = true)]
async fn each_limit_key_has_a_separate_rate_and_does_not_delay_other_kinds() {
    let (gate, begun) = (Gate::new(), Counter::new());
    gate.open();
    let per_key = rate(Duration::from_secs(1), 1);
    let paced = held("paced", Limit::default(), per_key, &gate, &begun);
    let (free_begun, free) = (Counter::new(), Limit::default());
    let pool = pool(2).kind(paced).kind(held("free", free, free, &gate, &free_begun)).build();
    let mut jobs = JoinSet::new();
    for key in ["a", "b", "c"] {
        for _ in 0..3 {
            spawn(&mut jobs, &pool, Job::new("paced", "").limit_key(key));
        }
    }
    for _ in 0..20 {
        spawn(&mut jobs, &pool, Job::new("free", ""));
    }
    pass_time(Duration::from_millis(500)).await;
    assert_eq!((begun.get(), free_begun.get()), (3, 20), "the first job of each key, and all jobs without a limit");
    let stats = pool.stats();
    let limit = stats.kinds.iter().find(|kind| &*kind.name == "paced").and_then(|kind| kind.limit);
    let limit = limit.expect("it has a limit");
    assert_eq!((limit.keys, limit.queued, limit.running), (3, 6, 0));
    assert!(stats.kinds.iter().all(|kind| &*kind.name == "paced" || kind.limit.is_none()));
    pass_time(Duration::from_secs(1)).await;
    assert_eq!(begun.get(), 6);
    while let Some(ended) = jobs.join_next().await {
        ended.expect("no panic");
    }
    assert_idle(&pool, 2);
    // A key whose bucket is full again is removed when the next job arrives.
    pass_time(Duration::from_secs(2)).await;
    pool.submit(Job::new("paced", "").limit_key("d")).await.expect("it completes");
    let keys = pool.stats().kinds.iter().find_map(|kind| kind.limit).expect("it has a limit").keys;
    assert_eq!(keys, 1);
}

#[tokio::test(start_paused = true)]
async fn limit_keys_beyond_the_maximum_number_share_one_limit() {
    let (gate, begun) = (Gate::new(), Counter::new());
    let limits = KindLimits { per_key: at_most(1), keys: 2, ..KindLimits::default() };
    let kind = held("keyed", Limit::default(), at_most(1), &gate, &begun);
    let pool = pool(8).kind(kind.options(KindOptions { limits, ..KindOptions::default() })).build();
    let mut jobs = JoinSet::new();
    for key in ["a", "b", "c", "d", "e"] {
        spawn(&mut jobs, &pool, Job::new("keyed", "").limit_key(key));
    }
    begun.reached(3).await;
    assert_eq!(pool.stats().queued, 2, "a and b run one job each, and the other keys one together");
    gate.open();
    while let Some(ended) = jobs.join_next().await {
        ended.expect("no panic");
    }
    assert_idle(&pool, 8);
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_jobs_that_their_rate_delays() {
    let (gate, begun) = (Gate::new(), Counter::new());
    gate.open();
    let pool = pool(2).kind(held("paced", rate(Duration::from_secs(2), 1), Limit::default(), &gate, &begun)).build();
    for _ in 0..4 {
        pool.send(Job::new("paced", "")).expect("accepted");
    }
    pool.drain();
    let start = Instant::now();
    pool.wait().await;
    assert_eq!((begun.get(), pool.stats().counts.completed, start.elapsed().as_secs()), (4, 4, 6));
    assert_eq!(pool.report().lost, []);
}

const CONFIG: &str = r#"
    pool.one.workers = 4
    drain = { notice = "0s" }
    [kind.fragile]
    pool = "one"
    builtin = "sleep"
    limit = { concurrency = 2, per_key = { rate = 0.01, burst = 2 } }
"#;

#[tokio::test]
async fn limits_of_the_configuration_apply_to_every_submit_rpc() {
    let (gate, begun) = (Gate::new(), Counter::new());
    let free = held("free", Limit::default(), Limit::default(), &gate, &begun);
    let service = Service::start(CONFIG, vec![OwnKind::new("one", free)]);
    let caller = Caller::of(service.public).await;
    let fragile = |key: &str| proto::Job { limit_key: key.into(), ..job("fragile", "60000") };
    caller.leave(fragile("a"));
    caller.leave(fragile("a"));
    caller.until(|pool| pool.in_flight == 2).await;
    caller.leave(fragile("b"));
    caller.until(|pool| queued(pool) == 1).await;
    caller.leave(job("free", ""));
    begun.reached(1).await;
    let stats = caller.pool().await;
    let limit = stats.kinds.iter().find(|kind| kind.name == "fragile").and_then(|kind| kind.limit).unwrap();
    assert_eq!((limit.running, limit.queued, limit.keys), (2, 1, 2));
    let (all, per_key) = (limit.all.unwrap(), limit.per_key.unwrap());
    assert_eq!((all.concurrency, all.burst, per_key.concurrency, per_key.burst), (2, 0, 0, 2));
    assert!((per_key.rate - 0.01).abs() < 1e-9);
    for way in Way::ALL {
        // The next token of the key is due in 100 s, after the deadline of 30 s.
        let refusal: Refusal = way.fail(&caller.0, Some(fragile("a")), &[]).await;
        assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::ResourceExhausted, "LIMIT_EXCEEDED"));
        let facts = refusal.facts();
        assert_eq!((facts["limit"].as_str(), facts["execution"].as_str()), ("key_rate", "NOT_STARTED"));
        assert!(facts["expected_wait_ms"].parse::<f64>().unwrap() > 30_000.0, "{facts:?}");
        if way != Way::SubmitMany {
            assert!(refusal.pushback().is_some_and(|ms| ms > 0), "{refusal:?}");
        }
    }
    gate.open();
}

const SHOWN: &str = r#"
    pool.one.workers = 4
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
    limit = { concurrency = 3, rate = 0.02, per_key.concurrency = 1 }
"#;

#[tokio::test]
async fn submit_passes_its_limit_key_and_stats_and_metrics_show_the_limit() {
    let process = Process::serve(SHOWN).await;
    let caller = Caller::of(process.public).await;
    let args = ["submit", "sleep", "60000", "--limit-key", "k", "--deadline", "2m"];
    let submit = || process.command(&args).spawn().unwrap();
    let (_first, _second) = (submit(), submit());
    caller.until(|pool| pool.in_flight == 1 && queued(pool) == 1).await;
    let metrics = ops_pages::metrics(process.ops).await;
    let (waits, of_kinds): (Vec<_>, Vec<_>) = metrics
        .iter()
        .filter(|(name, _)| name.starts_with("waterwheel_kind_"))
        .partition(|(name, _)| name.starts_with("waterwheel_kind_expected_wait_seconds"));
    assert!(matches!(waits[..], [(_, wait)] if *wait > 0.0), "{waits:?}");
    let expected = [
        (r#"waterwheel_kind_jobs_queued{pool="one",kind="sleep"}"#, 1.0),
        (r#"waterwheel_kind_jobs_running_limit{pool="one",kind="sleep"}"#, 3.0),
        (r#"waterwheel_kind_jobs_running{pool="one",kind="sleep"}"#, 1.0),
        (r#"waterwheel_kind_key_jobs_running_limit{pool="one",kind="sleep"}"#, 1.0),
        (r#"waterwheel_kind_limit_keys_limit{pool="one",kind="sleep"}"#, 10_000.0),
        (r#"waterwheel_kind_limit_keys{pool="one",kind="sleep"}"#, 1.0),
        (r#"waterwheel_kind_starts_per_second_limit{pool="one",kind="sleep"}"#, 0.02),
    ];
    let of_kinds: Vec<_> = of_kinds.into_iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(of_kinds, expected);
    let shown = process.run("stats").await.out;
    let (start, end) = (
        "limit of sleep  1 running  1 queued  expected wait ",
        "  at most 3, 0.02/s, 1 at once  each of 1 keys: at most 1",
    );
    assert!(shown.lines().any(|line| line.trim().starts_with(start) && line.trim().ends_with(end)), "{shown}");
}

const QUOTAS: &str = r#"
    drain = { notice = "0s", finish = "1s", kill = "0s" }
    pool.one.workers = 8
    kind.echo = { pool = "one", builtin = "echo" }
    kind.sleep = { pool = "one", builtin = "sleep" }
    [quota]
    rate = 1
    burst = 4
    [quota.tenant.narrow]
    in_flight = 2
    [quota.tenant.wide]
    rate = 1000
    burst = 1000
"#;

fn of(tenant: &str, job: proto::Job) -> proto::Job {
    proto::Job { tenant: tenant.into(), ..job }
}

async fn completes(caller: &Caller, job: proto::Job) -> bool {
    caller.0.clone().submit(SubmitRequest { job: Some(job) }).await.is_ok()
}

/// Each RPC refuses a tenant after its burst, with a retry delay. A retry after the delay is accepted.
///
/// Other tenants are not affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_over_its_rate_is_refused_with_a_retry_delay() {
    let service = Service::start(QUOTAS, Vec::new());
    let caller = Caller::of(service.public).await;
    for (at, way) in Way::ALL.into_iter().enumerate() {
        let tenant = format!("tenant-{at}");
        for _ in 0..4 {
            assert!(completes(&caller, of(&tenant, job("echo", "x"))).await, "{way:?}");
        }
        let refusal = way.fail(&caller.0, Some(of(&tenant, job("echo", "x"))), &[("x-request-id", "it")]).await;
        assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::ResourceExhausted, "QUOTA_EXCEEDED"));
        assert_eq!(refusal.facts()["execution"], "NOT_STARTED");
        assert_eq!(refusal.request_id(), Some("it"));
        let delay = refusal.details().retry_info().unwrap().retry_delay.unwrap();
        assert!(delay > Duration::ZERO && delay <= Duration::from_secs(1), "{delay:?}");
        if !refusal.inside {
            assert_eq!(refusal.pushback(), i64::try_from(delay.as_millis()).ok());
        }
        assert!(completes(&caller, of("another", job("echo", "x"))).await, "{way:?}");
        // The delay counts from the refusal.
        sleep(delay + Duration::from_millis(1)).await;
        assert!(completes(&caller, of(&tenant, job("echo", "x"))).await, "{way:?} after {delay:?}");
    }
    for _ in 0..20 {
        assert!(completes(&caller, of("wide", job("echo", "x"))).await, "its own quota is larger");
    }
}

/// The quota counts queued and running jobs of all calls. The next job is accepted when one of them ends.
///
/// The time of that end is unknown, so the refusal suggests no retry delay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_over_its_concurrent_jobs_is_refused_until_one_ends() {
    let service = Service::start(QUOTAS, Vec::new());
    let caller = Caller::of(service.public).await;
    let held = [0, 1].map(|_| caller.leave(of("narrow", job("sleep", "60000"))));
    caller.until(|pool| pool.in_flight == 2).await;
    for way in Way::ALL {
        let refusal = way.fail(&caller.0, Some(of("narrow", job("echo", "x"))), &[]).await;
        assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::ResourceExhausted, "QUOTA_EXCEEDED"));
        if !refusal.inside {
            assert_eq!(refusal.pushback(), Some(-1), "{way:?}");
        }
    }
    held.iter().for_each(tokio::task::JoinHandle::abort);
    caller.until(|pool| pool.in_flight == 0).await;
    assert!(completes(&caller, of("narrow", job("echo", "x"))).await);
    for _ in 0..3 {
        assert!(completes(&caller, of("narrow", job("echo", "x"))).await, "a job that ends gives its capacity back");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_job_takes_nothing_from_its_quota() {
    let service = Service::start(QUOTAS, Vec::new());
    let caller = Caller::of(service.public).await;
    for way in Way::ALL {
        for _ in 0..10 {
            let invalid = proto::Job { content_type: "x".repeat(200), ..of("valid", job("echo", "x")) };
            for job in [of(&"t".repeat(1_000), job("echo", "x")), invalid] {
                let refusal = way.fail(&caller.0, Some(job), &[]).await;
                assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::InvalidArgument, "INVALID_FIELD"));
            }
        }
    }
    for _ in 0..4 {
        assert!(completes(&caller, of("valid", job("echo", "x"))).await, "the burst is untouched");
    }
}
