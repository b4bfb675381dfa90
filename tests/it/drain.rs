//! The drain of a real process: its phases, duration, receipt and exit code.
//!
// tidy: real time, because the tests measure when a real process exits.

mod answers;
mod bound;
mod order;

use std::{collections::BTreeSet, time::Duration};

use tonic::{Code, Response, Status};
use waterwheel::proto::SubmitResponse;

use crate::{process::Ended, refusal::Refusal};

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
    crate::service::job("sleep", format!(r#"{{"ms":{millis},"ignore_cancel":true}}"#))
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
