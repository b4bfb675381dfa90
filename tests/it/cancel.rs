//! A dropped ticket cancels its job at once, at any stage and from any thread. Shielded work is not cancelled.

use std::{pin::pin, task::Poll, thread, time::Duration};

use futures_util::poll;
use tokio::{runtime, task::JoinSet, time::Instant};
use waterwheel::{
    Job, JobError, Output, Pool, WhenFull,
    handler::{Kind, KindOptions, StopReason},
    model::{HandlerError, Outcome, Rung},
    pool::{Settings, Ticket},
};

use crate::support::{
    Counter, Gate, assert_idle, blocking_kind, echo, holding_clock, kind, meet, meeting, pass_time, polite, pool, slow,
    until,
};

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

const WORKERS: usize = 4;

/// A kind that yields a few times, and checks its cancel token in between.
fn walk() -> Kind {
    kind("walk", |_, cx| async move {
        for _ in 0..3 {
            tokio::task::yield_now().await;
            if cx.is_cancelled() {
                return Err(HandlerError::Stopped);
            }
        }
        Ok(Output::default())
    })
}

/// A kind that ignores its cancel token until it is aborted.
fn deaf() -> Kind {
    let options = KindOptions { cancel_grace: Some(Duration::from_millis(5)), ..KindOptions::default() };
    kind("deaf", |_, _| std::future::pending()).options(options)
}

/// A blocking kind that spins until it is cancelled.
fn spin() -> Kind {
    blocking_kind("spin", |job, cx| {
        while !cx.is_cancelled() && job.payload == "long" {
            thread::yield_now();
        }
        Ok(Output::default())
    })
}

fn storm_pool(settings: Settings) -> Pool {
    let kinds = pool(WORKERS).settings(Settings { workers: WORKERS.try_into().expect("some"), ..settings });
    kinds.kind(walk()).kind(deaf()).kind(spin()).kind(meeting(WORKERS)).build()
}

/// Checks that no job is left, and that all workers can run jobs at the same time.
async fn check_slots(pool: &Pool) {
    meet(pool, WORKERS).await;
    assert_idle(pool, WORKERS);
}

/// Polls a ticket at most `polls` times, and drops it.
async fn poll_and_drop(ticket: Ticket, polls: usize) {
    let mut ticket = pin!(ticket);
    for _ in 0..polls {
        if poll!(ticket.as_mut()).is_ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
}

fn bounds() -> Settings {
    Settings { queue_jobs: 32, queue_waiting: 16, ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn a_ticket_dropped_after_any_number_of_polls_loses_no_worker() {
    let pool = storm_pool(Settings { queue_jobs: 1, ..bounds() });
    for behind in [0, WORKERS, WORKERS + 1] {
        for kind in ["walk", "deaf"] {
            for polls in 0..12 {
                let others: Vec<_> =
                    (0..behind).map(|_| pool.try_submit(Job::new("walk", "")).expect("accepted")).collect();
                let ticket = pool.try_submit(Job::new(kind, "").when_full(WhenFull::Wait)).expect("its caller waits");
                tokio::join!(poll_and_drop(ticket, polls), async {
                    for other in others {
                        other.await.expect("the others complete");
                    }
                });
                pass_time(Duration::from_millis(10)).await;
                assert_idle(&pool, WORKERS);
            }
        }
    }
    check_slots(&pool).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_assigned_to_a_cancelled_job_runs_the_next_job() {
    let pool = storm_pool(bounds());
    let running: Vec<_> = (0..WORKERS).map(|_| pool.try_submit(Job::new("deaf", "")).expect("accepted")).collect();
    let mut first = pool.try_submit(Job::new("walk", "")).expect("accepted");
    let second = pool.try_submit(Job::new("walk", "")).expect("accepted");
    assert!(poll!(&mut first).is_pending());
    drop(running);
    assert_eq!(pool.stats().queued, 0, "both have a worker, but were not polled yet");
    drop(first);
    second.await.expect("it completes");
    check_slots(&pool).await;
    assert_eq!(pool.stats().counts.cancelled, WORKERS as u64 + 1);
}

#[tokio::test(start_paused = true)]
async fn tickets_dropped_on_a_thread_without_a_runtime_lose_no_worker() {
    let pool = storm_pool(bounds());
    let mut tickets = Vec::new();
    for kind in ["walk", "deaf", "spin", "deaf", "walk", "deaf"] {
        let mut ticket = pool.try_submit(Job::new(kind, "long")).expect("accepted");
        assert!(poll!(&mut ticket).is_pending());
        tickets.push(ticket);
    }
    thread::spawn(move || drop(tickets)).join().expect("no panic");
    pass_time(Duration::from_millis(10)).await;
    holding_clock(check_slots(&pool)).await;
    assert_eq!(pool.stats().counts.cancelled, 6);
}

#[test]
fn jobs_without_any_runtime_are_aborted_at_once() {
    let pool = storm_pool(bounds());
    let mut task = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..3 * WORKERS {
        let ticket = pool.try_submit(Job::new("deaf", "")).expect("accepted");
        drop(ticket);
        let mut submit = pin!(pool.submit(Job::new("walk", "")));
        let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        {
            let _inside = runtime.enter();
            assert!(submit.as_mut().poll(&mut task).is_pending());
        }
    }
    assert_idle(&pool, WORKERS);
}

#[tokio::test]
async fn jobs_whose_runtime_is_dropped_lose_no_worker() {
    let pool = storm_pool(bounds());
    for round in 0..6 {
        let other = if round % 2 == 0 {
            runtime::Builder::new_current_thread().enable_all().build()
        } else {
            runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
        };
        let other = other.expect("a runtime");
        let shared = pool.clone();
        let submit_and_drop_runtime = move || {
            other.block_on(async {
                let mut jobs = JoinSet::new();
                for kind in ["deaf", "spin", "deaf", "deaf", "walk", "spin", "walk", "deaf"] {
                    let mut ticket = shared.try_submit(Job::new(kind, "long")).expect("accepted");
                    assert!(matches!(poll!(&mut ticket), Poll::Pending));
                    jobs.spawn(ticket);
                }
                jobs.detach_all();
                shared.send(Job::new("walk", "")).expect("accepted");
                drop(shared.stream(Job::new("walk", "").timeout(Duration::from_millis(1))).await);
            });
            drop(other);
        };
        thread::spawn(submit_and_drop_runtime).join().expect("no panic");
        check_slots(&pool).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tickets_dropped_on_another_thread_lose_no_worker() {
    let pool = storm_pool(Settings { queue_jobs: 64, ..Settings::default() });
    for _ in 0..200 {
        let tickets: Vec<_> = (0..16).map(|_| pool.try_submit(Job::new("walk", "")).expect("accepted")).collect();
        let (kept, left): (Vec<_>, Vec<_>) = tickets.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
        let leaving = tokio::task::spawn_blocking(move || drop(left));
        let mut callers: JoinSet<_> = kept.into_iter().map(|(_, ticket)| ticket).collect();
        while let Some(outcome) = callers.join_next().await {
            outcome.expect("no panic").expect("it completes");
        }
        leaving.await.expect("no panic");
    }
    check_slots(&pool).await;
    let counts = pool.stats().counts;
    assert_eq!(counts.completed, 200 * 8 + WORKERS as u64);
    assert_eq!(counts.cancelled, 200 * 8);
}
