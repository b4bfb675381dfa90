//! Tests of the texts and exit codes of failed calls, one case for each reason.

use std::{collections::HashMap, time::Duration};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::{Exit, Failure, TABLE};
use crate::{cli::access::Address, model::Reason};

impl Failure {
    /// How to correct the failure, if known.
    pub(crate) fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

fn address() -> Address {
    "127.0.0.1:7070".parse().unwrap()
}

/// The failure of a status with this code and this reason, with facts like `pool=cpu`.
fn failure(status: &str) -> Failure {
    let words: Vec<_> = status.split(' ').collect();
    let facts: HashMap<_, _> = words[2..].iter().filter_map(|fact| fact.split_once('=')).collect();
    let (retry, facts): (Vec<_>, Vec<_>) = facts.into_iter().partition(|(name, _)| *name == "retry");
    let facts: HashMap<_, _> = facts.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let mut details = ErrorDetails::with_error_info(words[1], "waterwheel.dev", facts);
    details.set_retry_info(retry.first().map(|retry| Duration::from_millis(retry.1.parse().unwrap())));
    if let Some(help) = Reason::of(words[1]).map(Reason::help).filter(|help| !help.is_empty()) {
        details.add_help_link(help, "");
    }
    let code = (0..=16).map(Code::from).find(|code| format!("{code:?}") == words[0]).expect(words[0]);
    let status = Status::with_error_details(code, "what the server says", details);
    Failure::of_status(status, &address())
}

fn sanitized(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

/// After `$` the exit code, the code and the reason of a status, and its facts, and then the text that is shown.
const CASES: &str = "\
$ Usage FailedPrecondition WRONG_STATE execution=NOT_STARTED state=SUCCEEDED
WRONG_STATE  what the server says (state SUCCEEDED)
  help: read the job first; a job that has not ended can be cancelled, and one that has ended can be retried
$ Refused ResourceExhausted QUEUE_FULL retry=500 execution=NOT_STARTED pool=cpu
QUEUE_FULL  what the server says (pool cpu); the job did not start
  help: try again in 500ms, or pass --when-full wait
$ Refused ResourceExhausted QUEUE_FULL retry=500 execution=NOT_STARTED pool=cpu expected_wait_ms=1503
QUEUE_FULL  what the server says (expected wait 1.5s, pool cpu); the job did not start
  help: try again in 500ms, or pass --when-full wait
$ Refused ResourceExhausted DEADLINE_UNREACHABLE retry=500 execution=NOT_STARTED expected_wait_ms=1503 queue_timeout_ms=100
DEADLINE_UNREACHABLE  what the server says (expected wait 1.5s, queue timeout 100ms); the job did not start
  help: try again in 500ms, or give it a longer deadline or queue timeout
$ Refused ResourceExhausted DEADLINE_UNREACHABLE retry=500 execution=NOT_STARTED expected_wait_ms=1503 needed_timeout_ms=3006 budget_ms=1000
DEADLINE_UNREACHABLE  what the server says (budget 1.0s, expected wait 1.5s, needed timeout 3.0s); the job did not start
  help: try again in 500ms, or pass --deadline 3.307s
$ Refused ResourceExhausted DEADLINE_UNREACHABLE execution=NOT_STARTED expected_wait_ms=0.000 needed_timeout_ms=0 budget_ms=0.000
DEADLINE_UNREACHABLE  what the server says (budget 0ms, expected wait 0ms, needed timeout 0ms); the job did not start
  help: give it a longer deadline or queue timeout
$ Refused ResourceExhausted LIMIT_EXCEEDED retry=500 execution=NOT_STARTED limit=rate expected_wait_ms=1503 budget_ms=1000
LIMIT_EXCEEDED  what the server says (budget 1.0s, expected wait 1.5s, limit rate); the job did not start
  help: try again in 500ms, or send less of this kind, or give it a longer deadline
$ Refused ResourceExhausted UPLOADS_FULL retry=1000 execution=NOT_STARTED
UPLOADS_FULL  what the server says; the job did not start
  help: try again in 1.0s, or ask the operator to raise server.memory
$ Usage ResourceExhausted HEADERS_TOO_LARGE execution=NOT_STARTED
HEADERS_TOO_LARGE  what the server says; the job did not start
  help: send less metadata or a shorter token, or ask the operator to raise server.http2.max_header_list
$ Refused ResourceExhausted SHED retry=1500 execution=NOT_STARTED
SHED  what the server says; the job did not start
  help: try again in 1.5s, or send it with a higher criticality
$ Refused ResourceExhausted TENANT_SHARE retry=1500 execution=NOT_STARTED pool=cpu tenant=acme queued_jobs=4 most_jobs=3
TENANT_SHARE  what the server says (most jobs 3, pool cpu, queued jobs 4, tenant acme); the job did not start
  help: try again in 1.5s, or send less for this tenant, or when its queued jobs have started
$ Usage PermissionDenied CRITICALITY_DENIED execution=NOT_STARTED max_criticality=SHEDDABLE_PLUS
CRITICALITY_DENIED  what the server says (max criticality SHEDDABLE_PLUS)
  help: send a lower one, or ask the operator for a higher max_criticality in [auth.rule]
$ Usage PermissionDenied RPC_DENIED accepts=token principal=anonymous rpc=Submit
RPC_DENIED  what the server says (principal anonymous, rpc Submit)
  help: pass --token-file
$ Refused ResourceExhausted QUOTA_EXCEEDED execution=NOT_STARTED
QUOTA_EXCEEDED  what the server says; the job did not start
  help: send less for this tenant, or ask the operator for a larger quota
$ Refused Unavailable DRAINING execution=NOT_STARTED
DRAINING  what the server says; the job did not start
  help: use another server, or this one when it serves again
$ Failed Aborted DRAIN_KILLED execution=STARTED run_ms=750.4
DRAIN_KILLED  what the server says (run 750ms); the job had started
  help: send it again if the work may run twice
$ DeadlineExceeded DeadlineExceeded EXPIRED_IN_QUEUE execution=NOT_STARTED queue_ms=990
EXPIRED_IN_QUEUE  what the server says (queue 990ms); the job did not start
  help: give it a longer deadline or queue timeout; Stats shows the wait
$ DeadlineExceeded DeadlineExceeded RUN_TIMEOUT execution=STARTED run_ms=990
RUN_TIMEOUT  what the server says (run 990ms); the job had started
  help: give it a longer deadline or run timeout
$ Failed Unknown HANDLER_FAILED execution=STARTED job=j1
HANDLER_FAILED  what the server says
  job j1
  help: correct the payload if the message blames it; Explain and the server's log say more
$ Failed InvalidArgument HANDLER_FAILED execution=STARTED job=j1
HANDLER_FAILED  what the server says
  job j1
  help: correct the payload if the message blames it; Explain and the server's log say more
$ Failed Internal HANDLER_PANICKED execution=STARTED job=j1
HANDLER_PANICKED  what the server says; the job had started
  job j1
  help: report a bug of the handler; the server's log says more
$ Failed Internal WORKER_CRASHED execution=UNKNOWN
WORKER_CRASHED  what the server says; whether the job started is unknown
  help: report a bug of the handler; Explain and the server's log say more
$ Usage InvalidArgument UNKNOWN_KIND execution=NOT_STARTED
UNKNOWN_KIND  what the server says
  help: name a kind that the server has; Stats lists them
$ Usage ResourceExhausted PAYLOAD_TOO_LARGE execution=NOT_STARTED size_bytes=70000 limit_bytes=65536
PAYLOAD_TOO_LARGE  what the server says (limit bytes 65536, size bytes 70000); the job did not start
  help: send less, or ask the operator to raise server.max_payload
$ Failed ResourceExhausted OUTPUT_TOO_LARGE execution=STARTED
OUTPUT_TOO_LARGE  what the server says; the job had started
  help: use Stream, or ask the operator to raise max_output
$ Usage NotFound NOT_FOUND
NOT_FOUND  what the server says
  help: name an existing one; Stats and ListJobs list them
$ Usage NotFound NOT_FOUND execution=NOT_STARTED job=j1
NOT_FOUND  what the server says
  help: name an existing one; Stats and ListJobs list them
$ Refused Unavailable SOMETHING_NEW retry=2000 execution=NOT_STARTED
SOMETHING_NEW  what the server says; the job did not start
  help: try again in 2.0s
$ Refused FailedPrecondition POOL_DRAINING execution=NOT_STARTED
POOL_DRAINING  what the server says
  help: resume the pool first
$ Refused FailedPrecondition DRAINING execution=NOT_STARTED
DRAINING  what the server says
  help: use another server, or this one when it serves again
$ Refused Unavailable HANDLER_UNAVAILABLE retry=200 execution=NOT_STARTED
HANDLER_UNAVAILABLE  what the server says; the job did not start
  help: try again in 200ms, or read the server's log if it persists
$ Failed FailedPrecondition HANDLER_UNAVAILABLE execution=NOT_STARTED
HANDLER_UNAVAILABLE  what the server says
  help: correct the program, and restart the pool again
";

#[test]
fn each_reason_has_its_words_and_its_code() {
    for case in CASES.split("$ ").skip(1) {
        let (status, text) = case.split_once('\n').unwrap();
        let (exit, status) = status.split_once(' ').unwrap();
        let failure = failure(status);
        assert_eq!(sanitized(&failure.text()), text.trim_end());
        assert_eq!(format!("{:?}", failure.exit()), exit, "{status}");
    }
}

#[test]
fn figures_that_are_missing_leave_the_servers_words() {
    for reason in ["DEADLINE_UNREACHABLE", "RUN_TIMEOUT", "EXPIRED_IN_QUEUE"] {
        let text = sanitized(&failure(&format!("DeadlineExceeded {reason}")).text());
        assert!(text.starts_with(&format!("{reason}  what the server says; whether")), "{text}");
    }
}

#[test]
fn violations_are_listed_by_field() {
    let mut details = ErrorDetails::with_error_info(
        "INVALID_FIELD",
        "waterwheel.dev",
        [("execution".to_owned(), "NOT_STARTED".to_owned())],
    );
    details.add_bad_request_violation("job.tenant", "is 200 bytes long; at most 128");
    details.add_bad_request_violation("job.labels", "has 17 entries; at most 16");
    details.add_help_link(Reason::InvalidField.help(), "");
    let status = Status::with_error_details(Code::InvalidArgument, "two fields", details);
    let failure = Failure::of_status(status, &address());
    assert_eq!(
        sanitized(&failure.text()),
        "INVALID_FIELD  the request has invalid fields\n  \
         job.tenant: is 200 bytes long; at most 128\n  \
         job.labels: has 17 entries; at most 16\n  \
         help: correct the fields and send it again"
    );
    assert_eq!(failure.exit(), Exit::Usage);
}

#[test]
fn a_status_without_details_shows_its_code() {
    let failure = Failure::of_status(Status::permission_denied("not you"), &address());
    assert_eq!(sanitized(&failure.text()), "PERMISSION_DENIED  not you");
    assert_eq!(failure.exit(), Exit::Usage);
}

#[test]
fn further_lines_of_a_message_are_indented_and_harmless() {
    let failure = Failure::of_status(Status::internal("exit code 2\nx\x1b[2J\n"), &address());
    assert_eq!(sanitized(&failure.text()), "INTERNAL  exit code 2\n    x\u{fffd}[2J");
}

#[test]
fn json_has_what_a_program_needs() {
    let value: serde_json::Value =
        serde_json::from_str(&failure("ResourceExhausted QUEUE_FULL retry=500 execution=NOT_STARTED pool=cpu").json())
            .unwrap();
    assert_eq!(
        value,
        serde_json::json!({ "error": {
            "message": "what the server says (pool cpu); the job did not start",
            "help": "try again in 500ms, or pass --when-full wait",
            "exit_code": 4,
            "code": "RESOURCE_EXHAUSTED",
            "status_message": "what the server says",
            "reason": "QUEUE_FULL",
            "execution": "NOT_STARTED",
            "metadata": { "execution": "NOT_STARTED", "pool": "cpu" },
            "retry_after": "0.500s",
        }})
    );
}

#[test]
fn the_table_names_every_code() {
    let all = [
        Exit::Done,
        Exit::Failed,
        Exit::Usage,
        Exit::JobsLost,
        Exit::Refused,
        Exit::DeadlineExceeded,
        Exit::Unreachable,
        Exit::Interrupted,
        Exit::OutputClosed,
    ];
    for exit in all {
        let row = format!("{:>5}  ", exit.code());
        assert!(TABLE.lines().any(|line| line.starts_with(&row)), "no row for {exit:?}");
    }
}
