//! Jobs that take their process down: the others wait for a new one as if they were queued, and it starts at once.

use futures_util::future::join_all;

use super::*;

#[tokio::test]
async fn the_wait_for_a_process_counts_as_queue_time_and_not_as_a_run() {
    let pool = pool_of(program(&["slow=1500"]), 1);
    // Each waits for the first process, and gives up before it is ready.
    let limits = [
        (Job::new("do", "pid").timeout(Duration::from_millis(600)), Outcome::ExpiredInQueue),
        (Job::new("do", "pid").queue_timeout(Duration::from_millis(200)), Outcome::ExpiredInQueue),
    ];
    for (job, outcome) in limits {
        let Err(JobError::Failed(failure)) = pool.submit(job).await else { panic!("it is not ready yet") };
        assert_eq!((failure.outcome, failure.execution), (outcome, Execution::NotStarted), "{failure:?}");
        assert!(failure.queue >= Duration::from_millis(200) && failure.run.is_zero(), "{failure:?}");
    }
    close(pool).await;

    let pool = pool_of(program(&["slow=1500"]), 1);
    // The limit of a run begins with the run.
    let job = Job::new("do", "pid").run_timeout(Duration::from_secs(1)).timeout(PATIENCE);
    let waterfall = pool.submit(job).await.expect("it waits for its process").waterfall;
    assert!(waterfall.queue >= Duration::from_secs(1) && waterfall.run < Duration::from_secs(1), "{waterfall:?}");
    close(pool).await;
}

#[tokio::test]
async fn a_drain_names_a_job_that_waits_for_a_process_as_one_that_did_not_begin() {
    let pool = pool_of(program(&["silent"]), 1);
    let mut job = Box::pin(run(&pool, "pid"));
    tokio::select! {
        _ = &mut job => panic!("there is no process"),
        () = until(&pool, |_| pool.stats().in_flight == 1) => {}
    }
    let (failure, report) = tokio::join!(job, pool.close(Duration::ZERO, PATIENCE));
    let failure = failure.expect_err("it was stopped");
    assert_eq!((failure.outcome, failure.execution), (Outcome::Drained, Execution::NotStarted));
    assert_eq!(report.lost[0].lost_while, LostWhile::Queued);
}

#[tokio::test]
async fn a_process_that_was_ready_is_restarted_at_once_however_often_its_jobs_crash_it() {
    const CRASHES: usize = 12;
    let pool = pool_of(program(&[]), 2);
    for _ in 0..CRASHES {
        // No process answers a job.
        let both = join_all([run(&pool, "exit 3"), run(&pool, "exit 3")]).await;
        both.into_iter().for_each(|ended| drop(crash(&ended.expect_err("it crashes")).to_owned()));
        assert!(processes(&pool).iter().all(|process| process.state != ProcessState::Failing));
    }
    run(&pool, "pid").await.expect("a fresh process runs it");
    let stats = pool.stats().programs.remove(0);
    assert_eq!(stats.failures, 2 * CRASHES as u64);
    close(pool).await;
}

#[tokio::test]
async fn a_process_that_is_ready_and_ends_without_a_job_is_restarted_with_pauses() {
    let pool = pool_of(program(&["fleeting"]), 1);
    until(&pool, all(ProcessState::Failing, 1)).await;
    close(pool).await;
}
