//! What operators learn about running jobs: from the log, from their own listener, and during a drain.

use rustix::process::Signal;
use serde_json::Value;
use tonic::Code;
use waterwheel::proto::{
    CreateJobRequest, GetJobRequest, JobServiceListJobsRequest, StatsRequest, SubmitRequest, WaitJobRequest,
    WatchStatsRequest, job_service_client::JobServiceClient, worker_pool_service_client::WorkerPoolServiceClient,
};

use crate::{
    jobs::explain,
    ops_pages::get,
    process::{Process, Ran, program, until},
    service::{Address, Caller, job},
};

/// The command as an operator calls it in the shipped container: with the address of the operators' listener alone.
async fn at_ops(ops: Address, line: &str) -> Ran {
    let mut command = program(&line.split(' ').collect::<Vec<_>>());
    command.env("WATERWHEEL_OPS", ops.0.to_string());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    Ran::of(command).await
}

#[tokio::test]
async fn a_stale_job_is_logged_once_counted_and_listed() {
    let process = Process::serve(
        r#"
        kind.sleep = { pool = "one", builtin = "sleep" }
        kind.other = { pool = "two", builtin = "sleep" }
        pool.one = { workers = 2, stale_after = "100ms" }
        pool.two = { workers = 1 }
        "#,
    )
    .await;
    let caller = Caller::of(process.public).await;
    caller.leave(job("sleep", "60000"));
    caller.leave(job("other", "60000"));
    process.logged("jobs run for longer than stale_after").await;
    let list: Value = at_ops(process.ops, "jobs --stale --output json").await.json();
    let [stale] = &list["jobs"].as_array().unwrap()[..] else { panic!("one is stale: {list}") };
    assert_eq!((&stale["kind"], &list["all"]), (&"sleep".into(), &1.into()));
    let shown = at_ops(process.ops, "stats").await.out;
    assert!(shown.contains("  stale    1 running job; see \"waterwheel jobs --stale\"\n"), "{shown}");
    let metrics = get(process.ops, "/metrics").await.1;
    assert!(metrics.contains("waterwheel_jobs_stale{pool=\"one\"} 1.0"), "{metrics}");
    assert!(metrics.contains("waterwheel_jobs_stale{pool=\"two\"} 0.0"), "{metrics}");
    let log = process.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("STALE")).collect();
    assert!(lines.len() == 1 && lines[0].contains(stale["job_id"].as_str().unwrap()), "{lines:?}");
}

#[tokio::test]
async fn the_log_lists_what_runs_now_and_then() {
    let config = r#"
        kind.sleep = { pool = "one", builtin = "sleep" }
        pool.one.workers = 30
        telemetry.dump_every = "1s"
        "#;
    let process = Process::serve_logging(config, &[], "info").await;
    let caller = Caller::of(process.public).await;
    for _ in 0..25 {
        caller.leave(job("sleep", "60000"));
    }
    caller.until(|pool| pool.in_flight == 25).await;
    let of_jobs = |log: &str| log.lines().filter(|line| line.contains("a job runs: for ")).count();
    until("a list of 20 jobs", async || process.log().contains("\"running\":25") && of_jobs(&process.log()) >= 20)
        .await;
}

#[tokio::test]
async fn a_drain_says_what_it_waits_for_and_when_it_will_end() {
    let config = r#"
        kind.sleep = { pool = "one", builtin = "sleep" }
        drain = { notice = "0s", finish = "10m", kill = "1s" }
        deadline.max = "10m"
        pool.one.workers = 2
        "#;
    let process = Process::serve_logging(config, &[], "info").await;
    let caller = Caller::of(process.public).await;
    caller.leave(job("sleep", "1")).await.unwrap().unwrap();
    let mut patient = tonic::Request::new(SubmitRequest { job: Some(job("sleep", "500000")) });
    patient.set_timeout(std::time::Duration::from_secs(540));
    let mut client = caller.0.clone();
    let call = tokio::spawn(async move { client.submit(patient).await });
    caller.until(|pool| pool.in_flight == 1).await;
    process.signal(Signal::TERM);
    process.logged("the drain waits").await;
    let log = process.log();
    let line = log.lines().find(|line| line.contains("the drain waits")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["queued"], &line["running"]), (&0.into(), &1.into()), "{line}");
    assert!(line["jobs"].as_str().unwrap().contains("(sleep) for "), "{line}");
    // It has run for longer than the other job, so that it is expected to run as long again.
    assert!(line["expected_ms"].as_str().unwrap().parse::<u64>().unwrap() > 4_000, "{line}");
    // The callers' listener is closed.
    let shown = at_ops(process.ops, "stats").await;
    assert!(shown.out.contains("pool one  DRAINING  1 of 1 workers busy"), "{}{}", shown.out, shown.err);
    call.abort();
    assert_eq!(process.ended().await.code, Some(0));
}

/// A detached job that a drain stops goes back to its store, and is not lost.
#[tokio::test]
async fn the_command_that_watches_a_drain_agrees_with_the_receipt() {
    let config = r#"
        pool.one.workers = 1
        kind.sleep = { pool = "one", builtin = "sleep" }
        drain = { notice = "0s", finish = "2s", kill = "1s" }
        store.path = "jobs.db"
        "#;
    let process = Process::serve(config).await;
    let mut jobs = JobServiceClient::new(process.public.channel().await);
    let create = CreateJobRequest { job: Some(job("sleep", "600000")), job_id: "long".into(), options: None };
    jobs.create_job(create).await.unwrap();
    Caller::of(process.public).await.until(|pool| pool.in_flight == 1).await;
    let watched = process.run("drain --watch").await;
    let ended = process.ended().await;
    assert!(
        watched.out.contains("drained 0/0 in ") && watched.out.contains(", lost 0, given back 1\n"),
        "{}",
        watched.out
    );
    assert_eq!((watched.code, ended.code), (Some(0), Some(0)), "{:?}", ended.receipt);
    assert_eq!((&ended.receipt["finished"], &ended.receipt["lost"]), (&0.into(), &serde_json::json!([])));
    assert_eq!(ended.receipt["given_back"][0]["job"], "long");
}

#[tokio::test]
async fn a_drained_pool_has_its_duration_in_the_metrics() {
    let process = Process::serve("pool.one.workers = 1\nkind.echo = { pool = \"one\", builtin = \"echo\" }").await;
    assert_eq!(process.run("drain --pool one --watch").await.code, Some(0));
    let metrics = get(process.ops, "/metrics").await.1;
    assert!(metrics.contains("waterwheel_drain_duration_seconds_count{pool=\"one\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn operators_read_statistics_and_detached_jobs_at_their_own_listener() {
    let config = r#"
        pool.one.workers = 1
        kind.echo = { pool = "one", builtin = "echo" }
        store.memory = true
        "#;
    let process = Process::serve(config).await;
    let mut jobs = JobServiceClient::new(process.public.channel().await);
    let create = CreateJobRequest { job: Some(job("echo", "secret")), job_id: "one".into(), options: None };
    jobs.create_job(create).await.unwrap();
    jobs.wait_job(WaitJobRequest { job_id: "one".into() }).await.unwrap();

    for (line, shown) in [
        ("stats", "pool one  SERVING"),
        ("jobs list", "one  succeeded"),
        ("jobs get one", "one  succeeded  kind echo"),
        ("probe --service pool/one", "SERVING  pool/one"),
        ("advise", "pool one: 1 job recorded, too few"),
    ] {
        let ran = at_ops(process.ops, line).await;
        assert!(ran.code == Some(0) && ran.out.contains(shown), "{line}: {}{}", ran.out, ran.err);
    }

    let mut reads = JobServiceClient::new(process.ops.channel().await);
    let get = GetJobRequest { job_id: "one".into(), with_payload: true };
    let read = reads.get_job(get.clone()).await.unwrap().into_inner().job.unwrap();
    assert_eq!((read.payload_bytes, read.output_bytes), (6, 6));
    assert!(read.job.unwrap().payload.is_empty() && read.output.is_empty(), "operators see no payload and no output");
    let whole = jobs.get_job(get).await.unwrap().into_inner().job.unwrap();
    assert_eq!((whole.job.unwrap().payload, whole.output), ("secret".into(), "secret".into()));
    assert_eq!(reads.list_jobs(JobServiceListJobsRequest::default()).await.unwrap().into_inner().jobs.len(), 1);

    let mut pools = WorkerPoolServiceClient::new(process.ops.channel().await);
    assert_eq!(pools.stats(StatsRequest::default()).await.unwrap().into_inner().stats.unwrap().pools.len(), 1);
    let mut watch = pools.watch_stats(WatchStatsRequest::default()).await.unwrap().into_inner();
    assert!(watch.message().await.unwrap().is_some());
    let refused = pools.submit(SubmitRequest { job: Some(job("echo", "x")) }).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(refused.message().contains("has Stats, WatchStats of"), "{refused:?}");
    let refused = reads.wait_job(WaitJobRequest { job_id: "one".into() }).await.unwrap_err();
    assert!(refused.message().contains("has GetJob, ListJobs, "), "{refused:?}");
}

#[tokio::test]
async fn a_failed_job_of_a_program_is_explained_by_its_own_words() {
    let worker = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/programs/worker.py");
    let config = format!(
        r#"
        pool.one.workers = 2
        [kind.do]
        pool = "one"
        program = "worker"
        [program.worker]
        command = ["/usr/bin/python3", "-u", "{worker}"]
        jobs_per_process = 2
        start_timeout = "60s"
        "#,
    );
    let process = Process::serve(&config).await;
    let caller = Caller::of(process.public).await;
    let mut request = tonic::Request::new(SubmitRequest { job: Some(job("do", "fail UNAVAILABLE")) });
    request.metadata_mut().insert("x-request-id", "failed".parse().unwrap());
    let status = caller.0.clone().submit(request).await.unwrap_err();
    let explained = process.run("explain failed").await.out;
    assert!(explained.contains(status.message()) && explained.contains("answered UNAVAILABLE: "), "{explained}");
    let waterwheel::proto::explain_response::State::Ended(ended) = explain(process.ops, "failed").await.state.unwrap()
    else {
        panic!("it has ended")
    };
    let metrics = get(process.ops, "/metrics").await.1;
    let failed = |reason| format!("waterwheel_jobs_failed_total{{pool=\"one\",kind=\"do\",reason=\"{reason}\"}}");
    for (reason, count) in [("HANDLER_FAILED", 1), ("HANDLER_PANICKED", 0)] {
        assert!(metrics.contains(&format!("{} {count}\n", failed(reason))), "{metrics}");
    }
    assert_eq!(ended.program.unwrap().stderr, "", "the lines of a process with several slots may be of other jobs");
}
