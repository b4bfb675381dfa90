//! Workers of a pool: their number, their threads, and what a dropped pool leaves behind. The pool never runs foreign
//! code under its lock, so that code may call the pool.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        mpsc::{self, Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use futures_util::poll;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{runtime::Builder, task::JoinSet, time::Instant};
use tracing::{Id, Subscriber};
use tracing_subscriber::{
    Layer,
    layer::{self, SubscriberExt},
    registry,
};
use waterwheel::{
    Job, Output, Pool, WhenFull,
    handler::{Kind, StopReason},
    model::{Call, HandlerError},
    phase::Phase,
    pool::{PoolBuilder, Ticket, set_shard},
};

use crate::support::{
    BlockingGate, Counter, assert_idle, blocking_kind, deaf, echo, holding_clock, kind, meet, meeting, pass_time, pool,
    slow, until,
};

/// Longer than any step takes that is not stuck.
const LONG: Duration = Duration::from_secs(30);

/// A kind that sends the payload of each job that starts. The job `stop` runs until it is cancelled.
fn report(started: &SyncSender<String>) -> Kind {
    let started = started.clone();
    blocking_kind("report", move |job, cx| {
        let name = String::from_utf8_lossy(&job.payload).into_owned();
        started.send(name.clone()).expect("the test listens");
        if name != "stop" {
            return Ok(Output::new(name));
        }
        while !cx.is_cancelled() {
            thread::yield_now();
        }
        started.send(format!("{:?}", cx.stop_reason())).expect("the test listens");
        Err(HandlerError::Stopped)
    })
}

/// Submits jobs with these payloads to a pool with one worker, and polls each once, so that the first one starts.
fn submit(pool: &Pool, names: &[&'static str]) -> Vec<Ticket> {
    let submit = |name: &&'static str| pool.try_submit(Job::new("report", *name)).expect("accepted");
    let mut tickets: Vec<_> = names.iter().map(submit).collect();
    for ticket in tickets.iter_mut().rev() {
        // The first job may have ended already.
        let _ = futures_util::FutureExt::now_or_never(ticket);
    }
    tickets
}

fn next(started: &Receiver<String>) -> String {
    started.recv_timeout(LONG).expect("a job begins")
}

#[tokio::test]
async fn a_blocking_worker_runs_jobs_while_the_serving_thread_is_blocked() {
    let (sender, started) = sync_channel(8);
    let pool = pool(1).kind(report(&sender)).build();
    let names = ["one", "two", "three"];
    let _tickets = submit(&pool, &names);
    // This thread is the only serving thread. It is blocked until all jobs have started.
    for name in names {
        assert_eq!(next(&started), name);
    }
}

#[tokio::test]
async fn dropping_a_ticket_stops_its_job_before_the_start_was_observed() {
    let (sender, started) = sync_channel(8);
    let pool = pool(1).kind(report(&sender)).kind(meeting(1)).build();
    let mut tickets = submit(&pool, &["one", "stop", "never"]);
    assert_eq!((next(&started), next(&started)), ("one".into(), "stop".into()));
    let (never, stop) = (tickets.pop(), tickets.pop());
    drop(never);
    drop(stop);
    assert_eq!(next(&started), format!("{:?}", Some(StopReason::Caller)));
    meet(&pool, 1).await;
    let counts = pool.stats().counts;
    assert_eq!((counts.cancelled, counts.completed), (2, 2), "the first job and the meeting");
    assert!(started.try_recv().is_err(), "a job that was cancelled in the queue never ran");
    assert_idle(&pool, 1);
}

#[test]
fn outcomes_reach_callers_after_the_runtime_was_replaced() {
    let (sender, started) = sync_channel(8);
    let pool = pool(1).kind(report(&sender)).build();
    set_shard(0);
    for _ in 0..2 {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            for ticket in submit(&pool, &["one", "two", "three"]) {
                tokio::time::timeout(LONG, ticket).await.expect("its outcome is delivered").expect("it completes");
            }
        });
        // The caller of this job ends with the runtime, so its outcome is not delivered.
        runtime.block_on(async { submit(&pool, &["one"]).into_iter().for_each(drop) });
    }
    assert_eq!(started.try_iter().filter(|name| name == "three").count(), 2);
}

/// Number of this process's threads whose names begin with `prefix`.
fn threads(prefix: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with(prefix)).count()
}

async fn busy_threads(name: &str) -> Pool {
    let pool = Pool::builder(name).workers(3.try_into().expect("three"));
    let (started, gate) = (Counter::new(), BlockingGate::default());
    let pool = pool.kind(deaf(&started, &gate)).kind(echo()).build();
    pool.submit(Job::new("echo", "")).await.expect("it completes");
    assert_eq!(threads(name), 0, "a kind that is not blocking has threads");
    let mut callers = JoinSet::new();
    for _ in 0..6 {
        callers.spawn(pool.try_submit(Job::new("deaf", "")).expect("accepted"));
    }
    started.reached(3).await;
    assert_eq!(threads(name), 3, "one for each worker");
    gate.let_pass(6);
    while let Some(caller) = callers.join_next().await {
        caller.expect("no panic").expect("it completes");
    }
    assert_eq!(threads(name), 3, "threads are kept from job to job");
    pool
}

#[tokio::test]
async fn threads_end_with_their_workers_and_with_the_drain() {
    let pool = busy_threads("drainpool").await;
    assert!(pool.resize(NonZeroUsize::MIN, NonZeroUsize::MIN));
    until(|| threads("drainpool") == 1).await;
    pool.drain();
    pool.wait().await;
    until(|| threads("drainpool") == 0).await;
    assert_eq!(pool.phase(), Phase::Stopped);
}

#[tokio::test]
async fn threads_end_with_the_last_handle_of_the_pool() {
    let pool = busy_threads("droppool").await;
    let other = pool.clone();
    drop(pool);
    other.submit(Job::new("echo", "")).await.expect("the pool still works");
    assert_eq!(threads("droppool"), 3);
    drop(other);
    until(|| threads("droppool") == 0).await;
}

#[test]
fn a_pool_that_is_never_used_needs_no_runtime() {
    drop(pool(2).kind(echo()).build());
    let pool = pool(2).kind(echo()).build();
    pool.drain();
    assert_eq!(pool.phase(), Phase::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_pool_frees_its_handlers_and_factories_with_its_last_handle() {
    let alive = Arc::new(());
    let (made, ran) = (Arc::clone(&alive), Arc::clone(&alive));
    let holds = kind("holds", move |job, cx| {
        let ran = Arc::clone(&ran);
        async move {
            cx.write("chunk").await?;
            tokio::task::yield_now().await;
            drop(ran);
            Ok(Output::new(job.payload))
        }
    });
    // The task that samples the load of an elastic pool keeps no pool alive.
    let two = NonZeroUsize::new(2).expect("two");
    let pool = pool(2).elastic(NonZeroUsize::MIN, two).kind(holds).kind(slow()).build();
    drop(made);
    pool.submit(Job::new("holds", "")).await.expect("it completes");
    let mut stream = pool.stream(Job::new("holds", "")).await.expect("accepted");
    while stream.next().await.expect("it completes").is_some() {}
    let mut left = pool.try_submit(Job::new("slow", "")).expect("accepted");
    assert!(poll!(&mut left).is_pending());
    drop((left, stream));
    pass_time(Duration::from_secs(2)).await;
    assert!(Arc::strong_count(&alive) > 1, "the factory keeps a reference");
    drop(pool);
    pass_time(Duration::from_secs(2)).await;
    assert_eq!(Arc::strong_count(&alive), 1);
}

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

/// Reads the statistics of the pool whenever a span ends.
struct StatsAtSpanEnd {
    pool: Pool,
    ended: Counter,
}

impl<S: Subscriber> Layer<S> for StatsAtSpanEnd {
    fn on_close(&self, _: Id, _: layer::Context<'_, S>) {
        let _ = self.pool.stats();
        self.ended.add();
    }
}

/// Runs `body` on a new thread, and panics if it does not end in time, as a thread in a deadlock does not.
fn run_in_time(body: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let body = thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    let ended = ended.recv_timeout(Duration::from_secs(20));
    assert_ne!(ended, Err(mpsc::RecvTimeoutError::Timeout), "deadlock");
    body.join().expect("no panic");
}

async fn end_jobs_in_every_way(pool: Pool, started: Counter, gate: BlockingGate) {
    let job = |kind: &str| {
        let mut job = Job::new(kind, "").when_full(WhenFull::Wait);
        job.call = Some(Arc::new(Call { span: tracing::info_span!("call"), ..Call::here() }));
        job
    };
    pool.submit(job("quick")).await.expect("it completes");
    drop(pool.try_submit(job("quick")).expect("accepted"));

    let mut stuck = pool.try_submit(job("deaf").run_timeout(Duration::from_secs(1))).expect("accepted");
    assert!(poll!(&mut stuck).is_pending());
    holding_clock(started.reached(1)).await;
    let unpolled: Vec<_> = (0..2).map(|_| pool.try_submit(job("quick")).expect("accepted")).collect();
    let mut polled: Vec<_> = (0..2).map(|_| pool.try_submit(job("quick")).expect("accepted")).collect();
    for ticket in &mut polled {
        assert!(poll!(ticket).is_pending());
    }
    drop((unpolled, polled));
    stuck.await.expect_err("it takes too long");
    pass_time(Duration::from_secs(2)).await;
    gate.let_pass(1);
    until(|| pool.stats().in_flight == 0).await;

    let mut stream = pool.stream(job("quick")).await.expect("accepted");
    while stream.next().await.expect("it completes").is_some() {}
    pool.submit(job("fails")).await.expect_err("it fails");
}

#[test]
fn a_subscriber_may_read_the_statistics_when_a_span_ends() {
    let (started, gate, ended) = (Counter::new(), BlockingGate::default(), Counter::new());
    let deaf = deaf(&started, &gate);
    let quick = kind("quick", |_, _| async { Ok(Output::default()) });
    let fails = kind("fails", |_, _| async { Err(HandlerError::invalid("no")) });
    let pool = pool(1).queue_jobs(3).kind(deaf).kind(quick).kind(fails).build();
    let subscriber = registry().with(StatsAtSpanEnd { pool: pool.clone(), ended: ended.clone() });
    run_in_time(move || {
        // The worker's thread may drop the last reference to a span. The span keeps its dispatcher for that.
        let _guard = tracing::subscriber::set_default(subscriber);
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(end_jobs_in_every_way(pool, started, gate));
    });
    assert!(ended.get() >= 9, "every call's span ended: {}", ended.get());
}
