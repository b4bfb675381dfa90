//! Pools that choose their size: they follow the load, do not flap, and keep out of a slow downstream. On a clock that
//! stands still but for its timers.

mod load;

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use tokio::sync::Semaphore;
use waterwheel::{
    Job, JobError, Output, Pool,
    handler::{BlockingHandler, Context, Handler, Kind},
    model::{Execution, Failure, HandlerError},
    pool::{FactoryStats, PoolBuilder},
};

use self::load::{Load, monotonic};
use crate::support::{BlockingGate, blocking_kind, echo, holding_clock, kind, pass_time, pool};

fn count(workers: usize) -> NonZeroUsize {
    NonZeroUsize::new(workers).expect("a pool has workers")
}

fn elastic(min: usize, max: usize) -> PoolBuilder {
    Pool::builder("elastic").elastic(count(min), count(max)).queue_jobs(10_000)
}

/// Jobs that take so many milliseconds, which may change.
fn waiting(millis: &Arc<AtomicU64>) -> Kind {
    let millis = Arc::clone(millis);
    kind("work", move |_, _| {
        let millis = millis.load(Ordering::Relaxed);
        async move {
            pass_time(Duration::from_millis(millis)).await;
            Ok(Output::default())
        }
    })
}

/// A pool whose jobs take 100 ms, as long as nobody says otherwise.
fn working(min: usize, max: usize) -> (Pool, Arc<AtomicU64>) {
    let millis = Arc::new(AtomicU64::new(100));
    (elastic(min, max).kind(waiting(&millis)).build(), millis)
}

/// Three steps up to 12 busy workers and down to one, each for a minute: the pool has enough workers five seconds after
/// each step up, is small five seconds after half a minute of quiet, and its size changes in one direction in each step.
#[tokio::test(start_paused = true)]
async fn the_size_follows_steps_of_the_load_and_does_not_flap() {
    for seed in 0..3 {
        let (pool, _) = working(4, 16);
        let mut load = Load::new(&pool, seed);
        load.run(10.0, 60).await;
        for _ in 0..3 {
            let up = load.run(120.0, 60).await;
            assert!(up[4] >= 12, "after 5 s: {up:?}");
            assert!(monotonic(&up), "{up:?}");
            let down = load.run(10.0, 60).await;
            assert!(down[..25].iter().all(|size| *size == down[0]), "it is not quiet yet: {down:?}");
            assert!(down[36] <= 6, "{down:?}");
            assert!(monotonic(&down), "{down:?}");
        }
        pool.close(Duration::from_secs(1), Duration::from_secs(1)).await;
    }
}

/// Each job needs one of a few connections, which then take ten times as long: the pool does not press on them with many
/// more workers, and is its old self after that.
#[tokio::test(start_paused = true)]
async fn a_slow_downstream_is_not_scaled_into() {
    const CONNECTIONS: usize = 8;
    let (millis, connections) = (Arc::new(AtomicU64::new(100)), Arc::new(Semaphore::new(CONNECTIONS)));
    let downstream = {
        let (millis, connections) = (Arc::clone(&millis), Arc::clone(&connections));
        kind("work", move |_, _| {
            let (millis, connections) = (Arc::clone(&millis), Arc::clone(&connections));
            async move {
                let _connection = connections.acquire().await.expect("it is not closed");
                pass_time(Duration::from_millis(millis.load(Ordering::Relaxed))).await;
                Ok(Output::default())
            }
        })
    };
    let pool = elastic(2, 64).kind(downstream).build();
    let mut load = Load::new(&pool, 1);
    let before = load.run(25.0, 60).await;
    assert!((3..=8).contains(before.last().expect("a size")), "{before:?}");
    assert!(pool.stats().size.slowdown < 1.5, "{:?}", pool.stats().size);

    millis.store(1_000, Ordering::Relaxed);
    let slow = load.run(25.0, 120).await;
    assert!(slow.iter().all(|size| *size <= 4 * CONNECTIONS), "{slow:?}");
    assert!(pool.stats().size.slowdown > 2.0, "{:?}", pool.stats().size);
    assert!(slow.windows(10).any(|sizes| sizes.iter().all(|size| *size == sizes[0])), "it is held back: {slow:?}");

    millis.store(100, Ordering::Relaxed);
    connections.add_permits(64);
    load.run(25.0, 60).await;
    assert!(!pool.stats().size.held_back, "{:?}", pool.stats().size);
    let up = load.run(200.0, 10).await;
    assert!(up.iter().any(|size| *size >= 20), "it grows again: {up:?}");
}

/// Jobs that take five times as long as they did, on their own account, get the workers that they need.
#[tokio::test(start_paused = true)]
async fn jobs_that_have_merely_grown_get_their_workers() {
    let (pool, millis) = working(1, 16);
    let mut load = Load::new(&pool, 1);
    load.run(15.0, 60).await;
    millis.store(500, Ordering::Relaxed);
    let sizes = load.run(24.0, 60).await;
    assert!(sizes[29..].iter().all(|size| *size >= 12), "{sizes:?}");
    assert!(pool.stats().size.slowdown < 1.5, "{:?}", pool.stats().size);
}

#[tokio::test(start_paused = true)]
async fn a_resize_sets_new_bounds_and_a_fixed_size_ends_the_choice() {
    let (pool, _) = working(1, 1);
    let mut load = Load::new(&pool, 2);
    assert_eq!(load.run(40.0, 10).await, [1; 10]);
    assert!(pool.resize(count(1), count(6)));
    let up = load.run(40.0, 10).await;
    assert!(up[9] >= 4 && monotonic(&up), "{up:?}");
    assert!(pool.resize(count(3), count(3)));
    assert_eq!(load.run(5.0, 60).await, [3; 60]);
    pool.pause();
    assert!(pool.resize(count(1), count(6)));
    assert_eq!(load.run(40.0, 5).await, [3; 5], "a paused pool keeps its size");
}

/// A pool that chooses its size is gone with its last owner, and its drain waits for nobody who looks at it.
#[tokio::test(start_paused = true)]
async fn whoever_looks_at_the_size_holds_nothing() {
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
    assert!(!pool.resize(count(2), count(2)), "a pool that drains keeps its workers");
    let other = elastic(1, 4).kind(holds()).build();
    drop((pool, other, holds));
    pass_time(Duration::from_secs(2)).await;
    assert_eq!(Arc::strong_count(&alive), 1);
}

/// Ends with its thread, and says so.
struct OnThread(mpsc::Sender<()>);

impl Drop for OnThread {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

thread_local! {
    static THREAD: std::cell::RefCell<Option<OnThread>> = const { std::cell::RefCell::new(None) };
}

/// Each blocking worker has a thread, which ends with it.
#[tokio::test]
async fn threads_come_and_go_with_their_workers() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let (ended, ends) = mpsc::channel();
    let (gate, arrived) = (BlockingGate::default(), Arc::new(AtomicU64::new(0)));
    let (held, come) = (gate.clone(), Arc::clone(&arrived));
    let block = blocking_kind("block", move |_, _| {
        THREAD.set(Some(OnThread(ended.clone())));
        come.fetch_add(1, Ordering::SeqCst);
        held.pass();
        Ok(Output::default())
    });
    let pool = pool(8).kind(block).build();
    let jobs: Vec<_> = (0..8).map(|_| pool.send(Job::new("block", "")).expect("room")).collect();
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
    assert!(ends.expect("six threads end").try_recv().is_err(), "and no more");
    assert_eq!((pool.stats().workers.len(), pool.worker_count()), (2, 2));
}

/// Its factory fails where `broken` says so.
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

/// A factory that fails is left alone for a while, longer each time, and is shown; other kinds go on, and a pool does not
/// grow meanwhile.
#[tokio::test(start_paused = true)]
async fn factories_that_fail_are_left_alone_for_a_while() {
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
        let second = failure(submit("fragile").await.expect_err("it is left alone"));
        let Some(HandlerError::Unavailable { message }) = &second.error else { panic!("{second:?}") };
        assert!(message.contains("no route") && message.contains("the next attempt is later"), "{message}");
        let stats = factory(&pool);
        assert_eq!(second.retry_after, Some(stats.retry_in), "the clock stands still");
        assert_eq!((stats.failures, stats.in_a_row, tries.load(Ordering::Relaxed)), (round, round as u32, round));
        submit("echo").await.expect("another kind goes on");
        let retry = stats.retry_in;
        assert!(
            retry >= Duration::from_millis(25 << round) && retry <= Duration::from_millis(75 << round),
            "{retry:?}"
        );
        pass_time(retry).await;
    }
    broken.store(false, Ordering::Relaxed);
    submit("fragile").await.expect("it is mended");
    assert_eq!(factory(&pool), FactoryStats { failures: 3, in_a_row: 0, retry_in: Duration::ZERO });
}

/// Counts its jobs, and crashes where it is told to.
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

/// After a crash a worker makes a new handler, and where that fails its jobs are told so before they start.
#[tokio::test(start_paused = true)]
async fn a_factory_that_says_why_is_asked_after_each_crash() {
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
        submit("refuse").await.expect_err("it is told to");
        assert_eq!(submit("").await.expect("it completes").output.bytes, "3", "what refuses is kept");
        submit("crash").await.expect_err("it is told to");
        assert_eq!(submit("").await.expect("it completes").output.bytes, "1", "what crashed is made anew");
        broken.store(true, Ordering::Relaxed);
        submit("crash").await.expect_err("it is told to");
        let told = failure(submit("").await.expect_err("there is no handler"));
        assert!(told.to_string().contains("no route"), "{told:?}");
        let retry_after = told.retry_after.filter(|wait| !wait.is_zero());
        pass_time(retry_after.expect("a hint")).await;
    }
}
