//! Resize, cancel, and invalid requests.

use tonic::Code;
use waterwheel::{
    Job, JobError,
    model::{Execution, Outcome},
    proto::{JobStage, WorkerState},
};

use super::{CONFIG, Operator, jobs, named, reason, size, until, waits};
use crate::{
    process::Process,
    service::{Caller, counts, job, queued, waiting},
    support::{assert_idle, echo, pool},
};

#[tokio::test]
async fn a_pool_is_resized_while_its_workers_are_busy() {
    let process = Process::serve(CONFIG).await;
    let (caller, mut operator) = (Caller::of(process.public).await, Operator::of(process.ops).await);
    let calls: Vec<_> = (0..2).map(|_| caller.leave(job("sleep", "60000"))).collect();
    until(&caller, |pool| pool.in_flight == 1 && queued(pool) == 1).await;
    assert_eq!(size(&operator.resize("one", 3, 0).await.unwrap()), (3, 3, 3, 0));
    until(&caller, |pool| pool.in_flight == 2).await;
    caller.leave(job("echo", "")).await.unwrap().unwrap();

    // The idle worker retires at once, a busy one at the end of its job.
    assert_eq!(size(&operator.resize("one", 1, 1).await.unwrap()), (1, 1, 1, 1));
    let stats = caller.stats().await;
    assert_eq!(named(&stats, "one").workers.len(), 2, "{stats:?}");
    assert!(named(&stats, "one").workers.iter().all(|worker| worker.state() == WorkerState::Busy));
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    until(&caller, |pool| pool.workers.len() == 1 && pool.in_flight == 0).await;
    assert_eq!(size(&operator.resize("one", 2, 9).await.unwrap()), (2, 9, 2, 0));
    caller.leave(job("echo", "")).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_operator_cancels_waiting_queued_and_running_jobs() {
    let process = Process::serve(CONFIG).await;
    let (caller, mut operator) = (Caller::of(process.public).await, Operator::of(process.ops).await);
    let running = caller.leave(job("sleep", "60000"));
    until(&caller, |pool| pool.in_flight == 1).await;
    let mut queued_calls = Vec::new();
    for ahead in 0..2 {
        queued_calls.push(caller.leave(job("echo", "")));
        until(&caller, |pool| queued(pool) == ahead + 1).await;
    }
    let waiting_call = caller.leave(waits(job("echo", "")));
    until(&caller, |pool| waiting(pool) == 1).await;

    let ids = jobs(process.ops).await;
    let calls = [
        ("waiting", JobStage::Waiting, waiting_call, "NOT_STARTED"),
        ("queued", JobStage::Queued, queued_calls.remove(0), "NOT_STARTED"),
        ("running", JobStage::Running, running, "STARTED"),
    ];
    for (stage, expected, call, execution) in calls {
        let answer = operator.cancel(&ids[stage]).await.unwrap();
        assert_eq!((answer.pool.as_str(), answer.stage(), answer.job_id), ("one", expected, ids[stage].clone()));
        let cancelled = call.await.unwrap().unwrap_err();
        assert_eq!(reason(&cancelled), (Code::Cancelled, "CANCELLED_BY_OPERATOR".into()), "{stage}");
        let refusal = crate::refusal::Refusal::of_call(cancelled, true);
        assert_eq!((refusal.facts()["execution"].as_str(), refusal.pushback()), (execution, Some(-1)), "{stage}");
        let again = operator.cancel(&ids[stage]).await.unwrap_err();
        assert_eq!(reason(&again), (Code::NotFound, "NOT_FOUND".into()), "{stage}");
    }
    // The remaining job is not affected.
    queued_calls.remove(0).await.unwrap().unwrap();
    let stats = caller.stats().await;
    let counts = counts(named(&stats, "one"));
    assert_eq!((counts.accepted, counts.completed, counts.cancelled), (3, 1, 2), "{counts:?}");
}

#[tokio::test]
async fn the_errors_for_invalid_requests_name_the_valid_values() {
    let process = Process::serve(CONFIG).await;
    let mut operator = Operator::of(process.ops).await;
    let cases = [
        (operator.pause("tow").await.unwrap_err(), Code::NotFound, "no pool \"tow\"; there are one, two"),
        (operator.resume("tow").await.unwrap_err(), Code::NotFound, "no pool \"tow\"; there are one, two"),
        (operator.resize("tow", 1, 1).await.unwrap_err(), Code::NotFound, "no pool \"tow\"; there are one, two"),
        (operator.drain("tow").await.unwrap_err(), Code::NotFound, "no pool \"tow\"; there are one, two"),
        (operator.pause("").await.unwrap_err(), Code::InvalidArgument, "pool: name one of one, two"),
        (operator.resize("one", 0, 0).await.unwrap_err(), Code::InvalidArgument, "min_workers: send 1 to 65536"),
        (
            operator.resize("one", 5, 4).await.unwrap_err(),
            Code::InvalidArgument,
            "max_workers: send min_workers to 65536, or 0 for min_workers",
        ),
        (operator.resize("one", 65_537, 0).await.unwrap_err(), Code::InvalidArgument, "min_workers: send 1 to 65536"),
        (operator.cancel("no-job").await.unwrap_err(), Code::NotFound, "this job has already ended, or does not exist"),
        (
            operator.cancel("").await.unwrap_err(),
            Code::InvalidArgument,
            "job_id: send the id of a job, from its answer or its log lines, or its request id",
        ),
    ];
    for (status, code, message) in cases {
        assert_eq!((status.code(), status.message()), (code, message));
    }
}

/// The job has a worker already, but its handler has not begun.
#[tokio::test]
async fn a_job_that_is_cancelled_before_its_first_poll_does_not_start() {
    let pool = pool(1).kind(echo()).build();
    let ticket = pool.try_submit(Job::new("echo", "")).expect("a worker");
    assert_eq!(pool.cancel(ticket.job()), Some(waterwheel::model::JobStage::Running));
    let Err(JobError::Failed(failure)) = ticket.await else { panic!("it ran") };
    assert_eq!((failure.outcome, failure.execution), (Outcome::CancelledByOperator, Execution::NotStarted));
    assert!(pool.report().lost.is_empty(), "a cancelled job is not lost by a drain");
    assert_idle(&pool, 1);
}
