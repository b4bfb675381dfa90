//! Programs that die, hang, or break the protocol. Many jobs: while processes are killed, behind a slow reader, with a
//! model to load, and from short-lived threads.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use tokio::{runtime::Builder, task::spawn_blocking};
use waterwheel::model::WhenFull;

use super::*;

#[tokio::test]
async fn a_job_fails_with_its_process_and_a_new_process_runs_the_next_job() {
    let pool = pool_of(program(&[]), 1);
    for (payload, expected) in [
        ("exit 3", "test exited with code 3: out of luck"),
        ("exit 0", "test exited with code 0: out of luck"),
        ("kill 9", "test was ended by signal: 9 (SIGKILL)"),
        ("kill 11", "test was ended by signal: 11 (SIGSEGV)"),
        ("child", "test exited with code 7"),
    ] {
        let failure = run(&pool, payload).await.expect_err("it crashes");
        assert_eq!(crash(&failure), expected);
        run(&pool, "pid").await.expect("a fresh process runs it");
    }
    let stats = pool.stats().programs.remove(0);
    assert_eq!((stats.starts, stats.failures), (6, 5));
    close(pool).await;
}

/// `malformed.rs` has more of them.
#[tokio::test]
async fn a_process_that_breaks_the_protocol_is_killed_and_replaced() {
    let pool = pool_of(program(&[]), 1);
    for (payload, expected) in [
        ("raw hello\n", "not a JSON message of the protocol"),
        ("raw {\"done\":{\"id\":\"ID0\"}}\n", "it names a job that it does not run"),
        ("raw {\"output\":{\"id\":\"ID\"},\"bytes\":99999999999}\n", "99999999999 bytes are to follow"),
        ("raw {\"done\":{\"id\":\"ID\"},\"bytes\":1}\nab\n", "an answer announces 1 bytes"),
    ] {
        let failure = run(&pool, payload.to_owned()).await.expect_err("its process is killed");
        let message = crash(&failure);
        assert!(
            message.starts_with("test broke the protocol, and was ended: ") && message.contains(expected),
            "{message}"
        );
        run(&pool, "pid").await.expect("a fresh process runs it");
    }
    close(pool).await;
}

#[tokio::test]
async fn a_late_message_is_dropped_and_counted() {
    let pool = pool_of(program(&[]), 1);
    let first = pid(&pool).await;
    let late = "{\"progress\":{\"id\":\"1\"}}\n{\"done\":{\"id\":\"1\"},\"bytes\":2}\nab";
    run(&pool, format!("raw {{\"done\":{{\"id\":\"ID\"}}}}\n{late}")).await.expect("it completes");
    assert_eq!(pid(&pool).await, first);
    assert_eq!((pool.stats().late_messages, pool.stats().programs[0].failures), (2, 0));
    close(pool).await;
}

/// This test runs on the real clock, as the processes do.
#[tokio::test]
async fn announced_bytes_that_do_not_come_are_named_and_no_other_job_begins_behind_them() {
    let grace = Duration::from_millis(200);
    let pool = pool_of(WorkerProgram { cancel_grace: grace, jobs_per_process: 2, ..program(&[]) }, 2);
    let first = pid(&pool).await;
    let job = Job::new("do", "raw {\"done\":{\"id\":\"ID\"},\"bytes\":900}\nab").timeout(Duration::from_secs(3));
    let Err(JobError::Failed(failure)) = pool.submit(job).await else { panic!("it hangs") };
    assert_eq!(failure.outcome, Outcome::DeadlineExceeded);
    // The task that asks the job to stop may run after this one.
    tokio::task::yield_now().await;
    assert_ne!(pid(&pool).await, first);
    until(&pool, |_| pool.stats().programs[0].last_failure.contains("bytes that it announced have not come")).await;
    close(pool).await;
}

/// This test runs on the real clock, as the processes do.
#[tokio::test]
async fn a_job_that_ignores_its_deadline_is_killed_with_its_process() {
    let grace = Duration::from_millis(200);
    let pool = pool_of(WorkerProgram { cancel_grace: grace, ..program(&[]) }, 1);
    let halves = [
        "{\"output\":{\"id\"",
        "{\"output\":{\"id\":\"ID\"},\"bytes\":9}\nab",
        "{\"done\":{\"id\":\"ID\"},\"bytes\":9}\nab",
    ];
    for payload in halves.map(|half| format!("raw {half}")).into_iter().chain(["hang".to_owned()]) {
        let first = pid(&pool).await;
        let job = Job::new("do", payload.clone()).timeout(Duration::from_millis(300));
        let Err(JobError::Failed(failure)) = pool.submit(job).await else { panic!("it hangs") };
        assert_eq!(failure.outcome, Outcome::DeadlineExceeded);
        assert_ne!(pid(&pool).await, first, "{payload}");
    }
    close(pool).await;
}

#[tokio::test]
async fn a_process_that_obeys_a_cancel_is_kept() {
    let pool = pool_of(program(&[]), 1);
    let first = pid(&pool).await;
    let mut job = Box::pin(pool.submit(Job::new("do", "wait").timeout(PATIENCE)));
    tokio::select! {
        _ = &mut job => panic!("it waits"),
        () = until(&pool, all(ProcessState::Busy, 1)) => {}
    }
    drop(job);
    assert_eq!(pid(&pool).await, first);
    close(pool).await;
}

#[tokio::test]
async fn an_output_over_the_limit_fails_its_job_and_the_next_job_runs() {
    let pool = pool_of(program(&[]), 1);
    let failure = run(&pool, "flood").await.expect_err("it is too much");
    assert_eq!(failure.outcome, Outcome::OutputTooLarge);
    run(&pool, "pid").await.expect("it runs");
    close(pool).await;
}

#[tokio::test]
async fn a_program_that_fails_at_its_start_is_reported_and_restarted_with_pauses() {
    let pool = pool_of(program(&["broken"]), 2);
    until(&pool, all(ProcessState::Failing, 2)).await;
    let failure = run(&pool, "pid").await.expect_err("there is no process");
    assert_eq!((failure.outcome, failure.execution), (Outcome::HandlerUnavailable, Execution::NotStarted));
    let message = failure.to_string();
    assert!(
        message.contains("program test failed") && message.contains("exited with code 1: no model here"),
        "{message}"
    );
    let stats = pool.stats().programs.remove(0);
    assert!(stats.starts < 20 && stats.failures > 1 && stats.last_failure.contains("code 1"), "{stats:?}");
    close(pool).await;
}

#[tokio::test]
async fn a_program_that_is_not_ready_in_time_is_killed() {
    let silent = WorkerProgram { start_timeout: Duration::from_millis(200), ..program(&["silent"]) };
    let pool = pool_of(silent, 1);
    until(&pool, all(ProcessState::Failing, 1)).await;
    let failure = pool.stats().programs.remove(0).last_failure;
    assert_eq!(failure, "test did not say that it is ready within 200 ms, and was ended");
    close(pool).await;
}

#[tokio::test]
async fn a_program_that_lacks_a_configured_kind_is_not_used() {
    let mut other = program(&[]);
    other.kinds.insert("paint".to_owned());
    let pool = pool_of(other, 1);
    until(&pool, all(ProcessState::Failing, 1)).await;
    let failure = pool.stats().programs.remove(0).last_failure;
    assert_eq!(failure, "test does not run the kind paint; it says that it runs do, echo");
    close(pool).await;
}

/// Number of concurrent jobs.
const CONCURRENT_JOBS: usize = 16;

/// Runs jobs. Each must echo its payload or fail with its process. Calls `ended` after each: `true` for an echo.
async fn echo(pool: &Pool, jobs: u32, mut ended: impl FnMut(bool)) {
    let all = stream::iter(0..jobs).map(async |number| {
        let payload = Bytes::from(number.to_string());
        // While few jobs have run, the estimated wait is rough and could refuse a job that may not wait.
        let job = Job::new("echo", payload.clone()).timeout(PATIENCE).when_full(WhenFull::Wait);
        match pool.submit(job).await {
            Ok(completed) => {
                assert_eq!(completed.output.bytes, payload);
                true
            }
            Err(JobError::Failed(failure)) => {
                crash(&failure);
                false
            }
            Err(JobError::Rejected(rejection)) => panic!("{rejection}"),
        }
    });
    let mut all = Box::pin(all.buffer_unordered(CONCURRENT_JOBS));
    while let Some(echoed) = all.next().await {
        ended(echoed);
    }
}

#[tokio::test]
async fn every_job_is_answered_while_processes_are_killed_and_replaced() {
    const JOBS: u32 = 1_000;
    const KILLS: f64 = 0.02;
    let pool = pool_of(program(&[]), 4);
    until(&pool, all(ProcessState::Idle, 4)).await;
    let (mut random, mut killed) = (StdRng::seed_from_u64(1), BTreeSet::new());
    let (mut answers, mut crashes) = (0, 0);
    echo(&pool, JOBS, |echoed| {
        answers += 1;
        crashes += usize::from(!echoed);
        // A process that has run a job is restarted without a pause.
        let worked = processes(&pool).into_iter().filter(|process| process.jobs > 0).filter_map(|process| process.pid);
        let worked: Vec<_> = worked.filter(|pid| !killed.contains(pid)).collect();
        if random.random_bool(KILLS)
            && let Some(pid) = worked.choose(&mut random)
        {
            kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
            killed.insert(*pid);
        }
    })
    .await;
    assert!(answers == JOBS && killed.len() > 5 && crashes <= killed.len(), "{answers}, {crashes} of {}", killed.len());
    until(&pool, all(ProcessState::Idle, 4)).await;
    let stats = pool.stats();
    assert_eq!((stats.in_flight, stats.workers.len()), (0, 4));
    assert_eq!((stats.programs[0].starts, stats.programs[0].failures), (4 + killed.len() as u64, killed.len() as u64));
    close(pool).await;
}

#[tokio::test]
async fn a_model_is_loaded_once_per_process() {
    const JOBS: u32 = 1_000;
    const MODEL: usize = 20;
    let pool = pool_of(program(&[&format!("model={MODEL}")]), 2);
    echo(&pool, JOBS, |echoed| assert!(echoed)).await;
    let stats = pool.stats().programs.remove(0);
    assert_eq!((stats.starts, stats.failures), (2, 0));
    assert_eq!(stats.processes.iter().map(|process| process.jobs).sum::<u64>(), u64::from(JOBS));
    assert!(stats.processes.iter().all(|process| process.memory > (MODEL * MIB) as u64), "{stats:?}");
    close(pool).await;
}

/// Number of bytes that a process has written.
fn written(pid: u32) -> usize {
    let counts = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    counts.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_slow_reader_blocks_its_process_and_little_output_is_buffered() {
    let two = WorkerProgram { jobs_per_process: 2, ..program(&[]) };
    let pool = pool_of(two, 2);
    let mut slow = pool.stream(Job::new("do", "pour 128").timeout(PATIENCE)).await.expect("it runs");
    let mut output = 0;
    let mut read = async || match slow.next().await.expect("it completes") {
        Some(StreamItem::Event(Event::Chunk(chunk))) => {
            output += chunk.len();
            true
        }
        other => {
            assert!(matches!(other, Some(StreamItem::Completed(_))), "{other:?}");
            false
        }
    };
    assert!(read().await);
    let process = processes(&pool)[0].pid.unwrap();
    let mut other = Box::pin(pid(&pool));
    let full = async {
        while written(process) < MIB / 4 {
            tokio::task::yield_now().await;
        }
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
            assert!(written(process) < MIB);
        }
    };
    tokio::select! {
        biased;
        _ = &mut other => panic!("its output follows output that is not read yet"),
        () = full => {}
    }
    let (_, ()) = tokio::join!(other, async { while read().await {} });
    assert_eq!(output, 8 * MIB);
    assert_eq!(pool.stats().programs[0].failures, 0);
    close(pool).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_outlives_the_tokio_runtimes_of_its_callers() {
    let pool = pool_of(program(&[]), 1);
    let first = pid(&pool).await;
    for _ in 0..5 {
        let shared = pool.clone();
        let in_new_runtime = move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async { [pid(&shared).await, pid(&shared).await] })
        };
        assert_eq!(spawn_blocking(in_new_runtime).await.expect("no panic"), [first; 2]);
        assert_eq!(pid(&pool).await, first);
    }
    close(pool).await;
}
