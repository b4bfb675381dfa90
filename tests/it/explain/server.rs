use serde_json::Value;
use tokio::process::Command;
use tonic::{Code, Status};
use waterwheel::proto::{
    Binding, ExplainRequest, ExplainResponse, Job, admin_service_client::AdminServiceClient, explain_response::State,
};

use crate::{
    ops_pages::get,
    process::{Process, program},
    refusal::Refusal,
    service::{Address, Caller, job},
};

const CONFIG: &str = r#"
    [pool.one]
    workers = 1
    ended_jobs = 2
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
"#;

/// One thread: each remembers its share of the ended jobs.
const ONE_THREAD: [(&str, &str); 1] = [("WATERWHEEL_SERVER__THREADS", "1")];

async fn explain(ops: Address, job: &str) -> Result<ExplainResponse, Status> {
    let mut admin = AdminServiceClient::new(ops.channel().await);
    admin.explain(ExplainRequest { job_id: job.into() }).await.map(tonic::Response::into_inner)
}

/// Id of the one job that is in this stage.
async fn id(ops: Address, stage: &str) -> String {
    let (_, page) = get(ops, "/debug/tasks").await;
    let page: Value = serde_json::from_str(&page).unwrap();
    let jobs = page["pools"]["one"]["jobs"].as_array().unwrap();
    let found = jobs.iter().find(|job| job["stage"] == stage).unwrap_or_else(|| panic!("none is {stage}: {page}"));
    found["job"].as_str().unwrap().to_owned()
}

async fn command(ops: Address, job: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let mut command: Command = program(&[&["explain", job, "--ops", &ops.0.to_string()], more].concat());
    let output = command.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn operators_are_told_by_the_service_and_by_the_command() {
    let process = Process::serve_with(CONFIG, &ONE_THREAD).await;
    let caller = Caller::of(process.public).await;
    caller.occupy(1).await;
    caller.queue(Job { when_full: 0, ..job("sleep", "1") }, 0).await;
    let (running, queued) = (id(process.ops, "running").await, id(process.ops, "queued").await);

    let told = explain(process.ops, &queued).await.unwrap();
    assert_eq!((told.job_id.as_str(), told.pool.as_str(), told.kind.as_str()), (queued.as_str(), "one", "sleep"));
    let Some(State::Held(held)) = told.state else { panic!("{told:?}") };
    assert_eq!((held.position, held.ahead, held.bound_by()), (1, Some(0), Binding::Workers));
    let told = explain(process.ops, &running).await.unwrap();
    assert!(matches!(told.state, Some(State::Running(running)) if !running.stopping), "{told:?}");

    let (code, text, _) = command(process.ops, &queued, &[]).await;
    assert_eq!(code, Some(0));
    assert!(text.starts_with(&format!("{queued}  kind sleep  pool one\n  request id ")), "{text}");
    assert!(text.contains("\n  queued at 1, 0 ahead") && text.contains("because no worker is free"), "{text}");
    let (code, text, _) = command(process.ops, &running, &["--output", "json"]).await;
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &json["job_id"], &json["running"]["worker"]), (Some(0), &running.into(), &0.into()));
}

#[tokio::test]
async fn an_ended_job_is_found_by_the_id_of_its_answer_until_it_is_forgotten() {
    let process = Process::serve_with(CONFIG, &ONE_THREAD).await;
    let caller = Caller::of(process.public).await;
    let done = caller.leave(job("sleep", "5")).await.unwrap().unwrap().into_inner().result.unwrap();
    let told = explain(process.ops, &done.job_id).await.unwrap();
    let Some(State::Ended(ended)) = told.state else { panic!("{told:?}") };
    assert_eq!((ended.outcome.as_str(), ended.started, ended.rung.as_str()), ("COMPLETED", true, ""));
    assert_eq!(ended.waterfall, done.waterfall);

    let failed = caller.leave(job("sleep", "no number")).await.unwrap().unwrap_err();
    let failed = Refusal::of_call(failed, false).facts()["job"].clone();
    let told = explain(process.ops, &failed).await.unwrap();
    assert!(matches!(&told.state, Some(State::Ended(ended)) if ended.outcome == "HANDLER_FAILED"), "{told:?}");

    // One of two places is for those that completed.
    caller.leave(job("sleep", "5")).await.unwrap().unwrap();
    explain(process.ops, &failed).await.unwrap();
    let forgotten = Refusal::of_call(explain(process.ops, &done.job_id).await.unwrap_err(), false);
    assert_eq!((forgotten.code(), forgotten.reason().as_str()), (Code::NotFound, "NOT_FOUND"));
    assert!(forgotten.status.message().contains("pool.NAME.ended_jobs"), "{forgotten:?}");
    let (code, _, errors) = command(process.ops, &done.job_id, &[]).await;
    assert_eq!(code, Some(2));
    assert!(errors.contains("NOT_FOUND") && errors.contains("ListJobs"), "{errors}");

    for (id, code) in [("", Code::InvalidArgument), ("no id", Code::NotFound)] {
        assert_eq!(explain(process.ops, id).await.unwrap_err().code(), code, "{id:?}");
    }
}
