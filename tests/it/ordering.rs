//! Jobs of one ordering key run one at a time, in the order of their acceptance. Other jobs start by their class.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use waterwheel::{
    Job, Output,
    app::OwnKind,
    proto::{self, Criticality},
};

use crate::{
    service::{Caller, Service, job, queued},
    support::{Counter, Gate, assert_idle, kind, pass_time, pool},
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
