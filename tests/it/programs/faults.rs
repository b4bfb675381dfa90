//! Programs that die, hang, or break the protocol.

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

#[tokio::test]
async fn a_process_that_breaks_the_protocol_is_killed_and_replaced() {
    let pool = pool_of(program(&[]), 1);
    let long = format!("raw {}", "x".repeat(70_000));
    for (payload, expected) in [
        ("raw hello\n", "not a JSON message of the protocol"),
        ("raw {\"nonsense\":{\"id\":\"ID\"}}\n", "not a JSON message of the protocol"),
        ("raw {\"done\":{\"id\":\"ID0\"}}\n", "it names a job that it does not run"),
        ("raw {\"output\":{\"id\":\"x\"}}\n", "it names a job that it does not run"),
        ("raw {\"ready\":{\"protocol\":1}}\n", "it is ready twice"),
        ("raw {\"progress\":{\"id\":\"ID\"},\"bytes\":2}\nab", "it has no bytes"),
        ("raw {\"output\":{\"id\":\"ID\"},\"bytes\":99999999999}\n", "99999999999 bytes are to follow"),
        (&long, "a line has more than 65536 bytes"),
    ] {
        let failure = run(&pool, payload.to_owned()).await.expect_err("its process is killed");
        let message = crash(&failure);
        assert!(
            message.starts_with("test broke the protocol, and was ended: ") && message.contains(expected),
            "{message}"
        );
        run(&pool, "pid").await.expect("a fresh process runs it");
    }
    for payload in [
        "raw {\"done\":{\"id\":\"ID\"}}\n{\"done\":{\"id\":\"ID\"}}\n",
        "raw {\"done\":{\"id\":\"ID\"},\"bytes\":1}\nab\n",
    ] {
        let failures = pool.stats().programs[0].failures;
        run(&pool, payload).await.expect("it was answered before");
        until(&pool, |_| pool.stats().programs[0].failures > failures).await;
        run(&pool, "pid").await.expect("a fresh process runs it");
    }
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
