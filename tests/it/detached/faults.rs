//! Jobs that are refused, and stores that are.

use tonic::Code;
use waterwheel::proto::{CreateJobRequest, Job, JobOptions, JobState, WhenFull, job_options::Start};

use super::{CONFIG, delayed, serve, with, work};
use crate::{
    process::{Process, program},
    service::job,
};

#[tokio::test]
async fn without_a_store_the_answer_says_what_to_set() {
    let config = CONFIG.replace("store.path", "server.tls.reload = \"1s\" #");
    let (_process, jobs) = serve(&config).await;
    let refused = jobs.create(work("echo", "")).await.unwrap_err();
    assert_eq!((refused.code(), refused.reason().as_str()), (Code::FailedPrecondition, "NO_STORE"));
    assert!(format!("{:?}", refused.details()).contains("store.path"), "{refused:?}");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_its_field() {
    let (_process, jobs) = serve(CONFIG).await;
    let echo = || work("echo", "");
    let with_job = |job: Job| CreateJobRequest { job: Some(job), ..CreateJobRequest::default() };
    let negative = Start::Delay("-1s".parse().unwrap());
    for (request, field) in [
        (CreateJobRequest::default(), "job"),
        (work("tow", ""), "job.kind"),
        (CreateJobRequest { job_id: "a b".into(), ..echo() }, "job_id"),
        (with_job(Job { when_full: WhenFull::Wait.into(), ..job("echo", "") }), "job.when_full"),
        (with_job(Job { queue_timeout: Some("1s".parse().unwrap()), ..job("echo", "") }), "job.queue_timeout"),
        (with_job(Job { tenant: "t".repeat(129), ..job("echo", "") }), "job.tenant"),
        (with(JobOptions { start: Some(negative), ..JobOptions::default() }, echo()), "options.delay"),
    ] {
        let refused = jobs.create(request).await.unwrap_err();
        let violations = refused.details().bad_request().unwrap().field_violations.clone();
        assert_eq!((refused.code(), violations[0].field.as_str()), (Code::InvalidArgument, field));
    }
}

#[tokio::test]
async fn a_full_backlog_refuses_new_jobs_and_finishes_old_ones() {
    let config = format!("store.max_jobs = 2\n{}", CONFIG.replace("store.path = \"jobs.db\"", "store.memory = true"));
    let (_process, jobs) = serve(&config).await;
    let held =
        [jobs.created(delayed("2s", work("echo", "x"))).await, jobs.created(delayed("600s", work("echo", "x"))).await];
    let full = jobs.create(work("echo", "")).await.unwrap_err();
    assert_eq!((full.code(), full.reason().as_str()), (Code::ResourceExhausted, "STORE_FULL"));
    assert!(full.pushback() > Some(0));
    assert_eq!(jobs.ended(&held[0]).await.state(), JobState::Succeeded);
    jobs.created(work("echo", "")).await;
}

#[tokio::test]
async fn a_file_that_is_in_use_or_no_store_is_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("waterwheel.toml");
    std::fs::write(&path, CONFIG).unwrap();
    let _first = Process::serve_file(&path).await;
    let args = ["serve", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--config", path.to_str().unwrap()];
    let second = program(&args).output().await.unwrap();
    let told = String::from_utf8(second.stderr).unwrap();
    assert!(told.contains("cannot open the store of detached jobs") && told.contains("in use"), "{told}");
    assert_eq!(second.status.code(), Some(1));
}
