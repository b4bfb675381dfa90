//! Every job gets its response before its deadline, whatever its handler does.

use std::time::Duration;

use tokio::time::Instant;
use waterwheel::{
    Job, JobError, Output, Pool,
    handler::{KindOptions, StopReason},
    model::{DeadlinePolicy, Execution, Failure, HandlerError, Outcome, RejectionReason, Rung},
    pool::{Settings, WorkerState},
};

use crate::support::{
    BlockingGate, Counter, assert_idle, deaf, echo, holding_clock, kind, meet, meeting, pass_time, pool, slow, until,
};

const SECOND: Duration = Duration::from_secs(1);

async fn failure_of(pool: &Pool, job: Job) -> Failure {
    match pool.submit(job).await {
        Err(JobError::Failed(failure)) => *failure,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_response_is_sent_a_margin_before_the_deadline() {
    let pool = pool(1).kind(slow()).build();
    for (budget, answered) in [(5_000, 4_940), (50, 45)] {
        pass_time(10 * SECOND).await;
        let start = Instant::now();
        let failure = failure_of(&pool, Job::new("slow", "").timeout(Duration::from_millis(budget))).await;
        assert_eq!(start.elapsed(), Duration::from_millis(answered));
        assert_eq!((failure.outcome, failure.run), (Outcome::DeadlineExceeded, Duration::from_millis(answered)));
        assert_eq!((failure.execution, failure.rung), (Execution::Started, Some(Rung::Asked)));
    }
    assert_eq!(pool.stats().counts.expired, 2);
}

#[tokio::test(start_paused = true)]
async fn the_shortest_run_timeout_stops_the_job() {
    let limited = |name, limit| {
        let options = KindOptions { run_timeout: Some(limit), ..KindOptions::default() };
        kind(name, |_, cx| async move {
            assert_eq!(cx.budget(), cx.until() - Instant::now());
            assert_eq!(cx.cancelled().await, StopReason::Deadline);
            Err(HandlerError::Stopped)
        })
        .options(options)
    };
    let pool = pool(1).kind(limited("short", SECOND)).kind(limited("long", 9 * SECOND)).build();
    for (kind, own, limit) in [("short", None, 1), ("short", Some(3), 1), ("long", Some(3), 3), ("long", None, 9)] {
        let mut job = Job::new(kind, "");
        job.run_timeout = own.map(Duration::from_secs);
        let start = Instant::now();
        let failure = failure_of(&pool, job).await;
        assert_eq!((failure.outcome, failure.run), (Outcome::RunTimeout, Duration::from_secs(limit)));
        assert_eq!(start.elapsed(), Duration::from_secs(limit));
    }
    until(|| pool.stats().in_flight == 0).await;
    assert_idle(&pool, 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_job_is_admitted_with_the_timeout_that_its_refusal_names() {
    let second = kind("second", |_, _| async {
        tokio::time::sleep(SECOND).await;
        Ok(Output::default())
    });
    let pool = pool(1).kind(second).build();
    let job = || Job::new("second", "");
    let offer =
        |timeout| pool.send(job().timeout(timeout)).map_err(|rejection| (rejection.reason, rejection.retry_after));
    pool.submit(job()).await.expect("it measures a second");
    offer(100 * SECOND).expect("the worker is free");

    let (reason, retry_after) = offer(SECOND / 2).expect_err("the run alone takes longer");
    assert!(matches!(reason, RejectionReason::DeadlineUnreachable { .. }), "{reason:?}");
    assert_eq!(retry_after, None);

    offer(100 * SECOND).expect("it is queued");
    let (reason, retry_after) = offer(SECOND * 5 / 4).expect_err("it would wait too long");
    let RejectionReason::DeadlineUnreachable { needed, .. } = reason else { panic!("{reason:?}") };
    assert!(retry_after.is_some(), "the wait may become shorter");
    offer(needed - Duration::from_millis(3)).expect_err("too short");
    offer(needed).expect("long enough");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_expires_in_the_queue_never_runs() {
    let ran = Counter::new();
    let seen = ran.clone();
    let counts = kind("counts", move |_, _| {
        seen.add();
        async { Ok(Output::default()) }
    });
    let pool = pool(1).kind(slow()).kind(counts).build();
    let busy = pool.send(Job::new("slow", "").timeout(100 * SECOND));
    busy.expect("accepted");
    let start = Instant::now();
    let cases = [
        (Job::new("counts", "").timeout(2 * SECOND), 1_970),
        (Job::new("counts", "").queue_timeout(SECOND), 1_000),
        (Job::new("counts", "").queue_timeout(3 * SECOND).timeout(2 * SECOND), 1_970),
    ];
    for (job, waited) in cases {
        let begin = Instant::now();
        let failure = failure_of(&pool, job).await;
        assert_eq!((failure.outcome, failure.queue), (Outcome::ExpiredInQueue, Duration::from_millis(waited)));
        assert_eq!(failure.execution, Execution::NotStarted);
        assert_eq!(begin.elapsed(), Duration::from_millis(waited));
        assert_eq!((pool.stats().queued, pool.stats().queued_bytes), (0, 0));
    }
    assert!(start.elapsed() < 6 * SECOND);
    pass_time(100 * SECOND).await;
    assert_eq!((ran.get(), pool.stats().counts.expired), (0, 4));
}

#[tokio::test(start_paused = true)]
async fn the_response_does_not_wait_for_the_grace_period_of_the_handler() {
    let (asked, left) = (Counter::new(), Counter::new());
    struct Leaves(Counter);
    impl Drop for Leaves {
        fn drop(&mut self) {
            self.0.add();
        }
    }
    let (seen, gone) = (asked.clone(), left.clone());
    let lingers = kind("lingers", move |_, cx| {
        let (seen, gone) = (seen.clone(), Leaves(gone.clone()));
        async move {
            let _gone = gone;
            cx.cancelled().await;
            seen.add();
            std::future::pending().await
        }
    });
    let options = KindOptions { cancel_grace: Some(3 * SECOND), ..KindOptions::default() };
    let pool = pool(1).kind(lingers.options(options)).kind(meeting(1)).build();
    let start = Instant::now();
    failure_of(&pool, Job::new("lingers", "").timeout(SECOND)).await;
    assert_eq!(start.elapsed(), Duration::from_millis(980));
    asked.reached(1).await;
    assert_eq!((left.get(), pool.stats().in_flight), (0, 1));
    meet(&pool, 1).await;
    assert_eq!(start.elapsed().as_millis() / 10, 398, "the grace period starts with the response");
    assert_eq!(left.get(), 1);
    assert_idle(&pool, 1);
}

#[tokio::test(start_paused = true)]
async fn a_kind_without_a_grace_period_has_that_of_its_pool() {
    let settings = Settings { cancel_grace: 7 * SECOND, workers: std::num::NonZeroUsize::MIN, ..Settings::default() };
    let pool = pool(1).settings(settings).kind(slow()).kind(meeting(1)).build();
    let start = Instant::now();
    failure_of(&pool, Job::new("slow", "").run_timeout(SECOND)).await;
    meet(&pool, 1).await;
    assert_eq!(start.elapsed().as_millis() / 10, 800);
}

#[tokio::test(start_paused = true)]
async fn a_blocking_handler_that_ignores_its_token_is_replaced_up_to_a_bound() {
    let (started, gate) = (Counter::new(), BlockingGate::default());
    let settings = Settings { workers: 2.try_into().expect("two"), max_stuck: 1, ..Settings::default() };
    let pool = pool(2).settings(settings).kind(deaf(&started, &gate)).kind(meeting(2)).kind(echo()).build();
    let states = || pool.stats().workers.into_iter().map(|worker| worker.state).collect::<Vec<_>>();

    for (round, live) in [(1, 2), (2, 1)] {
        let start = Instant::now();
        let job = Job::new("deaf", "").timeout(5 * SECOND);
        let (failure, ()) = tokio::join!(failure_of(&pool, job), holding_clock(started.reached(round)));
        assert_eq!(failure.outcome, Outcome::DeadlineExceeded);
        assert_eq!(start.elapsed(), Duration::from_millis(4_940));
        pass_time(2 * SECOND).await;
        assert_eq!((pool.worker_count(), pool.is_impaired()), (live, live < 2));
        assert_eq!(states().iter().filter(|state| **state == WorkerState::Stuck).count(), round);
        assert_eq!(states().len(), 3, "one worker is replaced");
    }
    pool.submit(Job::new("echo", "")).await.expect("the other workers work");

    gate.let_pass(2);
    holding_clock(meet(&pool, 2)).await;
    until(|| states() == [WorkerState::Idle; 2]).await;
    assert!(!pool.is_impaired());
    assert_idle(&pool, 2);
    assert_eq!(pool.stats().counts.expired, 2, "jobs that end late are counted once");
}

#[tokio::test(start_paused = true)]
async fn durations_of_the_largest_value_are_valid() {
    let policy = DeadlinePolicy { default: Duration::MAX, max: Duration::MAX, ..DeadlinePolicy::default() };
    let endless =
        KindOptions { run_timeout: Some(Duration::MAX), cancel_grace: Some(Duration::MAX), ..KindOptions::default() };
    let settings = Settings { deadline: policy, ..Settings::default() };
    let pool = pool(1).settings(settings).kind(echo().options(endless)).build();
    let job = || Job::new("echo", "x");
    let endless = job().queue_timeout(Duration::MAX).run_timeout(Duration::MAX).timeout(Duration::MAX);
    for job in [job(), endless] {
        assert_eq!(pool.submit(job).await.expect("it completes").output.bytes, "x");
    }
    assert!(pool.close(Duration::MAX, Duration::MAX).await.lost.is_empty());
}
