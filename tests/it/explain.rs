//! Where a job is, what it waits for, and how it ended, as its operator is told.

mod server;

use std::time::Duration;

use tokio::task::JoinSet;
use waterwheel::{
    Criticality, Job, Output, Pool, WhenFull,
    handler::{Kind, KindOptions},
    model::{JobId, KindLimits, Limit, Limiter, Outcome, Rung},
    pool::{Binding, EndedJob, Queued, Settings, Stage, Ticket, Wait},
};

use crate::support::{Gate, kind, pass_time, pool};

const SECOND: Duration = Duration::from_secs(1);

/// A kind that runs until its gate lets it pass, whatever it is told.
fn held(name: &str, gate: &Gate) -> Kind {
    let gate = gate.clone();
    kind(name, move |_, _| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok(Output::default())
        }
    })
}

fn queued(pool: &Pool, job: JobId) -> (usize, Queued) {
    let wait = pool.explain(job).expect("it is known").wait.expect("it waits");
    (wait.position, wait.queued.expect("it has room"))
}

fn ended(pool: &Pool, job: JobId) -> EndedJob {
    match pool.explain(job).expect("it is known").job.stage {
        Stage::Ended(ended) => ended,
        other => panic!("{other:?}"),
    }
}

fn give(jobs: &mut JoinSet<()>, pool: &Pool, job: Job) -> JobId {
    let ticket: Ticket = pool.try_submit(job).expect("room");
    let id = ticket.job();
    jobs.spawn(async move { drop(ticket.await) });
    id
}

#[tokio::test(start_paused = true)]
async fn a_queued_job_is_told_its_place_and_what_binds_it() {
    let gate = Gate::new();
    let limited =
        KindLimits { all: Limit { concurrency: std::num::NonZeroU32::new(1), rate: None }, ..KindLimits::default() };
    let limited = held("limited", &gate).options(KindOptions { limits: limited, ..KindOptions::default() });
    let pool = pool(2).kind(held("held", &gate)).kind(limited).build();
    let mut jobs = JoinSet::new();
    let job = || Job::new("held", "");
    // Their mean is known: a second.
    give(&mut jobs, &pool, job());
    pass_time(SECOND).await;
    gate.let_pass(1);
    jobs.join_next().await.expect("a job").expect("no panic");

    let running = give(&mut jobs, &pool, job().ordering_key("key"));
    give(&mut jobs, &pool, Job::new("limited", ""));
    let behind = give(&mut jobs, &pool, job().ordering_key("key").tenant("a"));
    let first = give(&mut jobs, &pool, job().tenant("a"));
    let second = give(&mut jobs, &pool, job().tenant("a"));
    let over = give(&mut jobs, &pool, Job::new("limited", "").tenant("b"));
    let low = give(&mut jobs, &pool, job().criticality(Criticality::Sheddable));
    let other = give(&mut jobs, &pool, job().tenant("c"));
    pass_time(SECOND).await;

    let binding = |job| queued(&pool, job).1.bound_by;
    assert_eq!(binding(behind), Binding::OrderingKey);
    assert_eq!(binding(over), Binding::Limit(Limiter::Concurrency));
    assert_eq!(binding(other), Binding::Workers);
    assert_eq!(binding(second), Binding::Tenants, "the one of c came later and goes first");
    // Before it: the first of its tenant, and the one of c. The limited kind is passed over, and who is behind a key passes
    // nobody of its tenant.
    let (position, second) = queued(&pool, second);
    assert_eq!((position, second.ahead), (3, 2));
    let expected = second.expected_start.expect("the pool is not paused");
    assert!(
        (SECOND..SECOND * 3).contains(&expected),
        "two jobs, by two workers, and what others send until then: {expected:?}"
    );
    let (position, low) = queued(&pool, low);
    assert_eq!((position, low.ahead), (5, 3));
    assert_eq!(queued(&pool, first).0, 2);
    let explained = pool.explain(running).expect("it is known");
    assert_eq!((&*explained.job.pool, &*explained.job.kind), ("test", "held"));
    assert!(!explained.job.stopping);
    let Stage::Running { queue, run, left, stuck: false, .. } = explained.job.stage else { panic!("{explained:?}") };
    assert_eq!((queue, run), (Duration::ZERO, SECOND));
    assert_eq!(left, Duration::from_millis(28_690), "thirty, but the margin and the second that it ran");
    assert!(pool.pause());
    assert_eq!([binding(behind), binding(over), binding(other)], [Binding::Pause; 3]);
    assert_eq!(queued(&pool, other).1.expected_start, None, "nothing starts until it is resumed");
    assert!(pool.resume());
    gate.open();
    while jobs.join_next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn a_long_line_of_an_ordering_key_does_not_count_before_others() {
    let gate = Gate::new();
    let pool = pool(2).kind(held("held", &gate)).build();
    let mut jobs = JoinSet::new();
    let job = || Job::new("held", "");
    // Their mean is known: a second.
    give(&mut jobs, &pool, job());
    pass_time(SECOND).await;
    gate.let_pass(1);
    jobs.join_next().await.expect("a job").expect("no panic");

    give(&mut jobs, &pool, job());
    let line: Vec<JobId> = (0..8).map(|_| give(&mut jobs, &pool, job().ordering_key("key"))).collect();
    let low = give(&mut jobs, &pool, job().criticality(Criticality::Sheddable));
    let after = give(&mut jobs, &pool, job());
    let told = |job| {
        let (_, Queued { ahead, expected_start, .. }) = queued(&pool, job);
        (ahead, expected_start.expect("the pool is not paused"))
    };
    assert_eq!(told(after), (0, Duration::ZERO), "those of the line come to the queue after it");
    assert_eq!(told(low), (1, SECOND / 2), "the one that is free: what is behind a key takes one worker");
    assert_eq!(told(line[4]), (4, 4 * SECOND), "the line, and the one that is free");
    gate.let_pass(2);
    for _ in 0..2 {
        jobs.join_next().await.expect("a job").expect("no panic");
    }
    gate.open();
    while jobs.join_next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn who_is_freed_later_is_not_counted_before_a_job_that_was_free() {
    let gate = Gate::new();
    let pool = pool(1).kind(held("held", &gate)).build();
    let mut jobs = JoinSet::new();
    let job = || Job::new("held", "");
    give(&mut jobs, &pool, job().ordering_key("key"));
    let freed = give(&mut jobs, &pool, job().ordering_key("key"));
    give(&mut jobs, &pool, job());
    let last = give(&mut jobs, &pool, job());
    gate.let_pass(1);
    jobs.join_next().await.expect("a job").expect("no panic");
    assert_eq!([last, freed].map(|job| queued(&pool, job).1.ahead), [0, 1]);
    gate.open();
    while jobs.join_next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_for_room_is_told_so() {
    let gate = Gate::new();
    let settings = Settings { workers: std::num::NonZeroUsize::MIN, queue_jobs: 1, ..Settings::default() };
    let pool = pool(1).settings(settings).kind(held("held", &gate)).build();
    let mut jobs = JoinSet::new();
    let job = || Job::new("held", "").when_full(WhenFull::Wait);
    let ids: Vec<JobId> = (0..4).map(|_| give(&mut jobs, &pool, job())).collect();
    for (position, id) in [(1, ids[2]), (2, ids[3])] {
        assert_eq!(pool.explain(id).expect("it is known").wait, Some(Wait { position, queued: None }));
    }
    gate.open();
    while jobs.join_next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn an_ended_job_keeps_its_waterfall_and_its_rung_until_it_is_forgotten() {
    let gate = Gate::new();
    let settings = Settings { workers: std::num::NonZeroUsize::MIN, ended_jobs: 4, ..Settings::default() };
    let pool = pool(1).settings(settings).kind(held("held", &gate)).build();
    let mut jobs = JoinSet::new();
    let late = give(&mut jobs, &pool, Job::new("held", "").timeout(SECOND));
    let expired = give(&mut jobs, &pool, Job::new("held", "").queue_timeout(SECOND / 2));
    let left = pool.try_submit(Job::new("held", "")).expect("room");
    let cancelled = left.job();
    drop(left);
    let done = give(&mut jobs, &pool, Job::new("held", ""));
    assert_eq!(ended(&pool, cancelled).outcome, Outcome::Cancelled);
    pass_time(SECOND).await;
    let told = ended(&pool, late);
    assert_eq!((told.outcome, told.rung, told.started), (Outcome::DeadlineExceeded, Some(Rung::Asked), true));
    // It ignores the request for the whole grace.
    pass_time(SECOND).await;
    let told = ended(&pool, late);
    assert_eq!((told.outcome, told.rung), (Outcome::DeadlineExceeded, Some(Rung::Forced)));
    assert_eq!((told.waterfall.budget, told.waterfall.run), (SECOND, Duration::from_millis(980)));
    let told = ended(&pool, expired);
    assert_eq!((told.outcome, told.started, told.waterfall.queue), (Outcome::ExpiredInQueue, false, SECOND / 2));
    pass_time(SECOND).await;
    gate.let_pass(1);
    while jobs.join_next().await.is_some() {}
    let told = ended(&pool, done);
    assert_eq!((told.outcome, told.rung, told.started), (Outcome::Completed, None, true));
    assert!(told.waterfall.queue >= 2 * SECOND - Duration::from_millis(20), "{told:?}");
    assert!(told.waterfall.run >= SECOND, "{told:?}");
    assert_eq!(pool.explain(cancelled), None, "the first of three that failed is forgotten");
}
