//! Every accepted job ends exactly once, and the counters add up.

use std::{
    panic,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::task::JoinSet;
use waterwheel::{
    Completed, Criticality, Job, JobError, Output, Pool, WhenFull,
    handler::{Context, Kind, KindOptions},
    model::{Execution, HandlerError, Outcome},
    pool::{Counts, Settings},
};

use crate::support::{
    assert_balanced, assert_idle, blocking_kind, holding_clock, kind, meet, meeting, pass_time, pool,
};

const WORKERS: usize = 5;
const JOBS: usize = 3_000;

/// Number of runs of each job.
#[derive(Clone)]
struct Runs(Arc<Vec<AtomicU8>>);

impl Runs {
    fn new() -> Self {
        Self(Arc::new((0..JOBS).map(|_| AtomicU8::new(0)).collect()))
    }

    /// Counts a run, and returns the behaviour. The payload holds the number and the behaviour of the job.
    fn begin(&self, job: &Job) -> u8 {
        let number = usize::from(job.payload[0]) << 8 | usize::from(job.payload[1]);
        self.0[number].fetch_add(1, Ordering::Relaxed);
        job.payload[2]
    }

    fn of(&self, number: usize) -> u8 {
        self.0[number].load(Ordering::Relaxed)
    }
}

async fn behave(behaviour: u8, cx: Context) -> Result<Output, HandlerError> {
    let pause = |millis| tokio::time::timeout(Duration::from_millis(millis), std::future::pending::<()>());
    match behaviour {
        0 | 1 => {}
        2 => drop(pause(3).await),
        3 => return Err(HandlerError::invalid("no")),
        4 => panic::resume_unwind(Box::new("before an await")),
        5 => {
            tokio::task::yield_now().await;
            panic::resume_unwind(Box::new("after an await"));
        }
        6 => std::future::pending().await,
        7 => {
            cx.cancelled().await;
            return Err(HandlerError::Stopped);
        }
        8 => {
            cx.cancelled().await;
            panic::resume_unwind(Box::new("while stopping"));
        }
        _ => {
            cx.write("chunk").await?;
            tokio::task::yield_now().await;
        }
    }
    Ok(Output::new("done"))
}

fn mixed(runs: &Runs) -> [Kind; 2] {
    let (on_task, on_thread) = (runs.clone(), runs.clone());
    let options = KindOptions { cancel_grace: Some(Duration::from_millis(2)), ..KindOptions::default() };
    let task = kind("task", move |job, cx| {
        let behaviour = on_task.begin(&job);
        behave(behaviour, cx)
    });
    let thread = blocking_kind("thread", move |job, _| match on_thread.begin(&job) {
        3 => Err(HandlerError::invalid("no")),
        4 | 5 => panic::resume_unwind(Box::new("on the thread")),
        _ => Ok(Output::new("done")),
    });
    [task.options(options), thread]
}

fn any_job(random: &mut StdRng, number: usize) -> Job {
    let kind = if random.random_bool(0.8) { "task" } else { "thread" };
    let payload = vec![(number >> 8) as u8, number as u8, random.random_range(0..10)];
    let class = Criticality::BY_IMPORTANCE[random.random_range(0..4)];
    let full = [WhenFull::Reject, WhenFull::Wait, WhenFull::Shed][random.random_range(0..3)];
    let key = if random.random_bool(0.2) { "key" } else { "" };
    let mut job = Job::new(kind, payload).criticality(class).when_full(full).ordering_key(key);
    job = job.timeout(Duration::from_millis(random.random_range(1..100)));
    if random.random_bool(0.2) {
        job = job.queue_timeout(Duration::from_millis(random.random_range(1..9)));
    }
    if random.random_bool(0.2) {
        job = job.run_timeout(Duration::from_millis(random.random_range(1..9)));
    }
    job
}

/// Results as counted by the callers.
#[derive(Debug, Default)]
struct Seen {
    counts: Counts,
    left: u64,
    rejected: u64,
}

impl Seen {
    fn add(&mut self, outcome: Option<Result<Completed, JobError>>, runs: u8) {
        let counts = &mut self.counts;
        match outcome {
            None => {
                assert!(runs <= 1);
                self.left += 1;
            }
            Some(Ok(_)) => {
                assert_eq!(runs, 1);
                counts.completed += 1;
            }
            Some(Err(JobError::Rejected(_))) => {
                assert_eq!(runs, 0, "a refused job never runs");
                self.rejected += 1;
            }
            Some(Err(JobError::Failed(failure))) => {
                // The thread of a blocking job may start after the caller has its answer.
                let begun = u8::from(failure.execution == Execution::Started);
                assert!(runs <= begun, "{failure:?} after {runs} runs");
                *match failure.outcome {
                    Outcome::HandlerFailed => &mut counts.failed,
                    Outcome::HandlerPanicked => &mut counts.panicked,
                    Outcome::DeadlineExceeded | Outcome::RunTimeout | Outcome::ExpiredInQueue => &mut counts.expired,
                    Outcome::Shed => &mut counts.shed,
                    other => panic!("unexpected outcome {other:?}"),
                } += 1;
            }
        }
    }

    fn add_all(&mut self, other: Seen) {
        let (mine, theirs) = (&mut self.counts, other.counts);
        mine.completed += theirs.completed;
        mine.failed += theirs.failed;
        mine.panicked += theirs.panicked;
        mine.expired += theirs.expired;
        mine.shed += theirs.shed;
        self.left += other.left;
        self.rejected += other.rejected;
    }

    /// Compares the counts of the pool with those of the callers. They differ only by jobs whose callers gave up.
    fn check(&self, counts: &Counts) {
        let refused: u64 = counts.rejected.iter().sum();
        let ends = |of: &Counts| [of.completed, of.panicked, of.failed, of.expired, of.shed];
        let pairs = ends(counts).into_iter().zip(ends(&self.counts)).chain([(refused, self.rejected)]);
        let unseen: Option<u64> = pairs.map(|(counted, seen)| counted.checked_sub(seen)).sum();
        assert!(unseen.is_some_and(|unseen| unseen + counts.cancelled <= self.left), "{self:?} {counts:?}");
        assert_eq!(counts.accepted, counts.ended());
    }
}

/// Submits the jobs `numbers`, gives some of them up early, and counts their results. `pause` is the chance of a pause.
async fn storm(pool: Pool, runs: Runs, numbers: std::ops::Range<usize>, seed: u64, pause: f64) -> Seen {
    let mut random = StdRng::seed_from_u64(seed);
    let mut callers = JoinSet::new();
    for number in numbers {
        let job = any_job(&mut random, number);
        let patience = random.random_bool(0.2).then(|| Duration::from_millis(random.random_range(0..20)));
        let pool = pool.clone();
        callers.spawn(async move {
            let submit = pool.submit(job);
            let outcome = match patience {
                None => Some(submit.await),
                Some(patience) => tokio::time::timeout(patience, submit).await.ok(),
            };
            (number, outcome)
        });
        if random.random_bool(0.2) {
            tokio::task::yield_now().await;
        }
        if random.random_bool(pause) {
            pass_time(Duration::from_millis(random.random_range(1..9))).await;
        }
    }
    let mut seen = Seen::default();
    while let Some(caller) = callers.join_next().await {
        let (number, outcome) = caller.expect("no panic reaches a caller");
        seen.add(outcome, runs.of(number));
        if number.is_multiple_of(16) {
            assert_balanced(&pool.stats());
        }
    }
    seen
}

fn storm_pool(runs: &Runs) -> Pool {
    let settings = Settings {
        workers: WORKERS.try_into().expect("some"),
        queue_jobs: 6,
        queue_bytes: 50,
        queue_waiting: 4,
        max_stuck: 100,
        ..Settings::default()
    };
    let [task, thread] = mixed(runs);
    pool(WORKERS).settings(settings).kind(task).kind(thread).kind(meeting(WORKERS)).build()
}

/// All workers are free again after the storm, and the counts are right.
async fn check(pool: &Pool, mut seen: Seen) {
    meet(pool, WORKERS).await;
    assert_idle(pool, WORKERS);
    seen.counts.completed += WORKERS as u64;
    let counts = pool.stats().counts;
    seen.check(&counts);
}

#[tokio::test(start_paused = true)]
async fn every_job_ends_once_on_one_thread() {
    let (mut ends, mut all) = ([0; 6], 0);
    // The last rounds have few pauses, so that more important jobs find the queue full.
    for (seed, pause) in (0..).zip([0.35, 0.35, 0.35, 0.2, 0.1]) {
        let runs = Runs::new();
        let pool = storm_pool(&runs);
        let seen = storm(pool.clone(), runs.clone(), 0..JOBS, seed, pause).await;
        pass_time(Duration::from_millis(10)).await;
        holding_clock(check(&pool, seen)).await;
        let Counts { accepted, completed, failed, cancelled, expired, panicked, shed, .. } = pool.stats().counts;
        let counted = [completed, failed, cancelled, expired, panicked, shed];
        ends.iter_mut().zip(counted).for_each(|(sum, count)| *sum += count);
        all += accepted;
        assert!((0..JOBS).all(|number| runs.of(number) <= 1), "no job runs twice");
    }
    assert!(all > 4_000 && ends.iter().all(|count| *count > 2), "some of each: {ends:?} of {all}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn every_job_ends_once_on_many_threads() {
    let runs = Runs::new();
    let pool = storm_pool(&runs);
    let mut storms = JoinSet::new();
    for part in 0..4 {
        let numbers = part * JOBS / 4..(part + 1) * JOBS / 4;
        storms.spawn(storm(pool.clone(), runs.clone(), numbers, part as u64, 0.1));
    }
    let mut seen = Seen::default();
    while let Some(storm) = storms.join_next().await {
        seen.add_all(storm.expect("no panic"));
    }
    check(&pool, seen).await;
    assert!((0..JOBS).all(|number| runs.of(number) <= 1), "no job runs twice");
}
