//! Tests of the texts and exit codes of failed calls, one case for each reason.

use std::{collections::HashMap, time::Duration};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::Failure;
use crate::{
    cli::{connect::Address, exit::Exit},
    model::Reason,
};

struct Case {
    code: Code,
    reason: &'static str,
    facts: &'static [(&'static str, &'static str)],
    retry: Option<u64>,
    text: &'static str,
    exit: Exit,
}

fn address() -> Address {
    "127.0.0.1:7070".parse().unwrap()
}

fn failure(case: &Case) -> Failure {
    let facts: HashMap<_, _> = case.facts.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let mut details = ErrorDetails::with_error_info(case.reason, "waterwheel.dev", facts);
    if let Some(ms) = case.retry {
        details.set_retry_info(Some(Duration::from_millis(ms)));
    }
    if let Some(help) = Reason::of(case.reason).map(Reason::help).filter(|help| !help.is_empty()) {
        details.add_help_link(help, "");
    }
    let status = Status::with_error_details(case.code, "what the server says", details);
    Failure::of_status(status, &address())
}

fn sanitized(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

const NOT_STARTED: (&str, &str) = ("execution", "NOT_STARTED");
const STARTED: (&str, &str) = ("execution", "STARTED");

const CASES: [Case; 30] = [
    Case {
        code: Code::FailedPrecondition,
        reason: "WRONG_STATE",
        facts: &[NOT_STARTED, ("state", "SUCCEEDED")],
        retry: None,
        text: "WRONG_STATE  what the server says (state SUCCEEDED)\n  \
               help: read the job first; a job that has not ended can be cancelled, and one that has ended can be retried",
        exit: Exit::Usage,
    },
    Case {
        code: Code::ResourceExhausted,
        reason: "QUEUE_FULL",
        facts: &[NOT_STARTED, ("pool", "cpu")],
        retry: Some(500),
        text: "QUEUE_FULL  what the server says (pool cpu); the job did not start\n  \
               help: try again in 500ms, or send it with when_full = WAIT, or when the pool has less to do",
        exit: Exit::Refused,
    },
    Case {
        code: Code::ResourceExhausted,
        reason: "QUEUE_FULL",
        facts: &[NOT_STARTED, ("pool", "cpu"), ("expected_wait_ms", "1503")],
        retry: Some(500),
        text: "QUEUE_FULL  what the server says (expected wait 1.5s, pool cpu); the job did not start\n  \
               help: try again in 500ms, or send it with when_full = WAIT, or when the pool has less to do",
        exit: Exit::Refused,
    },
    Case {
        code: Code::ResourceExhausted,
        reason: "DEADLINE_UNREACHABLE",
        facts: &[NOT_STARTED, ("expected_wait_ms", "1503"), ("queue_timeout_ms", "100")],
        retry: Some(500),
        text: "DEADLINE_UNREACHABLE  what the server says (expected wait 1.5s, queue timeout 100ms); the job did not start\n  \
               help: try again in 500ms, or give it a longer deadline or queue timeout",
        exit: Exit::Refused,
    },
    Case {
        code: Code::ResourceExhausted,
        reason: "DEADLINE_UNREACHABLE",
        facts: &[NOT_STARTED, ("expected_wait_ms", "1503"), ("needed_budget_ms", "3006"), ("budget_ms", "1000")],
        retry: Some(500),
        text: "DEADLINE_UNREACHABLE  what the server says (budget 1.0s, expected wait 1.5s, needed budget 3.0s); the job did not start\n  \
               help: try again in 500ms, or pass --deadline 3.6s",
        exit: Exit::Refused,
    },
    Case {
        code: Code::ResourceExhausted,
        reason: "DEADLINE_UNREACHABLE",
        facts: &[NOT_STARTED, ("expected_wait_ms", "0.000"), ("needed_budget_ms", "0.000"), ("budget_ms", "0.000")],
        retry: None,
        text: "DEADLINE_UNREACHABLE  what the server says (budget 0ms, expected wait 0ms, needed budget 0ms); the job did not start\n  \
               help: give it a longer deadline or queue timeout",
        exit: Exit::Refused,
    },
    Case {
        code: Code::ResourceExhausted,
        reason: "LIMIT_EXCEEDED",
        facts: &[NOT_STARTED, ("limit", "rate"), ("expected_wait_ms", "1503"), ("budget_ms", "1000")],
        retry: Some(500),
        text: "LIMIT_EXCEEDED  what the server says (budget 1.0s, expected wait 1.5s, limit rate); the job did not start\n  \
               help: try again in 500ms, or send less of this kind, or give it a longer deadline",
        exit: Exit::Refused,
    },
    Case {
        code: Code::ResourceExhausted,
        reason: "UPLOADS_FULL",
        facts: &[NOT_STARTED],
        retry: Some(1000),
        text: "UPLOADS_FULL  what the server says; the job did not start\n  \
               help: try again in 1.0s, or ask the operator to raise server.memory",
        exit: Exit::Refused,
    },
    Case {
        code: Code::ResourceExhausted,
        reason: "HEADERS_TOO_LARGE",
        facts: &[NOT_STARTED],
        retry: None,
        text: "HEADERS_TOO_LARGE  what the server says; the job did not start\n  \
               help: send less metadata or a shorter token, or ask the operator to raise server.http2.max_header_list",
        exit: Exit::Usage,
    },
    Case {
        code: Code::ResourceExhausted,
        reason: "SHED",
        facts: &[NOT_STARTED],
        retry: Some(1500),
        text: "SHED  what the server says; the job did not start\n  \
               help: try again in 1.5s, or send it with a higher criticality",
        exit: Exit::Refused,
    },
    Case {
        code: Code::ResourceExhausted,
        reason: "TENANT_SHARE",
        facts: &[NOT_STARTED, ("pool", "cpu"), ("tenant", "acme"), ("queued_jobs", "4"), ("most_jobs", "3")],
        retry: Some(1500),
        text: "TENANT_SHARE  what the server says (most jobs 3, pool cpu, queued jobs 4, tenant acme); the job did not start\n  \
               help: try again in 1.5s, or send less for this tenant, or when its queued jobs have started",
        exit: Exit::Refused,
    },
    Case {
        code: Code::PermissionDenied,
        reason: "CRITICALITY_DENIED",
        facts: &[NOT_STARTED, ("max_criticality", "SHEDDABLE_PLUS")],
        retry: None,
        text: "CRITICALITY_DENIED  what the server says (max criticality SHEDDABLE_PLUS)\n  \
               help: send a lower one, or ask the operator for a higher max_criticality in [auth.rule]",
        exit: Exit::Usage,
    },
    Case {
        code: Code::ResourceExhausted,
        reason: "QUOTA_EXCEEDED",
        facts: &[NOT_STARTED],
        retry: None,
        text: "QUOTA_EXCEEDED  what the server says; the job did not start\n  \
               help: send less for this tenant, or ask the operator for a larger quota",
        exit: Exit::Refused,
    },
    Case {
        code: Code::Unavailable,
        reason: "DRAINING",
        facts: &[NOT_STARTED],
        retry: None,
        text: "DRAINING  what the server says; the job did not start\n  \
               help: use another server, or this one when it serves again",
        exit: Exit::Refused,
    },
    Case {
        code: Code::Aborted,
        reason: "DRAIN_KILLED",
        facts: &[STARTED, ("run_ms", "750.4")],
        retry: None,
        text: "DRAIN_KILLED  what the server says (run 750ms)\n  \
               help: send it again if the work may run twice",
        exit: Exit::Failed,
    },
    Case {
        code: Code::DeadlineExceeded,
        reason: "EXPIRED_IN_QUEUE",
        facts: &[NOT_STARTED, ("queue_ms", "990")],
        retry: None,
        text: "EXPIRED_IN_QUEUE  what the server says (queue 990ms); the job did not start\n  \
               help: give it a longer deadline or queue timeout; Stats shows the wait",
        exit: Exit::DeadlineExceeded,
    },
    Case {
        code: Code::DeadlineExceeded,
        reason: "RUN_TIMEOUT",
        facts: &[STARTED, ("run_ms", "990")],
        retry: None,
        text: "RUN_TIMEOUT  what the server says (run 990ms)\n  \
               help: give it a longer deadline or run timeout",
        exit: Exit::DeadlineExceeded,
    },
    Case {
        code: Code::Unknown,
        reason: "HANDLER_FAILED",
        facts: &[STARTED, ("job", "j1")],
        retry: None,
        text: "HANDLER_FAILED  what the server says\n  \
               job j1\n  help: correct the payload if the message blames it; Explain and the server's log say more",
        exit: Exit::Failed,
    },
    Case {
        code: Code::InvalidArgument,
        reason: "HANDLER_FAILED",
        facts: &[STARTED, ("job", "j1")],
        retry: None,
        text: "HANDLER_FAILED  what the server says\n  \
               job j1\n  help: correct the payload if the message blames it; Explain and the server's log say more",
        exit: Exit::Failed,
    },
    Case {
        code: Code::Internal,
        reason: "HANDLER_PANICKED",
        facts: &[STARTED, ("job", "j1")],
        retry: None,
        text: "HANDLER_PANICKED  what the server says\n  \
               job j1\n  help: report a bug of the handler; the server's log says more",
        exit: Exit::Failed,
    },
    Case {
        code: Code::Internal,
        reason: "WORKER_CRASHED",
        facts: &[("execution", "UNKNOWN")],
        retry: None,
        text: "WORKER_CRASHED  what the server says; whether the job started is unknown\n  \
               help: report a bug of the handler; Explain and the server's log say more",
        exit: Exit::Failed,
    },
    Case {
        code: Code::InvalidArgument,
        reason: "UNKNOWN_KIND",
        facts: &[NOT_STARTED],
        retry: None,
        text: "UNKNOWN_KIND  what the server says\n  \
               help: name a kind that the server has; Stats lists them",
        exit: Exit::Usage,
    },
    Case {
        code: Code::ResourceExhausted,
        reason: "PAYLOAD_TOO_LARGE",
        facts: &[NOT_STARTED, ("size_bytes", "70000"), ("limit_bytes", "65536")],
        retry: None,
        text: "PAYLOAD_TOO_LARGE  what the server says (limit bytes 65536, size bytes 70000); the job did not start\n  \
               help: send less, or ask the operator to raise server.max_payload",
        exit: Exit::Usage,
    },
    Case {
        code: Code::ResourceExhausted,
        reason: "OUTPUT_TOO_LARGE",
        facts: &[STARTED],
        retry: None,
        text: "OUTPUT_TOO_LARGE  what the server says\n  \
               help: use Stream, or ask the operator to raise max_output",
        exit: Exit::Failed,
    },
    Case {
        code: Code::NotFound,
        reason: "NOT_FOUND",
        facts: &[],
        retry: None,
        text: "NOT_FOUND  what the server says\n  help: name an existing one; Stats and ListJobs list them",
        exit: Exit::Usage,
    },
    Case {
        code: Code::NotFound,
        reason: "NOT_FOUND",
        facts: &[NOT_STARTED, ("job", "j1")],
        retry: None,
        text: "NOT_FOUND  what the server says\n  \
               help: name an existing one; Stats and ListJobs list them",
        exit: Exit::Usage,
    },
    Case {
        code: Code::Unavailable,
        reason: "SOMETHING_NEW",
        facts: &[NOT_STARTED],
        retry: Some(2000),
        text: "SOMETHING_NEW  what the server says; the job did not start\n  \
               help: try again in 2.0s",
        exit: Exit::Refused,
    },
    Case {
        code: Code::FailedPrecondition,
        reason: "POOL_DRAINING",
        facts: &[NOT_STARTED],
        retry: None,
        text: "POOL_DRAINING  what the server says\n  \
               help: resume the pool first",
        exit: Exit::Refused,
    },
    Case {
        code: Code::FailedPrecondition,
        reason: "DRAINING",
        facts: &[NOT_STARTED],
        retry: None,
        text: "DRAINING  what the server says\n  help: use another server, or this one when it serves again",
        exit: Exit::Refused,
    },
    Case {
        code: Code::Unavailable,
        reason: "HANDLER_UNAVAILABLE",
        facts: &[NOT_STARTED],
        retry: Some(200),
        text: "HANDLER_UNAVAILABLE  what the server says; the job did not start\n  \
               help: try again in 200ms, or read the server's log if it persists",
        exit: Exit::Refused,
    },
];

#[test]
fn each_reason_has_its_words_and_its_code() {
    for case in &CASES {
        let failure = failure(case);
        assert_eq!(sanitized(&failure.text()), case.text);
        assert_eq!(failure.exit(), case.exit, "{}", case.reason);
    }
}

#[test]
fn figures_that_are_missing_leave_the_servers_words() {
    let bare = |reason| Case {
        code: Code::DeadlineExceeded,
        reason,
        facts: &[],
        retry: None,
        text: "",
        exit: Exit::DeadlineExceeded,
    };
    for reason in ["DEADLINE_UNREACHABLE", "RUN_TIMEOUT", "EXPIRED_IN_QUEUE"] {
        let text = sanitized(&failure(&bare(reason)).text());
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
    let value: serde_json::Value = serde_json::from_str(&failure(&CASES[1]).json()).unwrap();
    assert_eq!(
        value,
        serde_json::json!({ "error": {
            "message": "what the server says (pool cpu); the job did not start",
            "help": "try again in 500ms, or send it with when_full = WAIT, or when the pool has less to do",
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
