//! A panic anywhere in a handler costs one job and the handler's state, nothing else.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::Duration;

use waterwheel::{
    Job, JobError, Output, Pool,
    handler::{BlockingHandler, Context, Handler, Kind, KindOptions},
    model::{Execution, HandlerError, Outcome},
};

use crate::support::{Counter, assert_idle, blocking_kind, echo, holding_clock, kind, meet, meeting, pass_time, pool};

/// Counts its drop, and panics in it if it is armed.
struct Bomb(Arc<AtomicBool>, Counter);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.1.add();
        if self.0.load(Ordering::SeqCst) {
            panic!("dropped");
        }
    }
}

/// A handler with a bomb. The payload of a job says `panic` or `hang`; any other job counts its runs.
struct Bombed(Bomb, usize);

fn act(job: &Job, count: &mut usize) -> Result<Output, HandlerError> {
    assert!(job.payload != "panic", "asked for it");
    *count += 1;
    Ok(Output::new(count.to_string()))
}

impl Handler for Bombed {
    async fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        if job.payload == "hang" {
            let _bomb = Bomb(Arc::clone(&self.0.0), self.0.1.clone());
            std::future::pending::<()>().await;
        }
        act(&job, &mut self.1)
    }
}

impl BlockingHandler for Bombed {
    fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        act(&job, &mut self.1)
    }
}

/// A pool of one worker with the kinds "async" and "block", the switch that arms their bombs, and the count of drops.
fn bombed() -> (Pool, Arc<AtomicBool>, Counter) {
    let (armed, dropped) = (Arc::new(AtomicBool::new(false)), Counter::new());
    let factory = {
        let (armed, dropped) = (Arc::clone(&armed), dropped.clone());
        move || Bombed(Bomb(Arc::clone(&armed), dropped.clone()), 0)
    };
    let options = KindOptions { cancel_grace: Some(Duration::from_millis(100)), ..KindOptions::default() };
    let kinds =
        pool(1).kind(Kind::new("async", factory.clone()).options(options)).kind(Kind::blocking("block", factory));
    (kinds.kind(meeting(1)).build(), armed, dropped)
}

async fn output(pool: &Pool, kind: &str) -> String {
    let done = pool.submit(Job::new(kind, "")).await.expect("it completes");
    String::from_utf8(done.output.bytes.to_vec()).expect("text")
}

async fn panic_of(pool: &Pool, job: Job) -> String {
    match pool.submit(job).await {
        Err(JobError::Failed(failure)) => {
            // A factory is called before its job begins.
            let is_made = !failure.kind.contains("factory");
            let begun = if is_made { Execution::Started } else { Execution::NotStarted };
            assert_eq!(failure.execution, begun, "{failure:?}");
            assert_eq!(failure.outcome, Outcome::HandlerPanicked);
            let Some(HandlerError::Panicked { message }) = failure.error else { panic!("{:?}", failure.error) };
            message
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_panic_costs_one_job_wherever_it_happens() {
    let late = |_: Job, _: Context| async {
        tokio::task::yield_now().await;
        panic!("after {}", "an await")
    };
    let early = |_: Job, _: Context| -> std::future::Ready<_> { panic!("in the call") };
    let value = |_: Job, _: Context| async { std::panic::panic_any(7) };
    let pool = pool(2)
        .kind(kind("late", late))
        .kind(kind("early", early))
        .kind(kind("value", value))
        .kind(blocking_kind("block", |_, _| panic!("on the thread")))
        .kind(Kind::new("factory", || -> Bombed { panic!("no state") }))
        .kind(Kind::blocking("block factory", || -> Bombed { panic!("no blocking state") }))
        .kind(echo())
        .kind(meeting(2))
        .build();
    let cases = [
        ("late", "after an await"),
        ("early", "in the call"),
        ("value", "a value that is no text"),
        ("block", "on the thread"),
        ("factory", "no state"),
        ("block factory", "no blocking state"),
    ];
    // The factories are last: a factory that failed is not called again for a while.
    let all = cases[..4].iter().cycle().take(12).chain(&cases[4..]);
    for (round, (kind, message)) in all.enumerate() {
        let (found, other) = tokio::join!(panic_of(&pool, Job::new(*kind, "")), pool.submit(Job::new("echo", "x")));
        assert_eq!(found, *message);
        assert_eq!(other.expect("another job is not affected").output.bytes, "x");
        assert_eq!(pool.stats().counts.panicked, round as u64 + 1);
    }
    meet(&pool, 2).await;
    assert_idle(&pool, 2);
}

#[tokio::test]
async fn a_handler_keeps_its_state_until_it_panics() {
    let (pool, _, dropped) = bombed();
    for kind in ["async", "block"] {
        assert_eq!(output(&pool, kind).await, "1");
        assert_eq!(output(&pool, kind).await, "2");
        panic_of(&pool, Job::new(kind, "panic")).await;
        assert_eq!(output(&pool, kind).await, "1");
    }
    assert_eq!(dropped.get(), 2);
}

#[tokio::test]
async fn a_second_panic_in_the_drop_of_the_handler_costs_no_further_job() {
    let (pool, armed, dropped) = bombed();
    armed.store(true, Ordering::SeqCst);
    for (round, kind) in ["async", "block"].into_iter().enumerate() {
        assert_eq!(panic_of(&pool, Job::new(kind, "panic")).await, "asked for it");
        assert_eq!(dropped.get(), round + 1);
        assert_eq!(output(&pool, kind).await, "1");
    }
    armed.store(false, Ordering::SeqCst);
    assert_idle(&pool, 1);
}

#[tokio::test(start_paused = true)]
async fn panics_in_the_drops_of_a_future_and_its_handler_cost_one_job() {
    let (pool, armed, dropped) = bombed();
    armed.store(true, Ordering::SeqCst);
    let hang = || Job::new("async", "hang").timeout(Duration::from_secs(1));

    let error = pool.submit(hang()).await.expect_err("it hangs");
    assert!(matches!(error, JobError::Failed(failure) if failure.outcome == Outcome::DeadlineExceeded));
    pass_time(Duration::from_millis(150)).await;
    assert_eq!(pool.stats().in_flight, 0);
    assert_eq!(dropped.get(), 2);

    drop(pool.try_submit(hang()).expect("accepted"));
    let ticket = pool.try_submit(hang()).expect("accepted");
    let (outcome, ()) = tokio::join!(ticket, async { pool.stop() });
    assert!(
        matches!(outcome, Err(JobError::Failed(failure)) if matches!(failure.outcome, Outcome::DrainKilled { .. }))
    );
    pool.wait().await;
    assert_eq!(pool.stats().in_flight, 0);
    armed.store(false, Ordering::SeqCst);
}

#[tokio::test]
async fn handlers_that_panic_when_their_pool_is_dropped_do_not_panic_its_owner() {
    let (pool, armed, dropped) = bombed();
    assert_eq!(output(&pool, "async").await, "1");
    assert_eq!(output(&pool, "block").await, "1");
    armed.store(true, Ordering::SeqCst);
    pool.drain();
    pool.wait().await;
    assert_eq!(dropped.get(), 2, "both handlers are dropped, although each panics");

    let (pool, armed, dropped) = bombed();
    assert_eq!(output(&pool, "async").await, "1");
    assert_eq!(output(&pool, "block").await, "1");
    armed.store(true, Ordering::SeqCst);
    drop(pool);
    assert_eq!(dropped.get(), 2);
}

#[tokio::test]
async fn a_panic_payload_that_panics_in_its_drop_costs_one_job() {
    let (armed, dropped) = (Arc::new(AtomicBool::new(true)), Counter::new());
    let bomb = {
        let (armed, dropped) = (Arc::clone(&armed), dropped.clone());
        move || Bomb(Arc::clone(&armed), dropped.clone())
    };
    let other = bomb.clone();
    let throw = kind("async", move |_, _| {
        let bomb = bomb();
        async move { std::panic::panic_any(bomb) }
    });
    let pool = pool(1)
        .kind(throw)
        .kind(blocking_kind("block", move |_, _| std::panic::panic_any(other())))
        .kind(meeting(1))
        .build();
    for kind in ["async", "block"] {
        assert_eq!(panic_of(&pool, Job::new(kind, "")).await, "a value that is no text");
    }
    meet(&pool, 1).await;
    assert_idle(&pool, 1);
    assert_eq!(dropped.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_panic_during_cancellation_frees_the_worker() {
    let yields = kind("yields", |_, cx| async move {
        cx.cancelled().await;
        panic!("while stopping")
    });
    let pool = pool(1).kind(yields).kind(meeting(1)).build();
    let job = || Job::new("yields", "").timeout(Duration::from_secs(1));
    pool.submit(job()).await.expect_err("its deadline passes");
    holding_clock(meet(&pool, 1)).await;
    assert_idle(&pool, 1);
    let counts = pool.stats().counts;
    assert_eq!((counts.expired, counts.panicked), (1, 0), "the deadline decided the outcome");
}
