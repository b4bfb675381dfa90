//! Dead letters in numbers: what they died of, and how all of one error are run again.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use waterwheel::{
    Job,
    detached::wall_clock,
    model::Reason,
    proto::{CreateJobRequest, DetachedJobFilter, JobServiceListJobsRequest, JobState, RetryJobsRequest},
    store::{Claimed, NewJob, Next, Room, Settle, SqliteOptions, Submission, open_sqlite},
};

use super::{Jobs, outcomes, work};
use crate::{
    process::{Process, config_file, until},
    refusal::Refusal,
};

const CONFIG: &str = r#"
    store.path = "jobs.db"
    drain.notice = "0s"
    pool.one.workers = 4
    kind.resize = { pool = "one", builtin = "echo" }
    kind.mail = { pool = "one", builtin = "echo" }
    kind.pay = { pool = "one", builtin = "echo" }
"#;

/// Jobs of each kind, and the error of each.
const DEAD: [(&str, usize, &str); 3] = [
    ("resize", 6000, "connect to 10.0.0.7:90NN: refused"),
    ("mail", 3000, "order NN is gone"),
    ("pay", 1000, "no such table"),
];

/// A directory with a configuration and a store of dead letters.
async fn dead_letters() -> (TempDir, PathBuf) {
    let (dir, path) = config_file(CONFIG);
    let store = open_sqlite(&SqliteOptions::new(dir.path().join("jobs.db")), wall_clock()).unwrap();
    let session = store.open_session(Duration::from_secs(60)).await.unwrap();
    for (kind, count, error) in DEAD {
        let job = |number| NewJob::new(format!("{kind}-{number}"), "one", Job::new(kind, "work"));
        store.submit(Submission { jobs: (0..count).map(job).collect(), session: None }).await.unwrap();
        let room = Room { session, kinds: [(kind.to_owned(), count)].into(), bytes: usize::MAX };
        let end = |(number, claimed): (usize, Claimed)| Settle {
            token: claimed.token,
            worker: "one/0".to_owned(),
            reason: Reason::HandlerFailed,
            code: 2,
            message: error.replace("NN", &number.to_string()),
            next: Next::Failed,
        };
        let ends: Vec<_> = store.claim(room).await.unwrap().into_iter().enumerate().map(end).collect();
        assert_eq!(ends.len(), count);
        store.settle(ends).await.unwrap();
    }
    store.close().await;
    (dir, path)
}

fn succeeded() -> JobServiceListJobsRequest {
    let filter = DetachedJobFilter { states: vec![JobState::Succeeded.into()], ..DetachedJobFilter::default() };
    JobServiceListJobsRequest { filter: Some(filter), with_count: true, page_size: 1, ..Default::default() }
}

async fn count(jobs: &Jobs, request: JobServiceListJobsRequest) -> u64 {
    let answer = jobs.0.clone().list_jobs(request).await.unwrap().into_inner();
    assert!(!answer.count_is_cut);
    answer.count.unwrap()
}

#[tokio::test]
async fn ten_thousand_dead_letters_are_found_by_their_error_and_run_again_once() {
    let (_dir, path) = dead_letters().await;
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;

    let groups = process.run("jobs group --state failed --output json").await.json();
    let names = ["kind", "outcome", "message", "count", "tenant_count"];
    let found = groups["groups"].as_array().unwrap().iter().map(|group| names.map(|name| group[name].clone()));
    let expected = json!([
        ["resize", "HANDLER_FAILED", "connect to #: refused", 6000, 1],
        ["mail", "HANDLER_FAILED", "order # is gone", 3000, 1],
        ["pay", "HANDLER_FAILED", "no such table", 1000, 1],
    ]);
    assert_eq!(json!(found.collect::<Vec<_>>()), expected, "{groups}");

    // All of one error, whose message is that of one of the jobs.
    let filter = DetachedJobFilter { message: Some("order 99 is gone".into()), ..DetachedJobFilter::default() };
    let request = RetryJobsRequest { filter: Some(filter), expected: 2700, ..RetryJobsRequest::default() };
    let refused = Refusal::of_call(jobs.0.clone().retry_jobs(request.clone()).await.unwrap_err(), true);
    assert_eq!(refused.reason(), "MORE_JOBS");
    let request = RetryJobsRequest { expected: 2730, dry_run: true, ..request };
    let counted = jobs.0.clone().retry_jobs(request.clone()).await.unwrap().into_inner();
    assert!(counted.retried == 1000 && !counted.next_page_token.is_empty(), "{counted:?}");
    assert_eq!(count(&jobs, succeeded()).await, 0, "a dry run changes nothing");

    // The same twice at the same time, while another job runs.
    let line = "jobs retry --state failed --reason the-bank-is-back";
    let other = async {
        let id = jobs.created(CreateJobRequest { job_id: "another".into(), ..work("pay", "") }).await;
        jobs.ended(&id).await
    };
    let (one, two, other) = tokio::join!(process.run(line), process.run(line), other);
    assert_eq!(other.state(), JobState::Succeeded);
    let done = |text: &str| text.split(' ').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(done(&one.out) + done(&two.out), 10_000, "{} {}", one.out, two.out);
    assert!(one.err.contains(" of ") || two.err.contains(" of "), "{} {}", one.err, two.err);
    until("all to succeed", async || count(&jobs, succeeded()).await == 10_001).await;
    let filter = succeeded().filter.unwrap();
    for job in jobs.list_by(1000, filter).await.iter().filter(|job| job.job_id != "another") {
        assert_eq!(outcomes(job), ["HANDLER_FAILED", "COMPLETED"], "{job:?}");
    }
    let again = process.run(line).await;
    assert_eq!((again.code, again.out.as_str()), (Some(0), "0 jobs run again\n"));

    let deleted = process.run("jobs delete pay-0 --reason=nobody-needs-it").await;
    assert_eq!(deleted.code, Some(0), "{}", deleted.err);
    process.logged("nobody-needs-it").await;

    let log = process.log();
    let lines = || log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let acts: Vec<_> = lines().filter(|line| line["message"] == "an operator ran detached jobs again").collect();
    let deleted = lines().find(|line| line["message"] == "an operator removed detached jobs").expect("a line");
    assert_eq!((&deleted["job"], &deleted["span"]["reason"]), (&json!("pay-0"), &json!("nobody-needs-it")));
    assert_eq!(acts.iter().map(|line| line["jobs"].as_u64().unwrap()).sum::<u64>(), 10_000, "{acts:?}");
    for line in acts {
        let span = &line["span"];
        assert_eq!(span["reason"], json!("the-bank-is-back"), "{line}");
        assert!(span["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
    }
}
