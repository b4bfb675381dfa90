use serde_json::Value;
use tonic::Code;
use waterwheel::proto::{Binding, Job, explain_response::State};

use crate::{
    jobs::{explain, try_explain},
    ops_pages::get,
    process::Process,
    refusal::Refusal,
    service::{Address, Caller, job},
};

const CONFIG: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    [pool.one]
    workers = 1
    ended_jobs = 2
"#;

/// One thread, because each thread keeps an equal part of the ended jobs.
const ONE_THREAD: [(&str, &str); 1] = [("WATERWHEEL_SERVER__THREADS", "1")];

/// The id of the job in this stage.
async fn id(ops: Address, stage: &str) -> String {
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
    caller.queue(Job { when_full: 0, ..job("sleep", "1") }, 0).await;
    let (running, queued) = (id(process.ops, "running").await, id(process.ops, "queued").await);

    let explained = explain(process.ops, &queued).await;
    assert_eq!(
        (explained.job_id.as_str(), explained.pool.as_str(), explained.kind.as_str()),
        (queued.as_str(), "one", "sleep")
    );
    let Some(State::Held(held)) = explained.state else { panic!("{explained:?}") };
    assert_eq!((held.position, held.ahead, held.bound_by()), (1, Some(0), Binding::Workers));
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
