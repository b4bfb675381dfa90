//! Operators of a running service pause, resume, resize and drain a pool, and cancel jobs. The other pool is not
//! affected.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::time::timeout;
use tonic::{Code, Status, Streaming, transport::Channel};
use tonic_types::StatusExt;
use waterwheel::{
    JobError,
    model::{Execution, Outcome},
    proto::{
        CancelJobRequest, CancelJobResponse, DrainRequest, DrainResponse, Job, JobStage, PauseRequest, Phase,
        PoolState, PoolStats, ResizeRequest, ResumeRequest, Stats, WhenFull, WorkerState,
        admin_service_client::AdminServiceClient, health::health_check_response::ServingStatus,
    },
};

use crate::{
    health::check,
    ops_pages::get,
    process::{PATIENCE, Process, Ran, program},
    service::{Address, Caller, counts, job, queued, waiting},
    support::{assert_idle, echo, pool},
};

const CONFIG: &str = r#"
    drain = { notice = "0s", finish = "20s", kill = "1s" }
    pool.one = { workers = 1, queue = { jobs = 2 } }
    pool.two.workers = 1
    kind.sleep = { pool = "one", builtin = "sleep" }
    kind.echo = { pool = "one", builtin = "echo" }
    kind.other = { pool = "two", builtin = "echo" }
"#;

/// A client of the admin service.
struct Operator(AdminServiceClient<Channel>);

impl Operator {
    async fn of(ops: Address) -> Self {
        Self(AdminServiceClient::new(ops.channel().await))
    }

    async fn pause(&mut self, pool: &str) -> Result<PoolState, Status> {
        let answer = self.0.pause(PauseRequest { pool: pool.into(), reason: String::new() }).await?;
        Ok(answer.into_inner().pool.unwrap())
    }

    async fn resume(&mut self, pool: &str) -> Result<PoolState, Status> {
        let answer = self.0.resume(ResumeRequest { pool: pool.into(), reason: String::new() }).await?;
        Ok(answer.into_inner().pool.unwrap())
    }

    async fn resize(&mut self, pool: &str, min_workers: u32, max_workers: u32) -> Result<PoolState, Status> {
        let answer =
            self.0.resize(ResizeRequest { pool: pool.into(), min_workers, max_workers, reason: String::new() }).await?;
        Ok(answer.into_inner().pool.unwrap())
    }

    async fn drain(&mut self, pool: &str) -> Result<Streaming<DrainResponse>, Status> {
        Ok(self.0.drain(DrainRequest { pool: pool.into(), reason: String::new() }).await?.into_inner())
    }

    async fn cancel(&mut self, job: &str) -> Result<CancelJobResponse, Status> {
        Ok(self.0.cancel_job(CancelJobRequest { id: job.into(), ..Default::default() }).await?.into_inner())
    }
}

fn named<'a>(stats: &'a Stats, name: &str) -> &'a PoolStats {
    stats.pools.iter().find(|pool| pool.name == name).unwrap()
}

/// Polls the statistics of the pool `one` until they fulfil the condition.
async fn until(caller: &Caller, reached: impl Fn(&PoolStats) -> bool) {
    caller.until_all(|pools| reached(pools.iter().find(|pool| pool.name == "one").unwrap())).await;
}

/// Ids of the oldest jobs of the pool `one` by stage, from the page `/debug/tasks`.
async fn jobs(ops: Address) -> BTreeMap<String, String> {
    let page: Value = serde_json::from_str(&get(ops, "/debug/tasks").await.1).unwrap();
    let jobs = page["pools"]["one"]["jobs"].as_array().unwrap().iter();
    let text = |job: &Value, key: &str| job[key].as_str().unwrap().to_owned();
    jobs.rev().map(|job| (text(job, "stage"), text(job, "job"))).collect()
}

fn reason(status: &Status) -> (Code, String) {
    (status.code(), status.get_error_details().error_info().map(|info| info.reason.clone()).unwrap_or_default())
}

fn waits(job: Job) -> Job {
    Job { when_full: WhenFull::Wait.into(), ..job }
}

fn size(state: &PoolState) -> (u32, u32, u32, u32) {
    let size = state.size.unwrap();
    (size.min, size.max, size.workers, size.retiring)
}

fn serving(state: &PoolState) -> (Phase, bool) {
    (state.phase(), state.paused.is_some())
}

#[tokio::test]
async fn an_operator_command_sent_to_the_public_port_names_the_right_option() {
    let process = Process::serve(CONFIG).await;
    let callers = process.public.0.to_string();
    for line in ["drain", "drain --watch", "pause one", "resize one 2", "cancel x", "explain x"] {
        let words: Vec<&str> = line.split(' ').chain(["--ops", &callers]).collect();
        let Ran { code, err, .. } = Ran::of(program(&words)).await;
        assert_eq!(code, Some(2), "{line}: {err}");
        let start = format!("{callers} does not have this service: a server has two listeners\n  help: pass --ops");
        assert!(err.starts_with(&start), "{err}");
    }
}

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

async fn last_of(reports: &mut Streaming<DrainResponse>) -> DrainResponse {
    let mut last = None;
    while let Some(report) = timeout(PATIENCE, reports.message()).await.expect("a report").unwrap() {
        last = Some(report);
    }
    last.expect("one report at least")
}

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
        let CancelJobResponse { jobs, all } = operator.cancel(&ids[stage]).await.unwrap();
        let [cancelled] = &jobs[..] else { panic!("one job: {jobs:?}") };
        assert_eq!((cancelled.pool.as_str(), cancelled.stage(), all), ("one", expected, 1));
        assert_eq!(cancelled.job_id, ids[stage]);
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
            "id: send the id of a job, from its answer or its log lines, or its request id",
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
    let ticket = pool.try_submit(waterwheel::Job::new("echo", "")).expect("a worker");
    assert_eq!(pool.cancel(ticket.job()), Some(waterwheel::model::JobStage::Running));
    let Err(JobError::Failed(failure)) = ticket.await else { panic!("it ran") };
    assert_eq!((failure.outcome, failure.execution), (Outcome::CancelledByOperator, Execution::NotStarted));
    assert!(pool.report().lost.is_empty(), "a cancelled job is not lost by a drain");
    assert_idle(&pool, 1);
}
