//! A full pool keeps its bounds, and follows the `when_full` policy of each job.

use std::time::Duration;

use tokio::time::Instant;
use waterwheel::{
    Job, JobError, Pool, WhenFull,
    model::RejectionReason,
    pool::Settings,
    proto::{self, SubmitRequest},
};

use crate::{
    process::Process,
    service::{Caller, job, queued, waiting},
    support::{Gate, gated, pool, slow},
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
    let mut flood = tokio::task::JoinSet::new();
    // A connection accepts 256 concurrent calls.
    for _ in 0..2 {
        let caller = Caller::of(process.public).await;
        for _ in 0..FLOOD / 2 {
            flood.spawn(submit(caller.clone(), "flood", Duration::from_secs(300)));
        }
    }
    caller.until(|pool| queued(pool) + waiting(pool) == FLOOD as u64).await;
    // The flood keeps both workers busy for 15 s, more than half of the other tenant's timeout.
    let mut light = tokio::task::JoinSet::new();
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
