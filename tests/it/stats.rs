//! The statistics of a pool while it works.

use std::time::Duration;

use futures_util::poll;
use waterwheel::{
    Job, Output, Pool,
    handler::KindOptions,
    model::HandlerError,
    phase::Phase,
    pool::{Distribution, PoolStats, Settings, WorkerState, WorkerStats},
};

use crate::support::{Gate, assert_balanced, assert_idle, echo, gated, kind, pass_time, pool, slow};

const SECOND: Duration = Duration::from_secs(1);

fn worker(pool: &Pool, id: usize) -> WorkerStats {
    pool.stats().workers.swap_remove(id)
}

fn near(found: Duration, expected: Duration) -> bool {
    found.abs_diff(expected) <= expected / 50
}

#[tokio::test(start_paused = true)]
async fn the_state_of_a_worker_goes_from_idle_to_stopped() {
    let gate = Gate::new();
    let pool = pool(1).kind(gated("gated", &gate)).build();
    assert_eq!((worker(&pool, 0).state, worker(&pool, 0).job), (WorkerState::Idle, None));

    let mut ticket = pool.try_submit(Job::new("gated", "")).expect("accepted");
    assert!(poll!(&mut ticket).is_pending());
    pass_time(3 * SECOND).await;
    let busy = worker(&pool, 0);
    assert_eq!((busy.state, busy.job, busy.job_age), (WorkerState::Busy, Some(ticket.job()), 3 * SECOND));
    assert_eq!((busy.completed, busy.total_run), (0, Duration::ZERO));
    let stats = pool.stats();
    assert_eq!((stats.in_flight, stats.phase, stats.utilization), (1, Phase::Serving, 1.0));

    pool.drain();
    assert_eq!(worker(&pool, 0).state, WorkerState::Draining);
    gate.let_pass(1);
    ticket.await.expect("it completes");
    let stopped = worker(&pool, 0);
    assert_eq!((stopped.state, stopped.job, stopped.job_age), (WorkerState::Stopped, None, Duration::ZERO));
    assert_eq!((stopped.completed, stopped.total_run, stopped.mean_run), (1, 3 * SECOND, 3 * SECOND));
    assert_eq!(pool.stats().utilization, 0.0);
}

#[tokio::test(start_paused = true)]
async fn output_and_progress_reports_reset_the_time_since_progress() {
    let gate = Gate::new();
    let held = gate.clone();
    let reports = kind("reports", move |_, cx| {
        let held = held.clone();
        async move {
            held.pass().await;
            cx.progress(0.5, "half");
            held.pass().await;
            cx.write("chunk").await?;
            held.pass().await;
            Ok(Output::default())
        }
    });
    let pool = pool(1).kind(reports).build();
    let mut ticket = pool.try_submit(Job::new("reports", "")).expect("accepted");
    assert!(poll!(&mut ticket).is_pending());
    for _ in 0..2 {
        pass_time(2 * SECOND).await;
        assert_eq!(worker(&pool, 0).since_progress, 2 * SECOND);
        gate.let_pass(1);
        assert!(poll!(&mut ticket).is_pending());
        assert_eq!(worker(&pool, 0).since_progress, Duration::ZERO);
    }
    gate.let_pass(1);
    ticket.await.expect("it completes");
    pass_time(SECOND).await;
    assert_eq!(worker(&pool, 0).since_progress, SECOND);
    assert_eq!(worker(&pool, 0).mean_run, 4 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn the_queue_reports_its_jobs_bytes_and_oldest_age() {
    let settings =
        Settings { workers: 1.try_into().expect("one"), queue_jobs: 7, queue_bytes: 100, ..Settings::default() };
    let pool = pool(1).settings(settings).kind(slow()).build();
    let mut tickets = Vec::new();
    for size in [1, 2, 4] {
        let mut ticket = pool.try_submit(Job::new("slow", vec![0; size])).expect("accepted");
        assert!(poll!(&mut ticket).is_pending());
        tickets.push(ticket);
        pass_time(SECOND).await;
    }
    let PoolStats { queued, queue_jobs, queued_bytes, queue_bytes, waiting, oldest_age, in_flight, .. } = pool.stats();
    assert_eq!((queued, queue_jobs, queued_bytes, queue_bytes), (2, 7, 6, 100));
    assert_eq!((waiting, in_flight, oldest_age), (0, 1, 2 * SECOND));
    assert_balanced(&pool.stats());
    drop(tickets.remove(1));
    assert_eq!((pool.stats().oldest_age, pool.stats().queued_bytes), (SECOND, 4));
}

#[tokio::test(start_paused = true)]
async fn queue_wait_and_run_time_are_measured_per_kind() {
    let sleeps = kind("sleeps", |_, _| async {
        tokio::time::timeout(SECOND, std::future::pending::<()>()).await.map_err(|_| HandlerError::invalid("late"))?;
        Ok(Output::default())
    });
    let pool = pool(1).kind(sleeps).kind(echo()).build();
    let callers = (0..4).map(|_| pool.submit(Job::new("sleeps", "")));
    assert!(futures_util::future::join_all(callers).await.iter().all(Result::is_err));
    let stats = pool.stats();
    let [sleeps, echo] = &stats.kinds[..] else { panic!("{stats:#?}") };
    assert_eq!((&*sleeps.name, &*echo.name), ("sleeps", "echo"));
    assert_eq!((sleeps.queue_wait.count, sleeps.run_time.count), (4, 4));
    assert!(near(sleeps.run_time.p50, SECOND) && near(sleeps.run_time.max, SECOND), "{:?}", sleeps.run_time);
    assert!(near(sleeps.queue_wait.max, 3 * SECOND), "{:?}", sleeps.queue_wait);
    assert_eq!((echo.queue_wait, echo.run_time), (Distribution::default(), Distribution::default()));
    assert_eq!(stats.counts.failed, 4);
    assert_eq!((stats.workers[0].failed, stats.workers[0].total_run), (4, 4 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_times_out_is_measured_once() {
    let options = KindOptions { run_timeout: Some(SECOND), ..KindOptions::default() };
    let pool = pool(1).kind(slow().options(options)).build();
    pool.submit(Job::new("slow", "")).await.expect_err("it takes too long");
    pass_time(5 * SECOND).await;
    let stats = pool.stats();
    assert_eq!(stats.kinds[0].run_time.count, 1);
    assert_eq!((stats.workers[0].failed, stats.workers[0].total_run), (1, SECOND));
    assert_idle(&pool, 1);
}

#[tokio::test]
async fn a_poll_that_blocks_its_thread_is_counted() {
    let clock = || tokio::time::Instant::now();
    let holds = kind("holds", move |_, _| async move {
        let start = clock();
        while start.elapsed() < Duration::from_millis(110) {
            std::hint::spin_loop();
        }
        Ok(Output::default())
    });
    let pool = pool(1).kind(holds).kind(echo()).build();
    let start = clock();
    pool.submit(Job::new("echo", "")).await.expect("it completes");
    let before = pool.stats().slow_polls;
    assert!(before == 0 || start.elapsed() > Duration::from_millis(100), "{before}");
    pool.submit(Job::new("holds", "")).await.expect("it completes");
    assert_eq!(pool.stats().slow_polls, before + 1);
}
