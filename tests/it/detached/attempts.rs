//! Handlers see the attempt of a detached job, and decide whether the job is retried.

use waterwheel::{
    Job, Output,
    app::OwnKind,
    handler::{Context, Handler, Kind},
    model::{FailureCode, HandlerError},
    proto::{
        JobState,
        attach_request::{Failed, Message},
    },
};

use super::{Jobs, outcomes, serve, work};
use crate::{remote::Worker, service::Service};

/// Kinds that fail, with very short delays between attempts.
const CONFIG: &str = r#"
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
    let (_process, jobs) = serve(&CONFIG.replace("WORKER", worker)).await;
    let id = jobs.created(work("exec", "")).await;
    let done = jobs.ended(&id).await;
    let output = String::from_utf8(done.output.to_vec()).unwrap();
    let epoch = output.trim().strip_prefix(&format!("{id} 3 {id}/3/")).unwrap_or_else(|| panic!("{output}"));
    assert!(epoch.parse::<u64>().is_ok(), "{output}");

    let id = jobs.created(work("do", "about")).await;
    let about: serde_json::Value = serde_json::from_slice(&jobs.ended(&id).await.output).unwrap();
    assert_eq!((&about["idempotency_key"], &about["attempt"]), (&id.as_str().into(), &1.into()));
    assert_eq!(about["token"], format!("{id}/1/{epoch}"));

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
    for (attempt, retryable) in [(1, None), (2, Some(true)), (3, Some(false))] {
        let run = worker.run().await;
        assert_eq!((run.attempt, &run.idempotency_key), (attempt, &job));
        assert!(run.token.starts_with(&format!("{job}/{attempt}/")), "{run:?}");
        let (code, message) = ("UNAVAILABLE".into(), "away".into());
        worker.say(Message::Failed(Failed { id: run.id, code, message, retryable })).await;
    }
    assert_eq!(jobs.ended(&job).await.attempts.len(), 3);
}
