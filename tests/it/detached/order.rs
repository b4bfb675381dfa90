//! The order in which jobs are claimed from the store, and how many are claimed at a time.

use std::collections::HashSet;

use waterwheel::proto::{
    CreateJobRequest, CreateJobsRequest, Criticality, DetachedJobFilter, Job, JobState, create_jobs_response::Outcome,
};

use super::{Jobs, serve, work};

const CONFIG: &str = r#"
    pool.one.workers = 2
    kind.echo = { pool = "one", builtin = "echo" }
    kind.sleep = { pool = "one", builtin = "sleep" }
    store.memory = true
"#;

/// Creates a job with this criticality.
async fn of_class(jobs: &Jobs, class: Criticality) -> String {
    let request = work("sleep", "1");
    let job = Job { criticality: class.into(), ..request.job.unwrap() };
    jobs.created(CreateJobRequest { job: Some(job), ..CreateJobRequest::default() }).await
}

#[tokio::test]
async fn a_new_job_is_leased_at_once_unless_jobs_of_its_kind_wait() {
    let (_process, jobs) = serve(CONFIG).await;
    // Wait until the server has scanned the store and knows that no job waits.
    jobs.ended(&jobs.created(work("echo", "")).await).await;
    let mut long = Vec::new();
    for _ in 0..9 {
        long.push(jobs.created(work("sleep", "600000")).await);
    }
    let later = of_class(&jobs, Criticality::SheddablePlus).await;
    let first = of_class(&jobs, Criticality::Critical).await;
    let running = DetachedJobFilter { states: vec![JobState::Running.into()], ..DetachedJobFilter::default() };
    let running = jobs.list(running).await;
    assert!((2..=4).contains(&running.len()), "two workers, and up to two jobs leased ahead: {running:?}");
    assert!(running.iter().all(|job| long.contains(&job.job_id)), "a new job overtakes: {running:?}");
    for id in &long {
        jobs.cancel(id).await.unwrap();
    }
    let [later, first] = [jobs.ended(&later).await, jobs.ended(&first).await];
    let started = [&later, &first].map(|job| job.attempts[0].start_time.unwrap());
    assert!(
        (started[1].seconds, started[1].nanos) <= (started[0].seconds, started[0].nanos),
        "the job of the higher class starts first: {started:?}"
    );
}

#[tokio::test]
async fn short_jobs_of_a_backlog_are_claimed_in_large_batches() {
    const JOBS: usize = 4000;
    // One kind can use the capacity of its pool although the pool has other kinds.
    let others = ["a", "b", "c"].map(|name| format!("[kind.{name}]\npool = \"one\"\nbuiltin = \"echo\"\n"));
    let (_process, jobs) =
        serve(&format!("{}{}", CONFIG.replace("memory = true", "path = \"jobs.db\""), others.concat())).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(jobs.created(work("sleep", "600000")).await);
    }
    let sent = (0..JOBS).map(|_| CreateJobsRequest { job: work("echo", "").job, ..CreateJobsRequest::default() });
    let mut answers = jobs.0.clone().create_jobs(tokio_stream::iter(sent)).await.unwrap().into_inner();
    let mut last = String::new();
    while let Some(answer) = answers.message().await.unwrap() {
        if let Some(Outcome::Created(created)) = answer.outcome {
            last = created.job_id;
        }
    }
    for id in &held {
        jobs.cancel(id).await.unwrap();
    }
    jobs.ended(&last).await;
    let ended = DetachedJobFilter { kind: "echo".into(), ..DetachedJobFilter::default() };
    let ended = jobs.list_by(1000, ended).await;
    // Jobs of one batch start at the same time.
    let batches: HashSet<_> =
        ended.iter().filter_map(|job| job.attempts.first()?.start_time).map(|at| (at.seconds, at.nanos)).collect();
    assert!(ended.len() == JOBS && batches.len() < JOBS / 8, "{} batches of {} jobs", batches.len(), ended.len());
}

#[tokio::test]
async fn jobs_of_a_kind_at_its_limit_do_not_block_workers_for_other_kinds() {
    let limited = "[kind.limited]\npool = \"one\"\nbuiltin = \"sleep\"\nlimit = { concurrency = 1 }\n";
    let (_process, jobs) = serve(&format!("{CONFIG}{limited}")).await;
    let mut waiting = Vec::new();
    for _ in 0..30 {
        waiting.push(jobs.created(work("limited", "600000")).await);
    }
    for _ in 0..30 {
        let job = jobs.created(work("echo", "")).await;
        assert_eq!(jobs.ended(&job).await.state(), JobState::Succeeded);
    }
    for id in waiting {
        jobs.cancel(&id).await.unwrap();
    }
}
