//! The drain of a real process: its steps, duration, receipt and exit code.

// tidy: real time, because the tests measure when a real process exits.

mod bound;

use std::{collections::BTreeSet, time::Duration};

use rustix::process::Signal;
use tokio::time::{Instant, timeout};
use tonic::{Code, Response, Status};
use waterwheel::proto::{
    SubmitResponse,
    health::{HealthCheckRequest, health_check_response::ServingStatus},
};

use crate::{
    health::check,
    process::{Ended, PATIENCE, Process},
    refusal::Refusal,
    service::{Caller, job},
};

/// Short phases, and kinds whose jobs do not stop when they are asked to.
const CONFIG: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    kind.echo = { pool = "one", builtin = "echo" }
    drain = { notice = "200ms", finish = "300ms", kill = "300ms" }
    [pool.one]
    workers = 6
    queue = { jobs = 64 }
    when_full = "wait"
    [kind.stubborn]
    pool = "one"
    exec = ["/bin/sh", "-c", 'trap "" TERM; echo $$ > "$PIDS/$$"; while :; do sleep 0.05; done']
    env = { PIDS = "@PIDS@" }
    [kind.stubborn-again]
    pool = "one"
    exec = ["/bin/sh", "-c", 'trap "" TERM; while :; do sleep 0.05; done']
    idempotent = true
"#;
const NOTICE: Duration = Duration::from_millis(200);
const FINISH: Duration = Duration::from_millis(300);
const KILL: Duration = Duration::from_millis(300);
/// Time that the process may take to exit after its phases.
const SLACK: Duration = Duration::from_millis(250);

/// A `sleep` job that does not stop when it is asked to.
fn sleeps_on(millis: u32) -> waterwheel::proto::Job {
    job("sleep", format!(r#"{{"ms":{millis},"ignore_cancel":true}}"#))
}

/// The id, kind and pool of a lost job, which its caller and the receipt both name.
type LostJob = [String; 3];
const NAMES: [&str; 3] = ["job", "kind", "pool"];

/// How calls ended, by what their status says about the job.
#[derive(Debug, Default)]
struct Ends {
    completed: usize,
    /// Jobs that were killed while they ran.
    killed: BTreeSet<LostJob>,
    /// Accepted jobs that were not started.
    dropped: BTreeSet<LostJob>,
    /// Calls that were refused before a job existed.
    refused: usize,
    /// Calls that did not reach the service, because its listener was closed or it had sent GOAWAY.
    closed: usize,
}

impl Ends {
    fn add(&mut self, end: Result<Response<SubmitResponse>, Status>) {
        let Err(status) = end else {
            self.completed += 1;
            return;
        };
        if !status.metadata().contains_key("x-request-id") {
            self.closed += 1;
            return;
        }
        let refusal = Refusal::of_call(status, true);
        let facts = refusal.facts();
        let lost = || NAMES.map(|name| facts[name].clone());
        let new = match (refusal.code(), refusal.reason().as_str(), facts["execution"].as_str()) {
            (Code::Aborted, "DRAIN_KILLED", "STARTED") if facts["kind"] != "stubborn-again" => {
                self.killed.insert(lost())
            }
            (Code::Unavailable, "DRAIN_KILLED", "STARTED") if facts["kind"] == "stubborn-again" => {
                self.killed.insert(lost())
            }
            (Code::Unavailable, "DRAINING", "NOT_STARTED") => {
                if facts.contains_key("job") {
                    self.dropped.insert(lost())
                } else {
                    self.refused += 1;
                    true
                }
            }
            _ => panic!("unexpected status during a drain: {refusal:?}"),
        };
        assert!(new, "two calls report the same job: {refusal:?}");
    }

    /// Checks that the receipt lists exactly the jobs that the callers' statuses report as lost.
    fn compare(&self, ended: &Ended) {
        assert_eq!(ended.lost("running"), self.killed, "{:?}", ended.receipt);
        assert_eq!(ended.lost("queued"), self.dropped, "{:?}", ended.receipt);
    }
}

impl Ended {
    fn lost(&self, lost_while: &str) -> BTreeSet<LostJob> {
        let lost = self.receipt["lost"].as_array().unwrap().iter().filter(|lost| lost["while"] == lost_while);
        let named = lost.map(|lost| NAMES.map(|name| lost[name].as_str().unwrap().to_owned()));
        let jobs: Vec<LostJob> = named.collect();
        let set: BTreeSet<_> = jobs.iter().cloned().collect();
        assert_eq!(set.len(), jobs.len(), "a job is listed twice: {:?}", self.receipt);
        set
    }
}

#[tokio::test]
async fn a_clean_drain_runs_its_steps_in_order() {
    const NOTICE: Duration = Duration::from_secs(8);
    // The phases are long enough for all checks, even on a slow machine.
    let config = CONFIG.replace("200ms", "8s").replace(r#"finish = "300ms""#, r#"finish = "60s""#);
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let held = r#"while [ ! -e "$GO" ]; do sleep 0.05; done"#;
    let held = format!("[kind.held]\npool = \"one\"\nexec = [\"/bin/sh\", \"-c\", '{held}']\nenv.GO = {go:?}");
    let process = Process::serve(&format!("{config}\n{held}")).await;
    let (public, ops) = (process.public, process.ops);
    let caller = Caller::of(public).await;
    let request = HealthCheckRequest { service: "readiness".into() };
    let mut readiness = public.health().await.watch(request).await.unwrap().into_inner();
    assert_eq!(readiness.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let running = caller.leave(job("held", ""));
    caller.until(|pool| pool.in_flight == 1).await;

    // ① Health reports NOT_SERVING first …
    let begin = Instant::now();
    process.signal(Signal::TERM);
    let changed = timeout(PATIENCE, readiness.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(changed.status(), ServingStatus::NotServing);
    assert!(begin.elapsed() < NOTICE, "NOT_SERVING after {:?}", begin.elapsed());
    // ② … while jobs are still accepted, on new connections too.
    Caller::of(public).await.leave(job("echo", "")).await.unwrap().unwrap();
    for (name, status) in [("", ServingStatus::NotServing), ("liveness", ServingStatus::Serving)] {
        assert_eq!(check(public, name).await, status, "{name:?}");
    }
    assert!(begin.elapsed() < NOTICE, "the machine is too slow for this test: {:?}", begin.elapsed());

    // ③ Jobs are refused, ④ the listener is closed, ⑤ connections receive GOAWAY.
    let refused = async {
        let mut accepted = 0;
        loop {
            let Err(status) = caller.leave(job("echo", "")).await.unwrap() else {
                accepted += 1;
                continue;
            };
            // A status without a request id comes from the client, whose connection has received GOAWAY.
            let by_the_server = status.metadata().contains_key("x-request-id");
            assert!(!by_the_server || status.code() == Code::Unavailable, "{status:?}");
            return accepted;
        }
    };
    let accepted = timeout(PATIENCE, refused).await.unwrap();
    assert!(begin.elapsed() >= NOTICE);
    let closed = async {
        while tokio::net::TcpStream::connect(public.0).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, closed).await.expect("the listener is closed");
    // The operator listener stays open until the end.
    assert_eq!(check(ops, "liveness").await, ServingStatus::Serving);
    assert_eq!(check(ops, "readiness").await, ServingStatus::NotServing);

    // ⑥ Running jobs finish, and their callers get a response.
    std::fs::write(&go, "").unwrap();
    running.await.unwrap().unwrap();
    let ended = process.ended().await;
    assert_eq!((ended.code, &ended.receipt["event"]), (Some(0), &"drained".into()));
    assert_eq!(ended.receipt["lost"], serde_json::json!([]));
    assert_eq!(ended.receipt["finished"], 2 + accepted, "{:?}", ended.receipt);
}

#[tokio::test]
async fn under_load_every_accepted_job_completes_before_the_drain_ends() {
    let process = Process::serve(&CONFIG.replace(r#"finish = "300ms""#, r#"finish = "20s""#)).await;
    let caller = Caller::of(process.public).await;
    let mut loads = Vec::new();
    for _ in 0..8 {
        let caller = caller.clone();
        loads.push(tokio::spawn(async move {
            let mut ends = Vec::new();
            loop {
                let end = caller.leave(job("sleep", "3")).await.unwrap();
                let refused = end.is_err();
                ends.push(end);
                if refused {
                    return ends;
                }
            }
        }));
    }
    caller.until(|pool| crate::service::counts(pool).completed > 50).await;
    process.signal(Signal::TERM);
    let mut ends = Ends::default();
    for load in loads {
        load.await.unwrap().into_iter().for_each(|end| ends.add(end));
    }
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ends.refused + ends.closed, 8, "{ends:?}");
    assert!(ends.completed > 50 && ends.killed.is_empty() && ends.dropped.is_empty(), "{ends:?}");
}
