//! Worker programs: long-lived processes that run one job after another.
//!
//! Every job gets an answer, also when its process breaks the protocol or dies. No process outlives its pool.

mod blame;
mod faults;
mod renewal;

use std::{num::NonZeroUsize, path::Path, time::Duration};

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::time::timeout;
use waterwheel::{
    Job, JobError, Pool,
    handler::{Event, ProcessState, ProcessStats, Processes, WorkerProgram},
    model::{Execution, Failure, FailureCode, HandlerError, Outcome},
    pool::{LostWhile, Settings, StreamItem},
};

use crate::{
    ops_pages,
    process::Process,
    service::{Caller, job},
};

const MIB: usize = 1 << 20;
/// Longest wait for something that takes milliseconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The worker program in Python.
fn program(args: &[&str]) -> WorkerProgram {
    let worker = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/programs/worker.py");
    let args = [&["-u", worker], args].concat().into_iter().map(str::to_owned);
    let kinds = ["do", "echo"].map(str::to_owned);
    WorkerProgram { start_timeout: PATIENCE, ..WorkerProgram::new("test", "/usr/bin/python3", args, kinds) }
}

/// A pool whose kinds the program runs.
fn pool_of(program: WorkerProgram, workers: usize) -> Pool {
    assert_eq!(program.faults(), []);
    let settings = Settings {
        workers: NonZeroUsize::new(workers).expect("some"),
        max_payload: 16 * MIB,
        max_output: 16 * MIB,
        ..Settings::default()
    };
    let processes = Processes::new(program);
    Pool::builder("test").settings(settings).kind(processes.kind("do")).kind(processes.kind("echo")).build()
}

async fn run(pool: &Pool, payload: impl Into<Bytes>) -> Result<Bytes, Failure> {
    let job = Job::new("do", payload).timeout(PATIENCE);
    match timeout(2 * PATIENCE, pool.submit(job)).await.expect("an answer") {
        Ok(completed) => Ok(completed.output.bytes),
        Err(JobError::Failed(failure)) => Err(*failure),
        Err(JobError::Rejected(rejection)) => panic!("{rejection}"),
    }
}

async fn pid(pool: &Pool) -> Pid {
    let answer = run(pool, "pid").await.expect("it completes");
    Pid::from_raw(std::str::from_utf8(&answer).unwrap().parse().unwrap()).unwrap()
}

/// Checks that the job failed because its process ended, and returns the message for the caller.
fn crash(failure: &Failure) -> &str {
    assert_eq!((failure.outcome, failure.execution), (Outcome::WorkerCrashed, Execution::Started), "{failure:?}");
    let Some(HandlerError::Crashed { message }) = &failure.error else { panic!("{failure:?}") };
    message
}

fn processes(pool: &Pool) -> Vec<ProcessStats> {
    pool.stats().programs.remove(0).processes
}

/// Waits until the processes fulfil the condition.
async fn until(pool: &Pool, wanted: impl Fn(&[ProcessStats]) -> bool) {
    let reached = async {
        while !wanted(&processes(pool)) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{:?}", pool.stats().programs));
}

fn all(state: ProcessState, count: usize) -> impl Fn(&[ProcessStats]) -> bool {
    move |all| all.len() == count && all.iter().all(|process| process.state == state)
}

/// Drains the pool, and checks that none of its processes is left.
async fn close(pool: Pool) {
    let pids: Vec<_> = processes(&pool).into_iter().filter_map(|process| process.pid).collect();
    pool.close(PATIENCE, PATIENCE).await;
    assert_eq!(processes(&pool), []);
    for pid in pids {
        let pid = Pid::from_raw(pid.cast_signed()).unwrap();
        assert_eq!(test_kill_process(pid), Err(rustix::io::Errno::SRCH));
    }
}

#[tokio::test]
async fn payloads_of_any_size_are_echoed() {
    let pool = pool_of(program(&[]), 1);
    for size in [0, 1, 100, 16 << 10, (16 << 10) + 1, 64 << 10, 1_000_000, 8 * MIB] {
        let payload = Bytes::from((0..size).map(|at| (at % 251) as u8).collect::<Vec<_>>());
        let job = Job::new("echo", payload.clone()).content_type("a/b").timeout(PATIENCE);
        let output = pool.submit(job).await.expect("it is given back").output;
        assert!((output.bytes == payload) && output.content_type == "a/b", "{size} bytes");
    }
    close(pool).await;
}

#[tokio::test]
async fn a_program_receives_the_metadata_of_its_job() {
    let pool = pool_of(program(&[]), 1);
    let job = Job::new("do", "about").content_type("text/x").tenant("acme").label("a.b", "c").timeout(PATIENCE);
    let about: serde_json::Value = serde_json::from_slice(&pool.submit(job).await.unwrap().output.bytes).unwrap();
    for (key, expected) in [("kind", "do"), ("content_type", "text/x"), ("tenant", "acme"), ("traceparent", "")] {
        assert_eq!(about[key], expected, "{about}");
    }
    assert_eq!((&about["labels"]["a.b"], &about["attempt"]), (&"c".into(), &1.into()));
    let budget = about["budget_ms"].as_u64().unwrap();
    assert!(budget > 1_000 && budget <= 60_000 && !about["job_id"].as_str().unwrap().is_empty(), "{about}");
    close(pool).await;
}

#[tokio::test]
async fn output_chunks_and_progress_arrive_in_order() {
    let pool = pool_of(program(&[]), 1);
    let collected = run(&pool, "chunks a bc d").await.expect("it completes");
    assert_eq!(collected, "abcdend");
    let mut stream = pool.stream(Job::new("do", "chunks a bc d").timeout(PATIENCE)).await.expect("it runs");
    let (mut bytes, mut fractions) = (Vec::new(), 0);
    while let Some(item) = stream.next().await.expect("it completes") {
        match item {
            StreamItem::Event(Event::Chunk(chunk)) => bytes.extend_from_slice(&chunk),
            StreamItem::Event(Event::Progress { fraction, message }) => {
                assert_eq!((fraction, message.as_str()), (0.5, "half"));
                fractions += 1;
            }
            StreamItem::Completed(completed) => bytes.extend_from_slice(&completed.output.bytes),
        }
    }
    assert_eq!((&bytes[..], fractions > 0), (&b"abcdend"[..], true));
    close(pool).await;
}

#[tokio::test]
async fn a_failure_keeps_its_code() {
    let pool = pool_of(program(&[]), 1);
    for (code, expected) in [
        ("INVALID_ARGUMENT", FailureCode::InvalidArgument),
        ("DATA_LOSS", FailureCode::DataLoss),
        ("INTERNAL", FailureCode::Unknown),
        ("", FailureCode::Unknown),
    ] {
        let failure = run(&pool, format!("fail {code}")).await.expect_err("it says no");
        assert_eq!(failure.error, Some(HandlerError::new(expected, "no").retryable(false)));
    }
    assert_eq!(pool.stats().programs[0].starts, 1, "the process is kept");
    close(pool).await;
}

#[tokio::test]
async fn concurrent_jobs_share_a_process() {
    let four = WorkerProgram { jobs_per_process: 4, ..program(&[]) };
    let pool = pool_of(four, 8);
    until(&pool, all(ProcessState::Idle, 2)).await;
    // Each process answers only when it has four jobs.
    let jobs = (0..8).map(|_| run(&pool, "meet 4"));
    for met in futures_util::future::join_all(jobs).await {
        met.expect("it completes");
    }
    assert_eq!(processes(&pool).iter().map(|process| process.jobs).collect::<Vec<_>>(), [4, 4]);
    close(pool).await;
}

#[tokio::test]
async fn text_printed_by_a_program_is_not_a_protocol_message() {
    let pool = pool_of(program(&[]), 1);
    for _ in 0..3 {
        run(&pool, "print").await.expect("it completes");
    }
    assert_eq!(pool.stats().programs[0].starts, 1);
    close(pool).await;
}

const PAGE: &str = include_str!("../../docs/workers.md");

/// The first code block of the page in this language.
fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect("there is one");
    rest.split("```").next().unwrap()
}

fn write_page(directory: &Path) -> std::path::PathBuf {
    std::fs::write(directory.join("upper.py"), block("python")).unwrap();
    let config = directory.join("workers.toml");
    std::fs::write(&config, block("toml")).unwrap();
    config
}

#[tokio::test]
async fn the_example_of_docs_workers_runs() {
    let directory = tempfile::tempdir().unwrap();
    let process = Process::serve_file(&write_page(directory.path())).await;
    // The server is ready when its processes are.
    while ops_pages::get(process.ops, "/readyz").await.0 != http::StatusCode::OK {}
    let caller = Caller::of(process.public).await;
    let response = caller.leave(job("upper", "hello")).await.unwrap().unwrap().into_inner();
    assert_eq!(response.result.unwrap().output, b"HELLO");
    let metrics = ops_pages::metrics(process.ops).await;
    assert_eq!(metrics[r#"waterwheel_program_starts_total{pool="text",program="upper"}"#], 2.0);
    assert_eq!(block("python"), include_str!("../../examples/workers/upper.py"));
    assert_eq!(metrics[r#"waterwheel_program_processes{pool="text",program="upper",state="idle"}"#], 2.0);
}

#[tokio::test]
async fn the_number_of_processes_follows_the_number_of_workers() {
    let workers = |count| NonZeroUsize::new(count).unwrap();
    let two = WorkerProgram { jobs_per_process: 2, ..program(&[]) };
    let pool = pool_of(two, 6);
    until(&pool, all(ProcessState::Idle, 3)).await;
    let mut busy = Box::pin(run(&pool, "meet 2"));
    tokio::select! {
        _ = &mut busy => panic!("it waits for a second job"),
        () = until(&pool, |all| all.iter().any(|process| process.running == 1)) => {}
    }
    assert!(pool.resize(workers(1), workers(1)));
    until(&pool, |all| all.len() == 1).await;
    assert!(pool.resize(workers(8), workers(8)));
    until(&pool, |all| all.len() == 4 && all.iter().all(|process| process.state != ProcessState::Starting)).await;
    drop(busy);
    close(pool).await;
}

#[tokio::test]
async fn a_drain_kills_a_process_that_ignores_every_signal() {
    let grace = Duration::from_millis(200);
    let pool = pool_of(WorkerProgram { cancel_grace: grace, ..program(&["stubborn"]) }, 2);
    until(&pool, all(ProcessState::Idle, 2)).await;
    let mut job = Box::pin(run(&pool, "hang"));
    tokio::select! {
        _ = &mut job => panic!("it hangs"),
        () = until(&pool, |all| all.iter().any(|process| process.state == ProcessState::Busy)) => {}
    }
    let pids: Vec<_> = processes(&pool).into_iter().filter_map(|process| process.pid).collect();
    let (failure, report) = tokio::join!(job, pool.close(Duration::ZERO, Duration::from_secs(30)));
    assert_eq!(failure.expect_err("it was stopped").outcome, Outcome::DrainKilled { idempotent: false });
    assert_eq!((report.lost.len(), processes(&pool)), (1, Vec::new()));
    for pid in pids {
        let pid = Pid::from_raw(pid.cast_signed()).unwrap();
        assert_eq!(test_kill_process(pid), Err(rustix::io::Errno::SRCH));
    }
}

#[tokio::test]
async fn dropping_a_pool_kills_its_processes() {
    let pool = pool_of(program(&[]), 1);
    let process = pid(&pool).await;
    drop(pool);
    let gone = async {
        while test_kill_process(process).is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, gone).await.expect("it is killed and reaped");
}
