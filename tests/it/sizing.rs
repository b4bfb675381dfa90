//! Pools that choose their number of workers, and workers that retire or need a new handler.
//!
//! Most tests run on a paused clock.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::Instant;
use waterwheel::{
    Job, JobError, Output, Pool,
    handler::{BlockingHandler, Context, Handler, Kind},
    model::{Execution, Failure, HandlerError},
    pool::{FactoryStats, PoolBuilder},
};

use crate::support::{BlockingGate, blocking_kind, echo, holding_clock, kind, pass_time, pool};

fn count(workers: usize) -> NonZeroUsize {
    NonZeroUsize::new(workers).expect("a pool has workers")
}

fn elastic(min: usize, max: usize) -> PoolBuilder {
    Pool::builder("elastic").elastic(count(min), count(max)).queue_jobs(10_000)
}

/// Open-loop load of jobs of 100 ms: they arrive at random times, independently of earlier jobs.
struct Load<'a> {
    pool: &'a Pool,
    random: StdRng,
}

impl Load<'_> {
    /// Submits `rate` jobs per second. Returns the number of workers at the end of each second.
    async fn run(&mut self, rate: f64, seconds: u64) -> Vec<usize> {
        let begin = Instant::now();
        let mut sizes = Vec::new();
        let mut next = begin;
        for second in 1..=seconds {
            // Just after the full second, when the pool has sampled its load.
            let end = begin + Duration::from_secs(second) + Duration::from_millis(1);
            loop {
                next += Duration::from_secs_f64(-self.random.random::<f64>().max(1e-9).ln() / rate);
                if next >= end {
                    break;
                }
                pass_time(next - Instant::now()).await;
                // A refused job is not retried.
                let _ = self.pool.send(Job::new("work", ""));
            }
            next = end;
            pass_time(end - Instant::now()).await;
            sizes.push(self.pool.stats().size.workers);
        }
        sizes
    }
}

/// The tests of the scheduler show which size a pool chooses. This one shows that it takes that size.
#[tokio::test(start_paused = true)]
async fn a_pool_follows_its_load_and_a_resize_sets_new_bounds() {
    let work = kind("work", |_, _| async {
        pass_time(Duration::from_millis(100)).await;
        Ok(Output::default())
    });
    let pool = elastic(1, 1).kind(work).build();
    let mut load = Load { pool: &pool, random: StdRng::seed_from_u64(2) };
    assert_eq!(load.run(40.0, 10).await, [1; 10]);
    assert!(pool.resize(count(1), count(6)));
    let up = load.run(40.0, 10).await;
    assert!(up[9] >= 4 && up.is_sorted(), "{up:?}");
    assert!(pool.stats().size.slowdown < 1.5, "{:?}", pool.stats().size);
    let down = load.run(1.0, 60).await;
    assert!(down[..25].iter().all(|size| *size == up[9]), "it shrank too early: {down:?}");
    assert!(down[59] < 4 && down.iter().rev().is_sorted(), "{down:?}");
    assert!(pool.resize(count(3), count(3)));
    assert_eq!(load.run(5.0, 60).await, [3; 60], "equal bounds fix the size");
    pool.pause();
    assert!(pool.resize(count(1), count(6)));
    assert_eq!(load.run(40.0, 5).await, [3; 5], "a paused pool keeps its size");
}

/// The task that samples the load keeps no pool alive, and delays no drain.
#[tokio::test(start_paused = true)]
async fn an_elastic_pool_is_freed_with_its_last_owner() {
    let alive = Arc::new(());
    let held = Arc::clone(&alive);
    let holds = move || {
        let held = Arc::clone(&held);
        kind("holds", move |_, _| {
            let _ = &held;
            async { Ok(Output::default()) }
        })
    };
    let pool = elastic(1, 4).kind(holds()).build();
    pool.submit(Job::new("holds", "")).await.expect("it completes");
    pass_time(Duration::from_secs(3)).await;
    pool.drain();
    pool.wait().await;
    assert!(!pool.resize(count(2), count(2)), "a draining pool cannot be resized");
    let other = elastic(1, 4).kind(holds()).build();
    drop((pool, other, holds));
    pass_time(Duration::from_secs(2)).await;
    assert_eq!(Arc::strong_count(&alive), 1);
}

/// A value of a thread. Sends a message when the thread ends.
struct OnThread(mpsc::Sender<()>);

impl Drop for OnThread {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

thread_local! {
    static THREAD: std::cell::RefCell<Option<OnThread>> = const { std::cell::RefCell::new(None) };
}

/// Each blocking worker has a thread.
#[tokio::test]
async fn a_retired_blocking_worker_ends_its_thread() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let (ended, ends) = mpsc::channel();
    let (gate, arrived) = (BlockingGate::default(), Arc::new(AtomicU64::new(0)));
    let (held, arrivals) = (gate.clone(), Arc::clone(&arrived));
    let block = blocking_kind("block", move |_, _| {
        THREAD.set(Some(OnThread(ended.clone())));
        arrivals.fetch_add(1, Ordering::SeqCst);
        held.pass();
        Ok(Output::default())
    });
    let pool = pool(8).kind(block).build();
    let jobs: Vec<_> = (0..8).map(|_| pool.send(Job::new("block", "")).expect("accepted")).collect();
    while arrived.load(Ordering::SeqCst) < jobs.len() as u64 {
        tokio::task::yield_now().await;
    }
    assert!(pool.resize(count(2), count(2)));
    let size = pool.stats().size;
    assert_eq!((size.workers, size.retiring, pool.stats().in_flight), (2, 6, 8), "busy workers finish first");
    assert!(ends.try_recv().is_err());
    gate.let_pass(8);
    while pool.stats().counts.completed < 8 {
        tokio::task::yield_now().await;
    }
    let six = move || (0..6).all(|_| ends.recv_timeout(PATIENCE).is_ok()).then_some(ends);
    let ends = tokio::task::spawn_blocking(six).await.expect("no panic");
    assert!(ends.expect("six threads end").try_recv().is_err(), "no other thread ends");
    assert_eq!((pool.stats().workers.len(), pool.worker_count()), (2, 2));
}

/// A handler whose factory may fail.
struct Fragile;

impl Handler for Fragile {
    async fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        Ok(Output::new(job.payload))
    }
}

fn failure(error: JobError) -> Failure {
    match error {
        JobError::Failed(failure) => {
            assert_eq!((failure.execution, failure.run), (Execution::NotStarted, Duration::ZERO), "{failure:?}");
            *failure
        }
        JobError::Rejected(rejection) => panic!("{rejection:?}"),
    }
}

/// A factory that failed is called again only after a delay, which grows with each failure. Other kinds are not
/// affected.
#[tokio::test(start_paused = true)]
async fn a_failed_factory_is_retried_with_growing_delays() {
    let (broken, tries) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    let factory = {
        let (broken, tries) = (Arc::clone(&broken), Arc::clone(&tries));
        move || {
            tries.fetch_add(1, Ordering::Relaxed);
            assert!(!broken.load(Ordering::Relaxed), "no route");
            Fragile
        }
    };
    let pool = pool(2).kind(Kind::new("fragile", factory)).kind(echo()).build();
    let factory = |pool: &Pool| -> FactoryStats {
        let stats = pool.stats();
        stats.kinds.iter().find(|kind| &*kind.name == "fragile").expect("a kind").factory
    };
    let submit = |kind: &str| pool.submit(Job::new(kind, ""));
    for round in 1..=3 {
        let first = failure(submit("fragile").await.expect_err("it fails"));
        assert_eq!(first.error, Some(HandlerError::Panicked { message: "no route".into() }));
        let second = failure(submit("fragile").await.expect_err("the factory is not called yet"));
        let Some(HandlerError::Unavailable { message }) = &second.error else { panic!("{second:?}") };
        assert!(message.contains("no route") && message.contains("the next attempt is later"), "{message}");
        let stats = factory(&pool);
        assert_eq!(second.retry_after, Some(stats.retry_in), "the clock is paused");
        assert_eq!((stats.failures, stats.in_a_row, tries.load(Ordering::Relaxed)), (round, round as u32, round));
        submit("echo").await.expect("another kind is not affected");
        let retry = stats.retry_in;
        assert!(
            retry >= Duration::from_millis(25 << round) && retry <= Duration::from_millis(75 << round),
            "{retry:?}"
        );
        pass_time(retry).await;
    }
    broken.store(false, Ordering::Relaxed);
    submit("fragile").await.expect("the factory works again");
    assert_eq!(factory(&pool), FactoryStats { failures: 3, in_a_row: 0, retry_in: Duration::ZERO });
}

/// Counts its jobs, and crashes or fails if the payload says so.
struct Brittle(u64);

impl Brittle {
    fn act(&mut self, job: &Job) -> Result<Output, HandlerError> {
        self.0 += 1;
        match &job.payload[..] {
            b"crash" => Err(HandlerError::Crashed { message: "it crashed".into() }),
            b"refuse" => Err(HandlerError::invalid("no")),
            _ => Ok(Output::new(self.0.to_string())),
        }
    }
}

impl Handler for Brittle {
    async fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        self.act(&job)
    }
}

impl BlockingHandler for Brittle {
    fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        self.act(&job)
    }
}

/// After a crash, a worker makes a new handler. If that fails, the next job fails before it starts.
#[tokio::test(start_paused = true)]
async fn the_error_of_a_factory_is_reported_to_the_next_job_after_a_crash() {
    let broken = Arc::new(AtomicBool::new(false));
    let factory = {
        let broken = Arc::clone(&broken);
        move || match broken.load(Ordering::Relaxed) {
            true => Err(HandlerError::Crashed { message: "no route".into() }),
            false => Ok(Brittle(0)),
        }
    };
    let pool = pool(1).kind(Kind::try_new("async", factory.clone())).kind(Kind::try_blocking("block", factory)).build();
    for kind in ["async", "block"] {
        broken.store(false, Ordering::Relaxed);
        let submit = |payload: &'static str| holding_clock(pool.submit(Job::new(kind, payload)));
        submit("").await.expect("it completes");
        submit("refuse").await.expect_err("the payload says so");
        assert_eq!(submit("").await.expect("it completes").output.bytes, "3", "a handler that fails is kept");
        submit("crash").await.expect_err("the payload says so");
        assert_eq!(submit("").await.expect("it completes").output.bytes, "1", "a handler that crashed is replaced");
        broken.store(true, Ordering::Relaxed);
        submit("crash").await.expect_err("the payload says so");
        let failed = failure(submit("").await.expect_err("there is no handler"));
        assert!(failed.to_string().contains("no route"), "{failed:?}");
        let retry_after = failed.retry_after.filter(|wait| !wait.is_zero());
        pass_time(retry_after.expect("a hint")).await;
    }
}
