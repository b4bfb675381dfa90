//! A full pool keeps its bounds, and follows the `when_full` policy of each job. Jobs of one ordering key run one at a
//! time, in the order of their acceptance; other jobs start by their class.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};
use waterwheel::{
    Job, JobError, Output, Pool, WhenFull,
    app::OwnKind,
    model::RejectionReason,
    pool::Settings,
    proto::{self, Criticality, SubmitRequest},
};

use crate::{
    process::Process,
    service::{Caller, Service, job, queued, waiting},
    support::{Counter, Gate, assert_idle, gated, kind, pass_time, pool, slow},
};

/// A pool whose only worker is busy.
fn full(settings: Settings) -> Pool {
    let settings = Settings { workers: std::num::NonZeroUsize::MIN, ..settings };
    let pool = pool(1).settings(settings).kind(slow()).build();
    pool.send(Job::new("slow", "").timeout(Duration::from_secs(600))).expect("the worker is free");
    pool
}

#[tokio::test(start_paused = true)]
async fn a_waiting_caller_is_refused_shortly_before_its_deadline() {
    let pool = full(Settings { queue_jobs: 0, ..Settings::default() });
    let start = Instant::now();
    let job = || Job::new("slow", "").when_full(WhenFull::Wait).timeout(Duration::from_secs(2));
    let error = pool.submit(job()).await.expect_err("the worker stays busy");
    let JobError::Rejected(rejection) = error else { panic!("{error}") };
    assert_eq!(rejection.reason, RejectionReason::NoRoomInTime);
    assert_eq!(start.elapsed(), Duration::from_millis(1_970), "the deadline less the margin");
    let stats = pool.stats();
    assert_eq!((stats.waiting, stats.counts.accepted), (0, 1));
    let ticket = pool.try_submit(job()).expect("the job waits");
    assert_eq!(pool.stats().waiting, 1);
    drop(ticket);
    assert_eq!(pool.stats().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn the_payload_limit_is_at_most_the_queue_bytes_of_the_pool() {
    for (queue_bytes, max_payload) in [(10, 4 << 20), (100, 10)] {
        let pool = full(Settings { queue_bytes, max_payload, ..Settings::default() });
        let refused = pool.try_submit(Job::new("slow", vec![0; 11])).expect_err("it is too large");
        assert_eq!(refused.reason, RejectionReason::PayloadTooLarge { size: 11, limit: 10 });
        pool.send(Job::new("slow", vec![0; 10])).expect("accepted");
    }
}

#[tokio::test]
async fn jobs_of_unknown_kinds_and_invalid_jobs_are_counted_as_refused() {
    let pool = pool(1).kind(gated("gated", &Gate::new())).build();
    let refused = pool.try_submit(Job::new("gatde", "")).expect_err("no such kind");
    assert_eq!(refused.reason, RejectionReason::UnknownKind { suggestion: Some("gated".into()) });
    let refused = pool.try_submit(Job::new("gated", "").tenant("t".repeat(200))).expect_err("too long");
    assert!(matches!(refused.reason, RejectionReason::Invalid { violations } if violations[0].field == "job.tenant"));
    let counts = pool.stats().counts;
    assert_eq!((counts.rejected.iter().sum::<u64>(), counts.accepted), (2, 0));
}

/// Submits a job of `tenant` that runs for 100 ms, with this timeout of the call.
async fn submit(caller: Caller, tenant: &'static str, timeout: Duration) -> Result<(), tonic::Status> {
    let job = proto::Job { tenant: tenant.into(), ..job("sleep", "100") };
    let mut request = tonic::Request::new(SubmitRequest { job: Some(job) });
    request.set_timeout(timeout);
    caller.0.clone().submit(request).await.map(drop)
}

#[tokio::test]
async fn a_tenant_is_served_although_hundreds_of_callers_of_another_tenant_wait() {
    const FLOOD: usize = 300;
    let config = r#"
        kind.sleep = { pool = "one", builtin = "sleep" }
        [pool.one]
        workers = 2
        queue = { jobs = 40 }
        when_full = "wait"
    "#;
    let process = Process::serve(config).await;
    let caller = Caller::of(process.public).await;
    submit(caller.clone(), "light", Duration::from_secs(20)).await.expect("the pool is idle");
    let busy = [(); 2].map(|()| caller.leave(job("sleep", "60000")));
    caller.until(|pool| pool.in_flight == 2).await;
    let mut flood = JoinSet::new();
    // A connection accepts 256 concurrent calls.
    for _ in 0..2 {
        let caller = Caller::of(process.public).await;
        for _ in 0..FLOOD / 2 {
            flood.spawn(submit(caller.clone(), "flood", Duration::from_secs(300)));
        }
    }
    caller.until(|pool| queued(pool) + waiting(pool) == FLOOD as u64).await;
    // The flood keeps both workers busy for 15 s, more than half of the other tenant's timeout.
    let mut light = JoinSet::new();
    for _ in 0..8 {
        light.spawn(submit(caller.clone(), "light", Duration::from_secs(20)));
    }
    busy.into_iter().for_each(|call| call.abort());
    while let Some(served) = light.join_next().await {
        served.unwrap().expect("the job completes");
    }
    let pool = caller.pool().await;
    assert!(waiting(&pool) > 0, "the flood was served first: {pool:?}");
}

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
