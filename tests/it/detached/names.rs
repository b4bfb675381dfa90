//! A job has one name: operators explain and cancel detached jobs by any id that a caller was told.

use serde_json::Value;
use tonic::{Request, Status};
use waterwheel::proto::{
    CancelJobRequest, CancelJobResponse, CreateJobRequest, DetachedJobFilter, ExplainResponse, Job, JobOptions,
    JobStage, JobState, admin_service_client::AdminServiceClient, explain_response::State, job_options::Start,
};

use super::{CONFIG, Jobs, delayed, with, work};
use crate::{
    jobs::{explain, try_explain},
    process::{Process, until},
    support::Cluster,
};

/// One running job is enough to hold the pool `busy`, and one is enough to hold the kind `alone`.
const KINDS: &str = r#"
    pool.busy.workers = 1
    kind.waits = { pool = "busy", builtin = "sleep" }
    pool.wide.workers = 8
    pool.paused.workers = 1
    kind.late = { pool = "paused", builtin = "echo" }
    kind.alone = { pool = "wide", builtin = "sleep", limit = { concurrency = 1 } }
"#;

fn config(store: &str) -> String {
    format!("{KINDS}{}", CONFIG.replace("store.path = \"jobs.db\"", store))
}

/// Creates a job by a call with a request id.
async fn created(jobs: &Jobs, request_id: &str, request: CreateJobRequest) -> String {
    let mut request = Request::new(request);
    request.metadata_mut().insert("x-request-id", request_id.parse().unwrap());
    jobs.0.clone().create_job(request).await.unwrap().into_inner().job_id
}

fn keyed(key: &str, request: CreateJobRequest) -> CreateJobRequest {
    let job = request.job.map(|job| Job { ordering_key: key.to_owned(), ..job });
    CreateJobRequest { job, ..request }
}

async fn reaches(jobs: &Jobs, id: &str, state: JobState) {
    until("the state", async || jobs.get(id).await.state() == state).await;
}

/// What is said of a job: its state, what it waits for or how it ended, and what holds it.
fn said(answer: &ExplainResponse) -> (JobState, String, &str) {
    let state = answer.detached.as_ref().map(|job| job.state()).unwrap_or_default();
    match answer.state.as_ref().unwrap() {
        State::Stored(stored) => (state, format!("{:?}", stored.bound_by()), &stored.blocker),
        State::Held(held) => (state, format!("{:?}", held.bound_by()), &held.blocker),
        State::Running(_) => (state, "runs".to_owned(), ""),
        State::Ended(ended) => (state, ended.outcome.clone(), ""),
    }
}

/// One job in each state, each created by a call with the name of its state as the request id.
async fn in_each_state(process: &Process, jobs: &Jobs) -> Vec<(String, JobState, String, String)> {
    process.run("pause paused").await;
    let soon = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
    let expires = JobOptions {
        start: Some(Start::Delay("600s".parse().unwrap())),
        expire_time: Some(soon.into()),
        ..JobOptions::default()
    };
    let running = keyed("key", work("sleep", "60000"));
    let cases = [
        (JobState::Scheduled, delayed("600s", work("echo", "")), "StartTime"),
        (JobState::Ready, work("late", ""), "Pause"),
        (JobState::Running, running.clone(), "runs"),
        (JobState::Blocked, running, "OrderingKey"),
        (JobState::Succeeded, work("echo", "x"), "COMPLETED"),
        (JobState::Failed, work("refuses", ""), "HANDLER_FAILED"),
        (JobState::Cancelled, delayed("600s", work("echo", "")), "Ended"),
        (JobState::Expired, with(expires, work("echo", "")), "Ended"),
    ];
    let (mut all, mut holder) = (Vec::new(), String::new());
    for (state, request, cause) in cases {
        let id = created(jobs, state.as_str_name(), request).await;
        if state == JobState::Cancelled {
            jobs.cancel(&id).await.unwrap();
        }
        reaches(jobs, &id, state).await;
        let blocker = if state == JobState::Blocked { holder.clone() } else { String::new() };
        holder.clone_from(&id);
        all.push((id, state, cause.to_owned(), blocker));
    }
    all
}

async fn assert_explained(process: &Process, jobs: &Jobs) {
    for (id, state, cause, blocker) in in_each_state(process, jobs).await {
        let by_id = explain(process.ops, &id).await;
        assert_eq!(said(&by_id), (state, cause, &*blocker), "{by_id:?}");
        assert_eq!((&by_id.detached_job_id, by_id.request_id.as_str()), (&id, state.as_str_name()));
        assert!(by_id.arrive_time.is_some() && !by_id.kind.is_empty() && !by_id.pool.is_empty(), "{by_id:?}");
        let ran = [JobState::Running, JobState::Succeeded, JobState::Failed].contains(&state);
        assert_eq!((by_id.attempt, by_id.job_id.is_empty()), (u32::from(ran), !ran), "{by_id:?}");
        let in_pool = by_id.job_id.as_str();
        for other in [state.as_str_name(), in_pool].into_iter().filter(|other| !other.is_empty()) {
            let answer = explain(process.ops, other).await;
            assert_eq!((said(&answer), &answer.detached_job_id), (said(&by_id), &id), "{other}");
        }
        let shown = process.run(&format!("explain {id}")).await.out;
        let word = state.as_str_name().trim_start_matches("JOB_STATE_").to_lowercase();
        assert!(shown.starts_with(&id) && shown.contains(&format!("\n  {word}")), "{shown}");
        assert!(shown.contains(&blocker), "{shown}");
    }
    let unknown = try_explain(process.ops, "no-such-id").await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn each_state_is_explained_by_each_id() {
    let cluster = Cluster::start().await;
    let shared = cluster.as_ref().map(|cluster| format!("store.url = \"{}\"", cluster.url("postgres")));
    let stores = ["store.memory = true", "store.path = \"jobs.db\""].map(str::to_owned);
    for store in stores.into_iter().chain(shared) {
        let process = Process::serve(&config(&store)).await;
        let jobs = Jobs::of(&process).await;
        assert_explained(&process, &jobs).await;
        if store.contains("url") {
            // The same jobs, from a server that runs none of them, with another configuration.
            let other = Process::serve(&format!(
                "{store}\npool.x.workers = 1\nkind.x = {{ pool = \"x\", builtin = \"echo\" }}"
            ))
            .await;
            let running = explain(other.ops, JobState::Running.as_str_name()).await;
            assert_eq!(said(&running).1, "OtherServer", "{running:?}");
            assert_eq!(said(&explain(other.ops, JobState::Ready.as_str_name()).await).1, "Kind");
            let done = explain(other.ops, JobState::Succeeded.as_str_name()).await;
            assert_eq!((said(&done).1.as_str(), done.attempt), ("Ended", 1), "{done:?}");
        }
    }
}

#[tokio::test]
async fn a_job_that_is_ready_or_queued_names_what_it_waits_for() {
    let process = Process::serve(&config("store.memory = true")).await;
    let jobs = Jobs::of(&process).await;
    // The first runs, some wait in their pool, and the others wait in the store.
    for (kind, in_store, in_pool, value) in
        [("waits", "Workers", "Workers", ""), ("alone", "LimitConcurrency", "LimitConcurrency", "concurrency 1")]
    {
        let mut ids = Vec::new();
        for _ in 0..20 {
            ids.push(created(&jobs, kind, work(kind, "60000")).await);
        }
        let (first, last) = (&ids[0], &ids[19]);
        reaches(&jobs, first, JobState::Running).await;
        let answer = explain(process.ops, last).await;
        assert!(matches!(answer.state, Some(State::Stored(_))), "{answer:?}");
        assert_eq!(said(&answer), (JobState::Ready, in_store.to_owned(), value));
        let held = async || {
            let mut found = Vec::new();
            for id in &ids {
                found.push(explain(process.ops, id).await);
            }
            found.into_iter().find(|answer| matches!(answer.state, Some(State::Held(_))))
        };
        until("a queued job", async || held().await.is_some()).await;
        let held = held().await.unwrap();
        assert_eq!(said(&held), (JobState::Running, in_pool.to_owned(), value), "{held:?}");
    }
}

async fn cancel(process: &Process, request: CancelJobRequest) -> Result<CancelJobResponse, Status> {
    let mut admin = AdminServiceClient::new(process.ops.channel().await);
    admin.cancel_job(request).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn an_operator_cancels_a_detached_job_by_any_id() {
    let process = Process::serve(&config("store.memory = true")).await;
    let jobs = Jobs::of(&process).await;
    let by = |id: &str| cancel(&process, CancelJobRequest { id: id.to_owned(), ..Default::default() });
    let waiting = jobs.created(delayed("600s", work("echo", ""))).await;
    let ran = process.run(&format!("cancel {waiting}")).await;
    assert_eq!(ran.out, format!("cancelled {waiting}: it waited in the store, and does not start\n"), "{}", ran.err);
    assert_eq!(jobs.get(&waiting).await.state(), JobState::Cancelled);
    let again = by(&waiting).await.unwrap_err();
    assert_eq!(again.code(), tonic::Code::FailedPrecondition, "{again:?}");

    // By the id of the detached job, and by that of its attempt in its pool.
    for is_in_pool in [false, true] {
        let id = jobs.created(work("sleep", "60000")).await;
        until("a run", async || matches!(explain(process.ops, &id).await.state, Some(State::Running(_)))).await;
        let in_pool = explain(process.ops, &id).await.job_id;
        let cancelled = by(if is_in_pool { &in_pool } else { &id }).await.unwrap();
        let job = &cancelled.jobs[0];
        assert_eq!((job.stage(), job.job_id.as_str(), &job.detached_job_id), (JobStage::Running, &*in_pool, &id));
        assert_eq!(jobs.ended(&id).await.state(), JobState::Cancelled);
    }

    // All jobs of a request: in a pool, and in the store.
    let mut ids = Vec::new();
    for request in [work("sleep", "60000"), delayed("600s", work("echo", "")), keyed("k", work("sleep", "60000"))] {
        ids.push(created(&jobs, "three", request).await);
    }
    let ran = process.run("cancel three").await;
    assert!(ran.out.ends_with("\n3 jobs cancelled\n"), "{} {}", ran.out, ran.err);
    for id in &ids {
        assert_eq!(jobs.ended(id).await.state(), JobState::Cancelled);
        assert!(ran.out.contains(&format!("cancelled {id}")), "{}", ran.out);
    }
    assert_eq!(by("three").await.unwrap_err().code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn a_running_attempt_and_its_progress_are_shown_and_lists_name_the_detached_job() {
    let process = Process::serve(&config("store.memory = true")).await;
    let jobs = Jobs::of(&process).await;
    let id = created(&jobs, "asked", work("sleep", "20000")).await;
    until("progress", async || jobs.get(&id).await.progress.is_some()).await;
    let listed = jobs.list(DetachedJobFilter::default()).await.remove(0);
    let explained = explain(process.ops, &id).await;
    for job in [jobs.get(&id).await, listed, explained.detached.clone().unwrap()] {
        let progress = job.progress.clone().unwrap();
        assert!(
            progress.fraction > 0.0 && progress.message.starts_with("slept ") && progress.time.is_some(),
            "{job:?}"
        );
        let [attempt] = &job.attempts[..] else { panic!("{job:?}") };
        assert_eq!((attempt.number, attempt.outcome.as_str(), attempt.end_time), (1, "", None));
        assert_eq!((&attempt.job_id, attempt.worker.split('/').next()), (&explained.job_id, Some("one")));
        assert!(attempt.start_time.is_some(), "{job:?}");
    }
    let shown = process.run(&format!("jobs get {id}")).await.out;
    assert!(shown.contains("\n  attempt 1  one/") && shown.contains("  runs\n  progress "), "{shown}");

    let failed = created(&jobs, "fails", work("refuses", "")).await;
    jobs.ended(&failed).await;
    let list: Value = process.run("jobs --output json").await.json();
    let of = |id: &str| list["jobs"].as_array().unwrap().iter().find(|job| job["detached_job_id"] == id).unwrap();
    assert_eq!((&of(&id)["job_id"], &of(&id)["attempt"]), (&explained.job_id.as_str().into(), &1.into()));
    assert!(of(&id)["arrive_time"].is_string() && of(&id)["message"] == "", "{list}");
    let message = of(&failed)["message"].as_str().unwrap();
    assert!(message.contains("exited with code 65") && message.len() <= 120, "{message}");
    // The tables begin with the id that the caller was told.
    for table in ["jobs", "jobs list"] {
        let shown = process.run(table).await.out;
        for id in [&id, &failed] {
            assert!(shown.lines().any(|line| line.starts_with(id.as_str())), "{shown}");
        }
        assert!(shown.contains("exited with code 65"), "{shown}");
    }
}

#[tokio::test]
async fn log_lines_about_an_attempt_carry_all_its_ids() {
    let process = Process::serve_logging(&config("store.memory = true"), &[], "debug").await;
    let jobs = Jobs::of(&process).await;
    let (failed, done) =
        (created(&jobs, "asked", work("refuses", "")).await, created(&jobs, "asked", work("echo", "")).await);
    for id in [&failed, &done] {
        jobs.ended(id).await;
    }
    for message in ["job failed", "job completed"] {
        process.logged(message).await;
    }
    let log = process.log();
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    for (message, id) in
        [("job arrived", &failed), ("job failed", &failed), ("job arrived", &done), ("job completed", &done)]
    {
        let line = lines.iter().find(|line| line["message"] == message && line["detached_job"] == id.as_str());
        let line = line.unwrap_or_else(|| panic!("no {message} of {id} in {log}"));
        assert!(line["request_id"] == "asked" && line["job"].as_str().is_some_and(|job| !job.is_empty()), "{line}");
    }
}
