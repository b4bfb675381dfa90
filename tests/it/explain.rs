//! `explain` shows an operator where a job is in the queue, what it waits for, and how it ended.

use std::time::Duration;

use tokio::task::JoinSet;
use tonic::Code;
use waterwheel::{
    Job, Pool,
    model::{JobId, Outcome, Rung},
    pool::{EndedJob, Settings, Stage, Ticket},
    proto::explain_response::State,
};

use crate::{
    jobs::{explain, try_explain},
    process::Process,
    refusal::Refusal,
    service::{Caller, job},
    support::{Gate, gated, pass_time, pool},
};

const SECOND: Duration = Duration::from_secs(1);

fn ended(pool: &Pool, job: JobId) -> EndedJob {
    match pool.explain(job).expect("it is known").job.stage {
        Stage::Ended(ended) => ended,
        other => panic!("{other:?}"),
    }
}

fn give(jobs: &mut JoinSet<()>, pool: &Pool, job: Job) -> JobId {
    let ticket: Ticket = pool.try_submit(job).expect("accepted");
    let id = ticket.job();
    jobs.spawn(async move { drop(ticket.await) });
    id
}

#[tokio::test(start_paused = true)]
async fn explain_shows_how_long_a_job_was_queued_has_run_and_may_still_run() {
    let gate = Gate::new();
    let pool = pool(1).kind(gated("held", &gate)).build();
    let mut jobs = JoinSet::new();
    let running = give(&mut jobs, &pool, Job::new("held", ""));
    pass_time(SECOND).await;
    let explained = pool.explain(running).expect("it is known");
    assert_eq!((&*explained.job.pool, &*explained.job.kind), ("test", "held"));
    assert!(!explained.job.stopping);
    let Stage::Running { queue, run, left, stuck: false, .. } = explained.job.stage else { panic!("{explained:?}") };
    assert_eq!((queue, run), (Duration::ZERO, SECOND));
    assert_eq!(left, Duration::from_millis(28_690), "30 s less the margin and the second that it ran");
    gate.open();
    while jobs.join_next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn an_ended_job_keeps_its_outcome_waterfall_and_rung_until_it_is_evicted() {
    let gate = Gate::new();
    let settings = Settings { workers: std::num::NonZeroUsize::MIN, ended_jobs: 4, ..Settings::default() };
    let pool = pool(1).settings(settings).kind(gated("held", &gate)).build();
    let mut jobs = JoinSet::new();
    let late = give(&mut jobs, &pool, Job::new("held", "").timeout(SECOND));
    let expired = give(&mut jobs, &pool, Job::new("held", "").queue_timeout(SECOND / 2));
    let left = pool.try_submit(Job::new("held", "")).expect("accepted");
    let cancelled = left.job();
    drop(left);
    let done = give(&mut jobs, &pool, Job::new("held", ""));
    assert_eq!(ended(&pool, cancelled).outcome, Outcome::Cancelled);
    pass_time(SECOND).await;
    let job = ended(&pool, late);
    assert_eq!((job.outcome, job.rung, job.started), (Outcome::DeadlineExceeded, Some(Rung::Asked), true));
    // The handler ignores the stop request for the whole grace period.
    pass_time(SECOND).await;
    let job = ended(&pool, late);
    assert_eq!((job.outcome, job.rung), (Outcome::DeadlineExceeded, Some(Rung::Forced)));
    assert_eq!((job.waterfall.budget, job.waterfall.run), (SECOND, Duration::from_millis(980)));
    let job = ended(&pool, expired);
    assert_eq!((job.outcome, job.started, job.waterfall.queue), (Outcome::ExpiredInQueue, false, SECOND / 2));
    pass_time(SECOND).await;
    gate.let_pass(1);
    while jobs.join_next().await.is_some() {}
    let job = ended(&pool, done);
    assert_eq!((job.outcome, job.rung, job.started), (Outcome::Completed, None, true));
    assert!(job.waterfall.queue >= 2 * SECOND - Duration::from_millis(20), "{job:?}");
    assert!(job.waterfall.run >= SECOND, "{job:?}");
    assert_eq!(pool.explain(cancelled), None, "the oldest of three failed jobs is evicted");
}

const CONFIG: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    [pool.one]
    workers = 1
    ended_jobs = 2
"#;

#[tokio::test]
async fn an_ended_job_is_explained_by_its_job_id_until_it_is_evicted() {
    // Each thread keeps an equal part of the ended jobs.
    let process = Process::serve_with(CONFIG, &[("WATERWHEEL_SERVER__THREADS", "1")]).await;
    let caller = Caller::of(process.public).await;
    let done = caller.leave(job("sleep", "5")).await.unwrap().unwrap().into_inner().result.unwrap();
    let explained = explain(process.ops, &done.job_id).await;
    let Some(State::Ended(ended)) = explained.state else { panic!("{explained:?}") };
    assert_eq!((ended.outcome.as_str(), ended.started, ended.rung.as_str()), ("COMPLETED", true, ""));
    assert_eq!(ended.waterfall, done.waterfall);

    let failed = caller.leave(job("sleep", "no number")).await.unwrap().unwrap_err();
    let failed = Refusal::of_call(failed, false).facts()["job"].clone();
    let explained = explain(process.ops, &failed).await;
    assert!(
        matches!(&explained.state, Some(State::Ended(ended)) if ended.outcome == "HANDLER_FAILED"),
        "{explained:?}"
    );

    // The server keeps one completed job and one failed job.
    caller.leave(job("sleep", "5")).await.unwrap().unwrap();
    explain(process.ops, &failed).await;
    let evicted = Refusal::of_call(try_explain(process.ops, &done.job_id).await.unwrap_err(), false);
    assert_eq!((evicted.code(), evicted.reason().as_str()), (Code::NotFound, "NOT_FOUND"));
    assert!(evicted.status.message().contains("pool.NAME.ended_jobs"), "{evicted:?}");
    let ran = process.run(&format!("explain {}", done.job_id)).await;
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("NOT_FOUND") && ran.err.contains("ListJobs"), "{}", ran.err);
}
