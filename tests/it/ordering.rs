//! Jobs of one ordering key run one at a time, in the order of their acceptance. Other jobs start by their class.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tonic::Request;
use waterwheel::{
    Job, Output,
    app::OwnKind,
    proto::{self, Criticality, SubmitRequest, WhenFull},
};

use crate::{
    refusal::Refusal,
    service::{Caller, Client, Service, counts, job, queued},
    support::{Counter, Gate, assert_idle, gated, kind, pass_time, pool},
};

#[tokio::test(start_paused = true)]
async fn the_next_job_of_a_key_starts_only_when_the_previous_handler_is_dropped() {
    let (gone, started, gate) = (Counter::new(), Counter::new(), Gate::new());
    struct Gone(Counter);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.add();
        }
    }
    let (left, begun, held) = (gone.clone(), started.clone(), gate.clone());
    let lingers = kind("lingers", move |_, _| {
        let (left, begun, held) = (Gone(left.clone()), begun.clone(), held.clone());
        async move {
            let _left = left;
            begun.add();
            held.pass().await;
            Ok(Output::default())
        }
    });
    let pool = pool(3).kind(lingers).build();
    let keyed = || Job::new("lingers", "").ordering_key("key");
    let mut first = pool.try_submit(keyed()).expect("accepted");
    assert!(futures_util::poll!(&mut first).is_pending());
    let second = pool.try_submit(keyed()).expect("accepted");
    drop(first);
    let third = pool.try_submit(Job::new("lingers", "")).expect("accepted");
    let mut jobs = JoinSet::new();
    jobs.spawn(second);
    jobs.spawn(third);
    started.reached(2).await;
    assert_eq!((pool.stats().queued, gone.get()), (1, 0), "the abandoned job still has its grace period");
    pass_time(Duration::from_secs(1)).await;
    started.reached(3).await;
    assert_eq!(gone.get(), 1);
    gate.open();
    while let Some(job) = jobs.join_next().await {
        job.expect("no panic").expect("it completes");
    }
    assert_idle(&pool, 3);
}

/// A key queue occupies one worker at most, so admission of a job without a key counts the other workers only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_key_queue_does_not_refuse_jobs_without_its_key() {
    const KEYED_JOBS: u64 = 400;
    let gate = Gate::new();
    let config = "pool.one.workers = 4\nkind.sleep = { pool = \"one\", builtin = \"sleep\" }";
    let service = Service::start(config, vec![OwnKind::new("one", gated("held", &gate))]);
    let caller = Caller::of(service.public).await;
    // Teaches the pool a service time of at least 50 ms. Without an estimate, no job is refused.
    caller.leave(job("sleep", "50")).await.expect("no panic").expect("it completes");
    let submit = |client: &Client, job: &proto::Job, seconds: u64| {
        let (mut client, mut request) = (client.clone(), Request::new(SubmitRequest { job: Some(job.clone()) }));
        request.set_timeout(Duration::from_secs(seconds));
        tokio::spawn(async move { client.submit(request).await })
    };
    let free = job("held", "");
    let keyed = proto::Job { ordering_key: "hot".into(), when_full: WhenFull::Wait.into(), ..free.clone() };
    let mut calls = Vec::new();
    // One connection does not carry enough streams for all calls.
    for _ in 0..2 {
        let client = service.public.client().await;
        calls.extend((0..KEYED_JOBS / 2).map(|_| submit(&client, &keyed, 600)));
    }
    calls.extend((0..3).map(|_| submit(&caller.0, &free, 600)));
    caller.until(|pool| queued(pool) == KEYED_JOBS - 1 && pool.in_flight == 4).await;

    // The key queue takes at least 20 s on one worker. Were it spread over four, it would take over half of the budget.
    let budget = 9;
    let refused = |pool: &proto::PoolStats| counts(pool).rejected.iter().map(|refused| refused.count).sum::<u64>();
    let another = proto::Job { tenant: "another".into(), ..free.clone() };
    // The other tenant comes last: once two tenants are active, each may fill only a part of the queue.
    for (before, job) in [&free, &free, &another].into_iter().enumerate() {
        calls.push(submit(&caller.0, job, budget));
        let decided = KEYED_JOBS + 5 + before as u64;
        caller.until(|pool| counts(pool).accepted + refused(pool) == decided).await;
    }
    let late = submit(&caller.0, &keyed, budget).await.expect("no panic").expect_err("its key queue is too long");
    assert_eq!(Refusal::of_call(late, true).reason(), "DEADLINE_UNREACHABLE");
    gate.open();
    for call in calls {
        call.await.expect("no panic").expect("it completes");
    }
    assert_eq!(counts(&caller.pool().await).completed, KEYED_JOBS + 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_start_by_class_then_in_order_of_arrival_and_those_of_a_key_in_order() {
    let (gate, started) = (Gate::new(), Arc::new(Mutex::new(Vec::new())));
    let (held, begun) = (gate.clone(), Arc::clone(&started));
    let noted = kind("noted", move |job, _| {
        let (held, begun) = (held.clone(), Arc::clone(&begun));
        async move {
            begun.lock().push(String::from_utf8(job.payload.to_vec()).expect("text"));
            held.pass().await;
            Ok(Output::default())
        }
    });
    let service = Service::start("pool.one.workers = 1", vec![OwnKind::new("one", noted)]);
    let caller = Caller::of(service.public).await;
    let call = |name: &str, class: Criticality, key: &str| {
        caller.leave(proto::Job {
            criticality: class.into(),
            ordering_key: key.into(),
            ..job("noted", name.to_owned())
        })
    };
    let mut calls = vec![call("running", Criticality::Critical, "")];
    caller.until(|pool| pool.in_flight == 1).await;
    for (ahead, (name, class, key)) in [
        ("sheddable", Criticality::Sheddable, ""),
        ("first of the key", Criticality::SheddablePlus, "key"),
        ("second of the key", Criticality::Critical, "key"),
        ("sheddable plus", Criticality::SheddablePlus, ""),
        ("critical", Criticality::Critical, ""),
        ("later critical", Criticality::Critical, ""),
    ]
    .into_iter()
    .enumerate()
    {
        calls.push(call(name, class, key));
        caller.until(|pool| queued(pool) == ahead as u64 + 1).await;
    }
    gate.open();
    for call in calls {
        call.await.expect("no panic").expect("it completes");
    }
    let started = std::mem::take(&mut *started.lock());
    let (of_the_key, others): (Vec<_>, Vec<_>) = started.into_iter().partition(|name| name.ends_with("of the key"));
    assert_eq!(of_the_key, ["first of the key", "second of the key"]);
    assert_eq!(others, ["running", "critical", "later critical", "sheddable plus", "sheddable"]);
}
