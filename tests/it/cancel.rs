//! Dropping a job's ticket cancels the job at once, whether it is queued or running. Shielded work is not cancelled.

use std::time::Duration;

use tokio::time::Instant;
use waterwheel::{
    Job, JobError, Output,
    handler::StopReason,
    model::{HandlerError, Outcome, Rung},
};

use crate::support::{Counter, Gate, assert_idle, echo, kind, meet, meeting, pass_time, polite, pool, slow, until};

const AT_ONCE: Duration = Duration::from_millis(50);

#[tokio::test(start_paused = true)]
async fn dropping_the_ticket_of_a_running_job_cancels_its_token_at_once() {
    let (started, stopped) = (Counter::new(), Counter::new());
    let pool = pool(1).kind(polite(&started, &stopped)).kind(meeting(1)).build();
    let mut ticket = pool.try_submit(Job::new("polite", "")).expect("accepted");
    assert!(futures_util::poll!(&mut ticket).is_pending());
    started.reached(1).await;
    let left = Instant::now();
    drop(ticket);
    assert_eq!(pool.stats().counts.cancelled, 1);
    stopped.reached(1).await;
    meet(&pool, 1).await;
    assert!(left.elapsed() < AT_ONCE);
    assert_idle(&pool, 1);
}

#[tokio::test(start_paused = true)]
async fn a_queued_job_whose_ticket_is_dropped_frees_its_capacity_and_never_runs() {
    let (started, stopped) = (Counter::new(), Counter::new());
    let pool = pool(1).queue_jobs(1).kind(polite(&started, &stopped)).kind(echo()).build();
    let mut running = pool.try_submit(Job::new("polite", "")).expect("accepted");
    assert!(futures_util::poll!(&mut running).is_pending());
    for polled in [false, true] {
        let mut queued = pool.try_submit(Job::new("polite", "payload")).expect("the queue has capacity again");
        if polled {
            assert!(futures_util::poll!(&mut queued).is_pending());
        }
        assert_eq!((pool.stats().queued, pool.stats().queued_bytes), (1, 7));
        drop(queued);
        assert_eq!((pool.stats().queued, pool.stats().queued_bytes), (0, 0));
    }
    drop(running);
    pool.submit(Job::new("echo", "")).await.expect("the pool works");
    assert_eq!((started.get(), stopped.get()), (1, 1));
    assert_eq!(pool.stats().counts.cancelled, 3);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_ignores_its_token_is_aborted_after_the_grace_period() {
    let pool = pool(1).kind(slow()).kind(meeting(1)).build();
    let mut ticket = pool.try_submit(Job::new("slow", "")).expect("accepted");
    assert!(futures_util::poll!(&mut ticket).is_pending());
    let left = Instant::now();
    drop(ticket);
    meet(&pool, 1).await;
    assert_eq!(left.elapsed().as_millis() / 10, 100, "the default grace period is one second");
    assert_eq!(pool.stats().counts.cancelled, 1);
}

#[tokio::test(start_paused = true)]
async fn shielded_work_completes_after_its_job_is_cancelled_and_its_handler_aborted() {
    let (gate, cleaned) = (Gate::new(), Counter::new());
    let (held, done) = (gate.clone(), cleaned.clone());
    let cleans = kind("cleans", move |_, cx| {
        let (held, done) = (held.clone(), done.clone());
        async move {
            let clean_up = async move {
                held.pass().await;
                done.add();
                "clean"
            };
            Ok(Output::new(cx.shield(clean_up).await?))
        }
    });
    let pool = pool(1).kind(cleans).kind(meeting(1)).build();
    let mut ticket = pool.try_submit(Job::new("cleans", "")).expect("accepted");
    assert!(futures_util::poll!(&mut ticket).is_pending());
    drop(ticket);
    meet(&pool, 1).await;
    assert_eq!(
        (cleaned.get(), pool.stats().counts.cancelled),
        (0, 1),
        "the handler is aborted, and its clean-up still runs"
    );
    gate.let_pass(1);
    cleaned.reached(1).await;
    gate.open();
    assert_eq!(pool.submit(Job::new("cleans", "")).await.expect("it completes").output.bytes, "clean");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_shielded_work_fails_the_job() {
    let cleans = kind("cleans", |_, cx| async move {
        cx.shield(async { panic!("in the clean-up") }).await?;
        Ok(Output::default())
    });
    let pool = pool(1).kind(cleans).build();
    let error = pool.submit(Job::new("cleans", "")).await.expect_err("it panicked");
    assert!(matches!(error, JobError::Failed(failure) if failure.outcome == Outcome::WorkerCrashed));
    assert_idle(&pool, 1);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_cancels_its_own_token_ends_as_cancelled() {
    let cancels = kind("cancels", |job, cx| async move {
        cx.stop(StopReason::Caller);
        match &job.payload[..] {
            b"yield" => tokio::task::yield_now().await,
            b"ignore" => std::future::pending().await,
            _ => {}
        }
        Err(HandlerError::invalid("ignored"))
    });
    let pool = pool(1).kind(cancels).build();
    for (payload, rung) in [("", Some(Rung::Yielded)), ("yield", Some(Rung::Yielded)), ("ignore", Some(Rung::Forced))] {
        let error = pool.submit(Job::new("cancels", payload)).await.expect_err("it stops");
        let JobError::Failed(failure) = error else { panic!("{error}") };
        assert_eq!((failure.outcome, failure.rung), (Outcome::Cancelled, rung), "{payload}");
    }
    pass_time(Duration::from_secs(1)).await;
    until(|| pool.stats().counts.cancelled == 3).await;
    assert_idle(&pool, 1);
}
