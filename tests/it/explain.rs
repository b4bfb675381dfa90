//! `explain` shows an operator where a job is in the queue, what it waits for, and how it ended.

use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tonic::Code;
use waterwheel::{
    Job, Pool,
    model::{JobId, Outcome, Rung},
    pool::{EndedJob, Settings, Stage, Ticket},
    proto::{self, explain_response::State},
};

use crate::{
    jobs::{explain, try_explain},
    ops_pages::get,
    process::Process,
    refusal::Refusal,
    service::{Address, Caller, job},
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

/// One thread, because each thread keeps an equal part of the ended jobs.
const ONE_THREAD: [(&str, &str); 1] = [("WATERWHEEL_SERVER__THREADS", "1")];

/// The id of the job in this stage.
async fn id_in(ops: Address, stage: &str) -> String {
    let (_, page) = get(ops, "/debug/tasks").await;
    let page: Value = serde_json::from_str(&page).unwrap();
    let jobs = page["pools"]["one"]["jobs"].as_array().unwrap();
    let found = jobs.iter().find(|job| job["stage"] == stage).unwrap_or_else(|| panic!("no job is {stage}: {page}"));
    found["job"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_explain_rpc_and_command_show_running_and_queued_jobs() {
    let process = Process::serve_with(CONFIG, &ONE_THREAD).await;
    let caller = Caller::of(process.public).await;
    caller.occupy(1).await;
    caller.queue(proto::Job { when_full: 0, ..job("sleep", "1") }, 0).await;
    let (running, queued) = (id_in(process.ops, "running").await, id_in(process.ops, "queued").await);

    let explained = explain(process.ops, &queued).await;
    assert_eq!(
        (explained.job_id.as_str(), explained.pool.as_str(), explained.kind.as_str()),
        (queued.as_str(), "one", "sleep")
    );
    let Some(State::Held(held)) = explained.state else { panic!("{explained:?}") };
    assert_eq!((held.position, held.ahead, held.bound_by()), (1, Some(0), proto::Binding::Workers));
    let explained = explain(process.ops, &running).await;
    assert!(matches!(explained.state, Some(State::Running(running)) if !running.stopping), "{explained:?}");

    let ran = process.run(&format!("explain {queued}")).await;
    let text = ran.out;
    assert_eq!(ran.code, Some(0));
    assert!(text.starts_with(&format!("{queued}  kind sleep  pool one\n  request id ")), "{text}");
    assert!(text.contains("\n  queued at 1, 0 ahead") && text.contains("because no worker is free"), "{text}");
    let ran = process.run(&format!("explain {running} --output json")).await;
    let json = ran.json();
    assert_eq!((ran.code, &json["job_id"], &json["running"]["worker"]), (Some(0), &running.into(), &0.into()));
}

#[tokio::test]
async fn an_ended_job_is_explained_by_its_job_id_until_it_is_evicted() {
    let process = Process::serve_with(CONFIG, &ONE_THREAD).await;
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

    for (id, code) in [("", Code::InvalidArgument), ("no id", Code::NotFound)] {
        assert_eq!(try_explain(process.ops, id).await.unwrap_err().code(), code, "{id:?}");
    }
}
