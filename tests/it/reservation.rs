//! A worker that is taken ahead of its job, and the wait for capacity.

use std::time::Duration;

use futures_util::FutureExt;
use waterwheel::{
    Job, JobError, Output,
    model::{Outcome, RejectionReason},
    pool::Settings,
};

use crate::support::{Gate, blocking_kind, echo, gated, holding_clock, pass_time, pool, slow};

#[tokio::test(start_paused = true)]
async fn a_reserved_worker_runs_the_job_that_it_is_given_later() {
    let gate = Gate::new();
    let blocking = blocking_kind("blocking", |job, _| Ok(Output::new(job.payload)));
    let pool = pool(1).kind(echo()).kind(blocking).kind(gated("gated", &gate)).build();
    for kind in ["echo", "blocking"] {
        // The second reservation waits behind a job.
        let running = tokio::spawn(pool.submit(Job::new("gated", "")));
        pass_time(Duration::from_millis(1)).await;
        let mut reserved = Box::pin(pool.reserve(kind));
        assert!(reserved.as_mut().now_or_never().is_none(), "the worker is busy");
        gate.let_pass(1);
        running.await.unwrap().expect("it passes");
        let worker = reserved.await.expect("the worker is free");
        // It stays reserved, and the deadline of the job begins with the job.
        pass_time(Duration::from_secs(3600)).await;
        let mut other = pool.submit(Job::new("echo", "").timeout(Duration::from_secs(60)));
        assert!((&mut other).now_or_never().is_none(), "the worker is reserved");
        let job = Job::new(kind, "later").timeout(Duration::from_secs(1)).tenant("acme");
        let done = holding_clock(worker.submit(job).expect("it fits")).await.expect("it completes");
        assert_eq!((&done.output.bytes[..], done.waterfall.queue), (&b"later"[..], Duration::ZERO));
        other.await.expect("the worker is free again");
        // The time for which the worker was reserved is no service time.
        assert!(pool.stats().expected_wait < Duration::from_secs(1), "{:?}", pool.stats().expected_wait);
    }
    let counts = pool.stats().counts;
    assert_eq!((counts.completed, counts.accepted), (6, 6));
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_is_dropped_or_refused_gives_its_worker_back() {
    let pool = pool(1).kind(echo()).kind(slow()).build();
    drop(pool.reserve("echo").await.expect("a worker is free"));
    let refused = [Job::new("slow", ""), Job::new("echo", "").ordering_key("a"), Job::new("echo", "").limit_key("a")];
    for job in refused {
        let rejection = pool.reserve("echo").await.expect("a worker is free").submit(job).expect_err("it does not fit");
        assert!(matches!(rejection.reason, RejectionReason::Invalid { .. }), "{rejection}");
    }
    let unknown = pool.reserve("ecko").await.expect_err("no such kind");
    assert!(
        matches!(&unknown, JobError::Rejected(rejection) if rejection.reason.index() == RejectionReason::UnknownKind { suggestion: None }.index())
    );
    // A wait that is given up takes nothing.
    let held = pool.reserve("slow").await.expect("a worker is free");
    assert!(pool.reserve("slow").now_or_never().is_none());
    drop(held);
    pool.submit(Job::new("echo", "")).await.expect("the worker is free");
    assert_eq!(pool.stats().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_drain_asks_for_reserved_workers_and_stops_their_jobs() {
    let pool = pool(2).kind(slow()).build();
    let (idle, given) = (pool.reserve("slow").await.expect("free"), pool.reserve("slow").await.expect("free"));
    pool.drain();
    pool.stop();
    idle.stopped().await;
    drop(idle);
    let Err(JobError::Failed(failure)) = given.submit(Job::new("slow", "")).expect("it fits").await else {
        panic!("it does not end by itself")
    };
    assert_eq!(failure.outcome, Outcome::Drained);
    pool.wait().await;
    assert!(pool.reserve("slow").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn capacity_returns_when_a_job_could_be_accepted() {
    let gate = Gate::new();
    let settings = Settings { workers: std::num::NonZeroUsize::MIN, queue_jobs: 1, ..Settings::default() };
    let pool = pool(1).settings(settings).kind(gated("gated", &gate)).build();
    pool.capacity().await;
    pool.send(Job::new("gated", "").timeout(Duration::from_secs(600))).expect("a worker is free");
    pool.capacity().await;
    pool.send(Job::new("gated", "").timeout(Duration::from_secs(600))).expect("the queue has room");
    let mut full = Box::pin(pool.capacity());
    assert!(full.as_mut().now_or_never().is_none(), "the queue is full");
    gate.let_pass(1);
    full.await;
    pool.send(Job::new("gated", "").timeout(Duration::from_secs(600))).expect("the queue has room again");
    // A pool that drains refuses at once.
    let mut full = Box::pin(pool.capacity());
    assert!(full.as_mut().now_or_never().is_none(), "the queue is full");
    pool.drain();
    full.await;
}
