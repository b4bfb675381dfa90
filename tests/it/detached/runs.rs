//! Runs of detached jobs: what their handlers see and decide, the order in which they start, and who watches them.

mod holds;

use std::collections::HashSet;

use tonic::{Code, Streaming};
use waterwheel::{
    Job, Output,
    app::OwnKind,
    handler::{Context, Handler, Kind},
    model::{FailureCode, HandlerError},
    proto::{
        AttemptOutput, AttemptProgress, CreateJobRequest, CreateJobsRequest, Criticality, DetachedJobFilter, JobState,
        WatchJobRequest, WatchJobResponse,
        attach_request::{Failed, Message},
        create_jobs_response::Outcome,
        watch_job_response::Event,
    },
};

use super::{Jobs, outcomes, serve, work};
use crate::{remote::Worker, service::Service};

/// Kinds that fail, with very short delays between attempts.
const HANDLERS: &str = r#"
    pool.one.workers = 2
    store.memory = true
    [kind.exec]
    pool = "one"
    exec = ["/bin/sh", "-c", "echo $WATERWHEEL_IDEMPOTENCY_KEY $WATERWHEEL_ATTEMPT $WATERWHEEL_TOKEN; [ $WATERWHEEL_ATTEMPT = 3 ]"]
    retry = { initial = "1ms" }
    [kind.large]
    pool = "one"
    exec = ["/bin/sh", "-c", "head -c 2000 /dev/zero"]
    max_output = "1KiB"
    retry = { initial = "1ms" }
    [program.test]
    command = ["/usr/bin/python3", "-u", "WORKER"]
    [kind.do]
    pool = "one"
    program = "test"
    retry = { initial = "1ms", max_attempts = 2 }
"#;

#[tokio::test]
async fn a_program_sees_its_attempt_and_can_end_the_retries() {
    let worker = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/programs/worker.py");
    let (_process, jobs) = serve(&HANDLERS.replace("WORKER", worker)).await;
    let id = jobs.created(work("exec", "")).await;
    let done = jobs.ended(&id).await;
    let output = String::from_utf8(done.output.to_vec()).unwrap();
    let row = output.trim().strip_prefix(&format!("{id} 3 {id}/3/")).unwrap_or_else(|| panic!("{output}"));
    let row: u64 = row.parse().unwrap();

    let id = jobs.created(work("do", "about")).await;
    let about: serde_json::Value = serde_json::from_slice(&jobs.ended(&id).await.output).unwrap();
    assert_eq!((&about["idempotency_key"], &about["attempt"]), (&id.as_str().into(), &1.into()));
    let token = about["token"].as_str().unwrap();
    let later = token.strip_prefix(&format!("{id}/1/")).unwrap_or_else(|| panic!("{token}"));
    assert!(later.parse::<u64>().unwrap() > row, "{token}");

    let retryable = r#"raw {"failed":{"id":"ID","code":"NOT_FOUND","retryable":true}}"#.to_owned() + "\n";
    let unspecified = r#"raw {"failed":{"id":"ID","code":"UNAVAILABLE"}}"#.to_owned() + "\n";
    for (kind, payload, outcome, attempts) in [
        ("do", "fail UNAVAILABLE", "HANDLER_FAILED", 1),
        ("do", &retryable, "HANDLER_FAILED", 2),
        ("do", &unspecified, "HANDLER_FAILED", 2),
        ("large", "", "OUTPUT_TOO_LARGE", 1),
    ] {
        let dead = jobs.ended(&jobs.created(work(kind, payload.to_owned())).await).await;
        assert_eq!((dead.state(), outcomes(&dead)), (JobState::Failed, vec![outcome; attempts]), "{payload}");
    }
}

/// Fails the first attempt with a retryable error, and then returns its attempt. With the payload `give up`, the error
/// is final.
struct Own;

impl Handler for Own {
    async fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        let attempt = cx.attempt().expect("a detached job");
        let away = HandlerError::new(FailureCode::Unavailable, "away");
        match (attempt.number, &*job.payload) {
            (_, b"give up") => Err(away.retryable(false)),
            (1, _) => Err(away),
            _ => Ok(Output::new(format!("{} {}", attempt.job, attempt.number))),
        }
    }
}

#[tokio::test]
async fn a_native_handler_sees_its_attempt_and_can_end_the_retries() {
    let config = "store.memory = true\npool.one.workers = 1";
    let service = Service::start(config, vec![OwnKind::new("one", Kind::new("own", || Own))]);
    let jobs = Jobs::at(service.public).await;
    let id = jobs.created(work("own", "")).await;
    assert_eq!(jobs.ended(&id).await.output, format!("{id} 2").as_bytes());
    let dead = jobs.ended(&jobs.created(work("own", "give up")).await).await;
    assert_eq!((dead.state(), outcomes(&dead)), (JobState::Failed, vec!["HANDLER_FAILED"]));
}

#[tokio::test]
async fn an_attached_worker_sees_its_attempt_and_can_end_the_retries() {
    let config = r#"
        store.memory = true
        pool.far = {}
        kind.far = { pool = "far", remote = true, retry = { initial = "1ms" } }
    "#;
    let service = Service::start(config, Vec::new());
    let (jobs, mut worker) = (Jobs::at(service.public).await, Worker::attach(&service, 1).await);
    let job = jobs.created(work("far", "")).await;
    for (attempt, retryable, counts) in [(1, None, true), (2, Some(true), false), (3, Some(false), true)] {
        let run = worker.run().await;
        assert_eq!((run.attempt, &run.idempotency_key), (attempt, &job));
        assert!(run.token.starts_with(&format!("{job}/{attempt}/")), "{run:?}");
        let (code, message) = ("UNAVAILABLE".into(), "away".into());
        let (retry_after_ms, counts, scope) = (Some(1), Some(counts), "KIND".to_owned());
        let failed = Failed { id: run.id, code, message, retryable, retry_after_ms, counts, scope };
        worker.say(Message::Failed(failed)).await;
    }
    let ended = jobs.ended(&job).await;
    assert_eq!((ended.attempts.len(), ended.failures), (3, 2), "{ended:?}");
}

const ORDERED: &str = r#"
    pool.one.workers = 2
    kind.echo = { pool = "one", builtin = "echo" }
    kind.sleep = { pool = "one", builtin = "sleep" }
    store.memory = true
"#;

/// Creates a job with this criticality.
async fn of_class(jobs: &Jobs, class: Criticality) -> String {
    let request = work("sleep", "1");
    let job = waterwheel::proto::Job { criticality: class.into(), ..request.job.unwrap() };
    jobs.created(CreateJobRequest { job: Some(job), ..CreateJobRequest::default() }).await
}

#[tokio::test]
async fn a_new_job_is_leased_at_once_unless_jobs_of_its_kind_wait() {
    let (_process, jobs) = serve(ORDERED).await;
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
        serve(&format!("{}{}", ORDERED.replace("memory = true", "path = \"jobs.db\""), others.concat())).await;
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
    let (_process, jobs) = serve(&format!("{ORDERED}{limited}")).await;
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

const WATCHED: &str = r#"
    pool.one.workers = 1
    store.memory = true
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
    # Prints `one`, and `two` once its file exists. The first attempt then fails.
    [kind.says]
    pool = "one"
    exec = ["/bin/sh", "-c", "read file; echo one; while [ ! -e $file ]; do sleep 0.01; done; echo two; [ $WATERWHEEL_ATTEMPT = 2 ]"]
    retry = { initial = "1ms" }
"#;

async fn watch(jobs: &Jobs, id: &str, from_sequence: u64) -> Streaming<WatchJobResponse> {
    jobs.0.clone().watch_job(WatchJobRequest { job_id: id.to_owned(), from_sequence }).await.unwrap().into_inner()
}

/// The next output event and its sequence number.
async fn output(events: &mut Streaming<WatchJobResponse>) -> (AttemptOutput, u64) {
    loop {
        let WatchJobResponse { sequence, event } = events.message().await.unwrap().expect("more");
        if let Some(Event::Output(output)) = event {
            return (output, sequence);
        }
    }
}

/// Reads all further events. Returns the states, and the output of the last attempt.
async fn rest(mut events: Streaming<WatchJobResponse>) -> (Vec<JobState>, Vec<u8>) {
    let (mut states, mut attempt, mut all, mut last) = (Vec::new(), 0, Vec::new(), 0);
    while let Some(WatchJobResponse { sequence, event }) = events.message().await.unwrap() {
        assert!(sequence >= last, "{sequence} after {last}");
        last = sequence;
        match event.unwrap() {
            Event::Job(job) => states.push(job.state()),
            Event::Output(output) => {
                if output.attempt != attempt {
                    (attempt, all) = (output.attempt, Vec::new());
                }
                all.extend(output.data);
            }
            Event::Progress(_) => {}
        }
    }
    (states, all)
}

#[tokio::test]
async fn a_watch_can_be_resumed_from_a_sequence_number_across_attempts() {
    let ((_process, jobs), dir) = (serve(WATCHED).await, tempfile::tempdir().unwrap());
    let file = dir.path().join("go");
    let id = jobs.created(work("says", format!("{}\n", file.display()))).await;
    let mut first = watch(&jobs, &id, 0).await;
    let (one, sequence) = output(&mut first).await;
    assert_eq!((one.attempt, one.offset, &*one.data), (1, 0, &b"one\n"[..]));
    let (again, _) = output(&mut watch(&jobs, &id, 0).await).await;
    assert_eq!(again, one, "a second watch receives the earlier output");
    drop(first);

    let mut second = watch(&jobs, &id, sequence).await;
    let state = second.message().await.unwrap().unwrap();
    assert!(matches!(state.event, Some(Event::Job(job)) if job.state() == JobState::Running));
    std::fs::write(file, "").unwrap();
    let (states, all) = rest(second).await;
    assert_eq!((states.last(), &*all), (Some(&JobState::Succeeded), &b"one\ntwo\n"[..]));

    let (states, all) = rest(watch(&jobs, &id, 0).await).await;
    assert_eq!((&*states, &*all), (&[JobState::Succeeded][..], &b"one\ntwo\n"[..]));
    let (_, all) = rest(watch(&jobs, &id, (2 << 40) + 4).await).await;
    assert_eq!(all, b"two\n", "a watch can resume within an attempt that has ended");
}

#[tokio::test]
async fn a_watch_reports_progress_and_the_cancellation_of_its_job() {
    let (_process, jobs) = serve(WATCHED).await;
    let none = jobs.0.clone().watch_job(WatchJobRequest { job_id: "none".into(), from_sequence: 0 }).await.unwrap_err();
    assert_eq!(none.code(), Code::NotFound);
    let (running, waiting) = (jobs.created(work("sleep", "3000000")).await, jobs.created(work("sleep", "1")).await);
    let (mut running_events, mut waiting_events) = (watch(&jobs, &running, 0).await, watch(&jobs, &waiting, 0).await);
    while jobs.get(&running).await.state() != JobState::Running {}
    let seen = waiting_events.message().await.unwrap().unwrap();
    assert!(matches!(seen.event, Some(Event::Job(_))), "{seen:?}");
    jobs.cancel(&running).await.unwrap();
    let mut last = None;
    while let Some(event) = running_events.message().await.unwrap() {
        assert!(!matches!(event.event, Some(Event::Output(_))), "{event:?}");
        last = event.event;
    }
    assert!(matches!(last, Some(Event::Job(job)) if job.state() == JobState::Cancelled));
    assert_eq!(rest(waiting_events).await.1, b"slept 1 ms");

    let id = jobs.created(work("sleep", "500")).await;
    let mut events = watch(&jobs, &id, 0).await;
    let progress = loop {
        if let Some(Event::Progress(progress)) = events.message().await.unwrap().expect("more").event {
            break progress;
        }
    };
    let AttemptProgress { attempt, fraction, .. } = progress;
    assert!(attempt == 1 && fraction > 0.0 && fraction <= 1.0, "{fraction}");
}
