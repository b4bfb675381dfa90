//! Operators list, explain and cancel jobs, by job id and by request id.

use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use tonic::{Code, Request, Status};
use waterwheel::{
    Job, Pool,
    model::{JobId, Outcome, Rung},
    pool::{EndedJob, RunningJob, Settings, Ticket},
    proto::{
        self, Binding, CancelJobRequest, CreateJobRequest, ExplainRequest, ExplainResponse, JobOrder, JobStage,
        ListJobsRequest, ListJobsResponse, SubmitRequest, admin_service_client::AdminServiceClient,
        explain_response::State, job_service_client::JobServiceClient,
    },
};

use crate::{
    process::Process,
    refusal::Refusal,
    service::{Address, Caller, job, queued},
    support::{Gate, gated, pass_time, pool},
};

const CONFIG: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    pool.programs.workers = 2
    [pool.one]
    workers = 1
    queue = { jobs = 8, bytes = "8MiB" }
    [kind.fails]
    pool = "programs"
    exec = ["/bin/sh", "-c", "cat; echo 'Traceback:' >&2; echo '  line 2' >&2; exit 3"]
    [kind.stays]
    pool = "programs"
    exec = ["/bin/sh", "-c", "exec sleep 60"]
    [kind.says]
    pool = "programs"
    exec = ["/bin/sh", "-c", "trap 'echo late >&2; exit 4' TERM; sleep 60 & wait"]
"#;

async fn list(ops: Address, request: ListJobsRequest) -> Result<ListJobsResponse, Status> {
    let mut admin = AdminServiceClient::new(ops.channel().await);
    admin.list_jobs(request).await.map(tonic::Response::into_inner)
}

pub(crate) async fn try_explain(ops: Address, id: &str) -> Result<ExplainResponse, Status> {
    let mut admin = AdminServiceClient::new(ops.channel().await);
    admin.explain(ExplainRequest { id: id.into() }).await.map(tonic::Response::into_inner)
}

pub(crate) async fn explain(ops: Address, id: &str) -> ExplainResponse {
    try_explain(ops, id).await.unwrap()
}

/// Submits a job with a request id, in a task that waits for the response.
fn send(caller: &Caller, job: proto::Job, request_id: &str) -> tokio::task::JoinHandle<Result<(), Status>> {
    let mut request = Request::new(SubmitRequest { job: Some(job) });
    request.metadata_mut().insert("x-request-id", request_id.parse().unwrap());
    let mut client = caller.0.clone();
    tokio::spawn(async move { client.submit(request).await.map(drop) })
}

fn of_tenant(kind: &str, payload: &str, tenant: &str) -> proto::Job {
    proto::Job { tenant: tenant.into(), ..job(kind, payload.to_owned()) }
}

#[tokio::test]
async fn jobs_are_listed_by_filter_and_order() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let pool = |pools: &[proto::PoolStats]| (pools[0].in_flight, queued(&pools[0]));
    send(&caller, of_tenant("sleep", "60000", "acme"), "first");
    caller.until_all(|pools| pool(pools) == (1, 0)).await;
    for (count, tenant) in [(1, "acme"), (2, "zebra")] {
        send(&caller, of_tenant("sleep", "1", tenant), "second");
        caller.until_all(|pools| pool(pools) == (1, count)).await;
    }
    send(&caller, job("fails", ""), "third").await.unwrap().unwrap_err();

    let ids = |answer: &ListJobsResponse| -> Vec<String> {
        answer.jobs.iter().map(|job| format!("{} {}", job.request_id, job.stage().as_str_name())).collect()
    };
    let listed = async |request: ListJobsRequest| list(process.ops, request).await.unwrap();
    let all = listed(ListJobsRequest::default()).await;
    assert_eq!((all.all, all.order()), (4, JobOrder::Newest));
    assert_eq!(
        ids(&all),
        ["third JOB_STAGE_FAILED", "second JOB_STAGE_QUEUED", "second JOB_STAGE_QUEUED", "first JOB_STAGE_RUNNING"]
    );
    let queued = explain(process.ops, "second").await;
    let Some(State::Held(held)) = queued.state else { panic!("{queued:?}") };
    assert_eq!((held.position, held.ahead, held.bound_by()), (2, Some(1), Binding::Workers));
    let failed = &all.jobs[0];
    assert_eq!(
        (failed.outcome.as_str(), failed.pool.as_str(), failed.kind.as_str()),
        ("HANDLER_FAILED", "programs", "fails")
    );
    assert!(failed.run.is_some() && all.jobs[1].run.is_none() && all.jobs[3].run.is_some());

    let oldest = listed(ListJobsRequest { order: JobOrder::Oldest.into(), limit: 2, ..Default::default() }).await;
    assert_eq!((oldest.all, ids(&oldest)[0].as_str(), oldest.jobs.len()), (4, "first JOB_STAGE_RUNNING", 2));
    let cases = [
        (ListJobsRequest { stages: vec![JobStage::Queued.into()], ..Default::default() }, 2),
        (ListJobsRequest { stages: vec![JobStage::Failed.into(), JobStage::Running.into()], ..Default::default() }, 2),
        (ListJobsRequest { stages: vec![JobStage::Completed.into()], ..Default::default() }, 0),
        (ListJobsRequest { tenant: Some("acme".into()), ..Default::default() }, 2),
        (ListJobsRequest { tenant: Some(String::new()), ..Default::default() }, 1),
        (ListJobsRequest { kind: "sleep".into(), tenant: Some("zebra".into()), ..Default::default() }, 1),
        (ListJobsRequest { pool: "programs".into(), ..Default::default() }, 1),
        (ListJobsRequest { request_id: "second".into(), ..Default::default() }, 2),
        (ListJobsRequest { older: Some("3600s".parse().unwrap()), ..Default::default() }, 0),
    ];
    for (request, count) in cases {
        assert_eq!(listed(request.clone()).await.all, count, "{request:?}");
    }
    let rates = &all.tenants;
    assert!(
        rates[0].tenant == "acme" && rates.iter().any(|rate| rate.tenant == "zebra" && rate.refusals == 0.0),
        "{rates:?}"
    );

    let ran = process.run("jobs --state queued,running --kind sleep --oldest").await;
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!((ran.code, lines.len()), (Some(0), 4), "{}", ran.out);
    assert!(lines[1].contains("running") && lines[1].ends_with("sleep  acme    first"), "{}", ran.out);
    let json = process.run("jobs --state failed --output json").await.json();
    assert_eq!((&json["all"], &json["jobs"][0]["outcome"]), (&1.into(), &"HANDLER_FAILED".into()));
}

/// The message begins with the invalid field.
#[tokio::test]
async fn an_invalid_request_for_a_list_is_refused() {
    let process = Process::serve(CONFIG).await;
    for (request, field) in [
        (ListJobsRequest { limit: 1001, ..Default::default() }, "limit"),
        (ListJobsRequest { stages: vec![0], ..Default::default() }, "stages"),
        (ListJobsRequest { request_id: "a b".into(), ..Default::default() }, "request_id"),
        (ListJobsRequest { older: Some("-1s".parse().unwrap()), ..Default::default() }, "older"),
    ] {
        let refused = list(process.ops, request).await.unwrap_err();
        assert!(refused.code() == Code::InvalidArgument && refused.message().starts_with(field), "{refused:?}");
    }
    let unknown = list(process.ops, ListJobsRequest { pool: "tow".into(), ..Default::default() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
}

#[tokio::test]
async fn a_request_id_finds_and_cancels_all_jobs_of_its_calls() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let jobs = [send(&caller, job("sleep", "60000"), "twice"), send(&caller, job("stays", ""), "twice")];
    let alone = send(&caller, job("stays", ""), "alone");
    caller.until_all(|pools| pools[0].in_flight == 1 && pools[1].in_flight == 2).await;

    let explained = explain(process.ops, "twice").await;
    assert_eq!((explained.request_id.as_str(), explained.other_job_ids.len()), ("twice", 1));
    let other = explain(process.ops, &explained.other_job_ids[0]).await;
    assert_eq!((other.request_id.as_str(), other.other_job_ids.len()), ("twice", 0));
    assert_ne!(explained.kind, other.kind);
    let shown = process.run("explain twice").await;
    assert!(shown.out.contains(&format!("of this request id, the newest first: {}\n", other.job_id)), "{}", shown.out);

    // A request id may be the id of another job, which is not meant.
    let ids = format!("cancel --request-id {}", explained.job_id);
    let ran = process.run(&ids).await;
    assert!(ran.code == Some(2) && ran.err.contains("NOT_FOUND"), "{}", ran.err);
    assert!(jobs.iter().all(|job| !job.is_finished()));
    let mut admin = AdminServiceClient::new(process.ops.channel().await);
    let both = CancelJobRequest { id: "twice".into(), request_id: "twice".into(), ..Default::default() };
    assert_eq!(admin.cancel_job(both).await.unwrap_err().code(), Code::InvalidArgument);

    let ran = process.run("cancel --request-id twice").await;
    assert!(ran.code == Some(0) && ran.out.ends_with("\n2 jobs cancelled\n"), "{}", ran.out);
    for id in [&explained.job_id, &other.job_id] {
        assert!(ran.out.contains(&format!("cancelled {id} of pool ")), "{}", ran.out);
    }
    for job in jobs {
        assert_eq!(job.await.unwrap().unwrap_err().code(), Code::Cancelled);
    }
    assert!(!alone.is_finished(), "it has another request id");

    let ran = process.run("cancel alone").await;
    assert!(ran.out.ends_with("it runs, and is asked to stop\n"), "{}", ran.out);
    assert_eq!(alone.await.unwrap().unwrap_err().code(), Code::Cancelled);
    // The request id still finds the job after its end.
    let ended = explain(process.ops, "alone").await;
    assert!(matches!(ended.state, Some(State::Ended(ended)) if ended.outcome == "CANCELLED_BY_OPERATOR"));
    let ran = process.run("explain no-such-id").await;
    assert!(ran.code == Some(2) && ran.err.contains("NOT_FOUND") && ran.err.contains("ListJobs"), "{}", ran.err);
    for (id, code) in [("", Code::InvalidArgument), ("no id", Code::NotFound)] {
        assert_eq!(try_explain(process.ops, id).await.unwrap_err().code(), code, "{id:?}");
    }
}

#[tokio::test]
async fn explain_shows_why_a_job_failed() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    send(&caller, of_tenant("fails", "", "acme"), "broken").await.unwrap().unwrap_err();
    let explained = explain(process.ops, "broken").await;
    assert_eq!((explained.tenant.as_str(), explained.principal.as_str()), ("acme", ""));
    assert!(explained.runner.starts_with("process "), "{explained:?}");
    let Some(State::Ended(ended)) = explained.state else { panic!("{explained:?}") };
    assert_eq!((ended.outcome.as_str(), ended.message.as_str()), ("HANDLER_FAILED", "/bin/sh exited with code 3"));
    let program = ended.program.unwrap();
    assert_eq!((program.exit_code, program.signal, program.stderr.as_str()), (Some(3), None, "Traceback:\n  line 2"));
    let shown = process.run("explain broken").await.out;
    assert!(shown.contains("\n  tenant acme  request id broken  in process "), "{shown}");
    assert!(shown.contains(": /bin/sh exited with code 3\n"), "{shown}");
    assert!(shown.ends_with("  its standard error ended in\n    Traceback:\n      line 2\n"), "{shown}");

    send(&caller, job("sleep", "no number"), "odd").await.unwrap().unwrap_err();
    let shown: Value = process.run("explain odd --output json").await.json();
    assert!(shown["ended"]["message"].as_str().unwrap().contains("send {\"ms\":1500}"), "{shown}");
    assert!(shown["runner"] == "" && shown["ended"]["program"].is_null(), "{shown}");

    let late = proto::Job { run_timeout: Some("2s".parse().unwrap()), ..job("says", "") };
    send(&caller, late, "late").await.unwrap().unwrap_err();
    caller.until_all(|pools| pools[1].in_flight == 0).await;
    let explained = explain(process.ops, "late").await;
    let Some(State::Ended(ended)) = explained.state else { panic!("{explained:?}") };
    assert_eq!((ended.outcome.as_str(), ended.rung.as_str()), ("RUN_TIMEOUT", "yielded"));
    assert!(ended.message.contains("deadline or run timeout"), "{ended:?}");
    // The program wrote this after its caller had received the response.
    assert_eq!(ended.program.unwrap().stderr, "late");

    send(&caller, job("stays", ""), "stays");
    caller.until_all(|pools| pools[1].in_flight == 1).await;
    loop {
        let explained = explain(process.ops, "stays").await;
        assert!(matches!(explained.state, Some(State::Running(_))), "{explained:?}");
        // Until the program has started, the runner names no process.
        if let Some(pid) = explained.runner.strip_prefix("process ") {
            assert!(std::path::Path::new(&format!("/proc/{pid}")).exists() || !cfg!(target_os = "linux"), "{pid}");
            break;
        }
    }
}

#[tokio::test]
async fn an_ended_job_is_explained_by_its_job_id_until_it_is_evicted() {
    // Each thread keeps an equal part of the ended jobs.
    let config = CONFIG.replace("queue = {", "ended_jobs = 2\n    queue = {");
    let process = Process::serve_with(&config, &[("WATERWHEEL_SERVER__THREADS", "1")]).await;
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

const SECOND: Duration = Duration::from_secs(1);

fn ended(pool: &Pool, job: JobId) -> EndedJob {
    pool.explain(job).expect("it is known").job.ended.expect("it has ended")
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
    assert!(explained.job.stop.is_none());
    let Some(RunningJob { queue, run, left, stuck: false, .. }) = explained.job.run else { panic!("{explained:?}") };
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

/// Its first process exits at once, and the next one goes on without being ready.
const ENDS: &str = r#"
    store.path = "jobs.db"
    pool.one.workers = 1
    kind.ends = { pool = "one", program = "ends" }
    [program.ends]
    command = ["/bin/sh", "-c", "mkdir DIR/once && echo 'no model' >&2 && exit 3; exec sleep 60"]
    start_timeout = "60s"
"#;

#[tokio::test]
async fn explain_says_that_the_program_of_a_waiting_job_keeps_ending() {
    let files = tempfile::tempdir().unwrap();
    let process = Process::serve(&ENDS.replace("DIR", files.path().to_str().unwrap())).await;
    let caller = Caller::of(process.public).await;
    send(&caller, job("ends", ""), "first");
    caller.until(|pool| pool.in_flight == 1).await;
    send(&caller, job("ends", ""), "second");
    caller.until(|pool| queued(pool) == 1).await;
    let mut jobs = JobServiceClient::new(process.public.channel().await);
    let request = CreateJobRequest { job: Some(job("ends", "")), ..CreateJobRequest::default() };
    let stored = jobs.create_job(request).await.unwrap().into_inner().job_id;
    let cause = "the processes of its program keep ending: ends exited with code 3: no model\n";
    for (id, place) in [
        ("first", "\n  has a worker, and waits for a process\n  because "),
        ("second", "\n  queued at 1, 0 ahead\n  because "),
        (&stored, "\n  "),
    ] {
        let shown = process.run(&format!("explain {id}")).await.out;
        assert!(shown.contains(&format!("{place}{cause}")), "{shown}");
    }
}
