//! Pause, resume and drain of one pool. The other pool is not affected.

use tokio::time::timeout;
use tonic::Code;
use waterwheel::proto::health::health_check_response::ServingStatus;
use waterwheel::proto::{DrainResponse, Job, Phase};

use super::{CONFIG, Operator, jobs, named, reason, serving, until, waits};
use crate::{
    health::check,
    process::{PATIENCE, Process},
    service::{Address, Caller, job, queued, waiting},
};

async fn is_serving(address: Address, name: &str) -> bool {
    check(address, name).await == ServingStatus::Serving
}

fn impatient(job: Job, millis: i32) -> Job {
    Job { queue_timeout: Some(prost_types::Duration { seconds: 0, nanos: millis * 1_000_000 }), ..job }
}

#[tokio::test]
async fn a_paused_pool_queues_jobs_and_runs_them_when_it_is_resumed() {
    let process = Process::serve(CONFIG).await;
    let (caller, mut operator) = (Caller::of(process.public).await, Operator::of(process.ops).await);
    assert_eq!(serving(&operator.pause("one").await.unwrap()), (Phase::Serving, true));
    for (name, serves) in [("pool/one", false), ("pool/two", true), ("", true), ("readiness", true)] {
        assert_eq!(is_serving(process.public, name).await, serves, "{name:?}");
    }

    let first = caller.leave(job("echo", "first"));
    until(&caller, |pool| queued(pool) == 1).await;
    let stats = caller.stats().await;
    let one = named(&stats, "one");
    assert!(one.paused.is_some() && one.in_flight == 0 && named(&stats, "two").paused.is_none(), "{stats:?}");
    // Deadlines and the queue limit apply during a pause.
    let expired = caller.leave(impatient(job("echo", ""), 50)).await.unwrap().unwrap_err();
    assert_eq!(reason(&expired), (Code::DeadlineExceeded, "EXPIRED_IN_QUEUE".into()));
    let second = caller.leave(job("echo", "second"));
    until(&caller, |pool| queued(pool) == 2).await;
    let full = caller.leave(job("echo", "")).await.unwrap().unwrap_err();
    assert_eq!(reason(&full), (Code::ResourceExhausted, "QUEUE_FULL".into()));
    let third = caller.leave(waits(job("echo", "third")));
    until(&caller, |pool| waiting(pool) == 1).await;
    caller.leave(job("other", "")).await.unwrap().unwrap();

    assert_eq!(serving(&operator.resume("one").await.unwrap()), (Phase::Serving, false));
    for call in [first, second, third] {
        call.await.unwrap().unwrap();
    }
    assert!(is_serving(process.public, "pool/one").await);
    assert_eq!(
        serving(&operator.resume("one").await.unwrap()),
        (Phase::Serving, false),
        "resuming twice has no effect"
    );
}

#[tokio::test]
async fn a_drained_pool_refuses_new_jobs_finishes_accepted_ones_and_can_be_resumed() {
    let process = Process::serve(CONFIG).await;
    let (caller, mut operator) = (Caller::of(process.public).await, Operator::of(process.ops).await);
    let running = caller.leave(job("sleep", "60000"));
    until(&caller, |pool| pool.in_flight == 1).await;
    let next = caller.leave(job("echo", ""));
    until(&caller, |pool| queued(pool) == 1).await;
    let long = jobs(process.ops).await["running"].clone();
    // A drain runs the queued jobs of a paused pool.
    operator.pause("one").await.unwrap();

    let mut reports = operator.drain("one").await.unwrap();
    let first = reports.message().await.unwrap().unwrap();
    assert_eq!((first.phase(), first.queued, first.running, first.finished), (Phase::Draining, 1, 1, 0));
    assert!(first.hard_stop.is_none() && first.elapsed.is_some(), "{first:?}");
    let refused = caller.leave(job("echo", "")).await.unwrap().unwrap_err();
    assert_eq!(reason(&refused), (Code::Unavailable, "DRAINING".into()));
    assert_eq!(refused.message(), "the pool is draining, until its operator resumes it");
    assert!(!is_serving(process.public, "pool/one").await && is_serving(process.public, "readiness").await);
    let paused = operator.pause("one").await.unwrap_err();
    assert_eq!(reason(&paused), (Code::FailedPrecondition, "POOL_DRAINING".into()));
    caller.leave(job("other", "")).await.unwrap().unwrap();

    operator.cancel(&long).await.unwrap();
    let last = last_of(&mut reports).await;
    assert_eq!((last.phase(), last.queued, last.running), (Phase::Stopped, 0, 0));
    assert_eq!((last.finished, last.lost), (2, 0));
    running.await.unwrap().unwrap_err();
    next.await.unwrap().unwrap();
    assert_eq!(named(&caller.stats().await, "one").phase(), Phase::Stopped);
    let refused = caller.leave(waits(job("echo", ""))).await.unwrap().unwrap_err();
    assert_eq!(reason(&refused), (Code::Unavailable, "DRAINING".into()));

    assert_eq!(serving(&operator.resume("one").await.unwrap()), (Phase::Serving, false));
    caller.leave(job("echo", "")).await.unwrap().unwrap();
    assert!(is_serving(process.public, "pool/one").await);
}

#[tokio::test]
async fn a_resume_ends_the_drain_of_a_pool_and_its_stream() {
    let process = Process::serve(CONFIG).await;
    let (caller, mut operator) = (Caller::of(process.public).await, Operator::of(process.ops).await);
    caller.leave(job("sleep", "60000"));
    until(&caller, |pool| pool.in_flight == 1).await;
    let mut reports = operator.drain("one").await.unwrap();
    operator.resume("one").await.unwrap();
    assert_eq!(last_of(&mut reports).await.phase(), Phase::Serving);
}

#[tokio::test]
async fn a_drain_of_the_process_ends_a_pause_and_runs_the_queued_jobs() {
    let process = Process::serve(CONFIG).await;
    let (caller, mut operator) = (Caller::of(process.public).await, Operator::of(process.ops).await);
    operator.pause("one").await.unwrap();
    let long = caller.leave(job("sleep", "60000"));
    until(&caller, |pool| queued(pool) == 1).await;
    let id = jobs(process.ops).await["queued"].clone();
    let held = caller.leave(job("echo", ""));
    until(&caller, |pool| queued(pool) == 2).await;
    let mut reports = operator.drain("").await.unwrap();
    let first = reports.message().await.unwrap().unwrap();
    assert!(first.phase() >= Phase::Draining && first.hard_stop.is_some(), "{first:?}");
    until_draining(&mut operator).await;
    operator.cancel(&id).await.unwrap();
    long.await.unwrap().unwrap_err();
    held.await.unwrap().unwrap();
    let ended = process.ended().await;
    assert_eq!((ended.code, &ended.receipt["finished"]), (Some(0), &2.into()), "{ended:?}");
}

/// Waits until the pools drain, which is shortly after the process does. From then on operator commands are refused.
async fn until_draining(operator: &mut Operator) {
    let refused = async {
        loop {
            match operator.pause("two").await {
                Ok(_) => tokio::task::yield_now().await,
                Err(status) => return status,
            }
        }
    };
    let refused = timeout(PATIENCE, refused).await.unwrap();
    assert_eq!(reason(&refused), (Code::FailedPrecondition, "DRAINING".into()));
    for status in [operator.resume("two").await.unwrap_err(), operator.resize("two", 3, 0).await.unwrap_err()] {
        assert_eq!(reason(&status), (Code::FailedPrecondition, "DRAINING".into()));
    }
}

async fn last_of(reports: &mut tonic::Streaming<DrainResponse>) -> DrainResponse {
    let mut last = None;
    while let Some(report) = timeout(PATIENCE, reports.message()).await.expect("a report").unwrap() {
        last = Some(report);
    }
    last.expect("one report at least")
}
