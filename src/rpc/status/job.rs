//! How the ends of jobs become statuses.

use std::time::Duration;

use tonic::{Code, Status};

use super::{Answer, Pushback, VIOLATIONS};
use crate::model::{
    Execution, Failure, FailureCode, HandlerError, JobError, Outcome, Rejection, RejectionReason, RequestId, TenantPart,
};

/// The one place where the ends of jobs become statuses.
pub(in crate::rpc) fn status(error: &JobError, request_id: &RequestId) -> Status {
    let answer = match error {
        JobError::Rejected(rejection) => rejected(rejection),
        JobError::Failed(failure) => failed(failure),
    };
    answer.status_of(Some(request_id), None)
}

fn rejected(rejection: &Rejection) -> Answer {
    let Rejection { reason, retry_after, .. } = rejection;
    let pushback = || retry_after.map_or(Pushback::Unsaid, Pushback::after);
    let (code, pushback) = match reason {
        RejectionReason::DeadlineUnreachable { budget: Duration::ZERO, .. } => {
            let message = "the job's time was up when it arrived";
            let answer = Answer::new(Code::DeadlineExceeded, "EXPIRED_IN_QUEUE", message);
            return Answer { facts: place(rejection), ..answer.never() };
        }
        RejectionReason::QueueFull
        | RejectionReason::QueueTooLong { .. }
        | RejectionReason::NoRoomInTime
        | RejectionReason::DeadlineUnreachable { .. }
        | RejectionReason::WaitTooLong { .. }
        | RejectionReason::TenantShare { .. }
        | RejectionReason::LimitExceeded { .. }
        | RejectionReason::OverRate { .. } => (Code::ResourceExhausted, pushback()),
        // It ends with another job of the same tenant, whose time nobody knows.
        RejectionReason::OverInFlight { .. } => (Code::ResourceExhausted, Pushback::Never),
        RejectionReason::Draining | RejectionReason::PoolDraining => (Code::Unavailable, Pushback::Unsaid),
        RejectionReason::UnknownKind { .. } | RejectionReason::Invalid { .. } => {
            (Code::InvalidArgument, Pushback::Unsaid)
        }
        RejectionReason::PayloadTooLarge { .. } => (Code::ResourceExhausted, Pushback::Never),
    };
    let mut answer =
        Answer { pushback, facts: place(rejection), ..Answer::new(code, reason.name(), reason.to_string()) };
    answer.facts.extend(figures(rejection));
    match reason {
        RejectionReason::Invalid { violations } => {
            let violations = violations.iter().take(VIOLATIONS);
            violations.fold(answer, |answer, violation| answer.violation(violation.field, &violation.description))
        }
        RejectionReason::UnknownKind { .. } => {
            let description = answer.message.clone();
            answer.violation("job.kind", &description)
        }
        _ => answer,
    }
}

fn failed(failure: &Failure) -> Answer {
    let (code, otherwise) = match failure.outcome {
        Outcome::HandlerFailed => (handler_code(failure.error.as_ref()), Pushback::Never),
        Outcome::WorkerCrashed | Outcome::HandlerPanicked => (Code::Internal, Pushback::Never),
        Outcome::OutputTooLarge | Outcome::Shed => (Code::ResourceExhausted, Pushback::Never),
        Outcome::HandlerUnavailable | Outcome::Drained | Outcome::DrainKilled { idempotent: true } => {
            (Code::Unavailable, Pushback::Unsaid)
        }
        Outcome::DrainKilled { idempotent: false } => (Code::Aborted, Pushback::Never),
        Outcome::DeadlineExceeded | Outcome::RunTimeout | Outcome::ExpiredInQueue => {
            (Code::DeadlineExceeded, Pushback::Never)
        }
        Outcome::Cancelled | Outcome::CancelledByOperator => (Code::Cancelled, Pushback::Never),
        Outcome::Completed => (Code::Internal, Pushback::Never),
    };
    let pushback = failure.retry_after.map_or(otherwise, Pushback::after);
    let execution = match failure.execution {
        Execution::NotStarted => "NOT_STARTED",
        Execution::Started => "STARTED",
    };
    let facts = failure_facts(failure);
    Answer { pushback, execution, facts, ..Answer::new(code, failure.outcome.reason(), failure.to_string()) }
}

/// The code that a handler answered with.
fn handler_code(error: Option<&HandlerError>) -> Code {
    let Some(HandlerError::Refused { code, .. }) = error else { return Code::Unknown };
    match code {
        FailureCode::Unknown => Code::Unknown,
        FailureCode::InvalidArgument => Code::InvalidArgument,
        FailureCode::NotFound => Code::NotFound,
        FailureCode::AlreadyExists => Code::AlreadyExists,
        FailureCode::PermissionDenied => Code::PermissionDenied,
        FailureCode::FailedPrecondition => Code::FailedPrecondition,
        FailureCode::OutOfRange => Code::OutOfRange,
        FailureCode::Unimplemented => Code::Unimplemented,
        FailureCode::Unavailable => Code::Unavailable,
        FailureCode::DataLoss => Code::DataLoss,
    }
}

/// Where it was refused.
fn place(rejection: &Rejection) -> Vec<(&'static str, String)> {
    let kind = (!rejection.kind.is_empty()).then(|| ("kind", rejection.kind.to_string()));
    let pool = rejection.pool.as_ref().map(|pool| ("pool", pool.to_string()));
    kind.into_iter().chain(pool).collect()
}

/// What it was refused by.
fn figures(rejection: &Rejection) -> Vec<(&'static str, String)> {
    match &rejection.reason {
        RejectionReason::DeadlineUnreachable { expected, needed, budget } => vec![
            ("expected_wait_ms", millis(*expected)),
            ("needed_budget_ms", millis(*needed)),
            ("budget_ms", millis(*budget)),
        ],
        RejectionReason::QueueTooLong { expected } => vec![("expected_wait_ms", millis(*expected))],
        RejectionReason::WaitTooLong { expected, patience } => {
            vec![("expected_wait_ms", millis(*expected)), ("queue_timeout_ms", millis(*patience))]
        }
        RejectionReason::TenantShare { tenant, part } => {
            let TenantPart { jobs, bytes, most_jobs, most_bytes } = part;
            let pool = rejection.pool.as_deref().unwrap_or_default();
            vec![
                ("tenant", tenant.clone()),
                ("key", format!("pool.{pool}.tenant_share")),
                ("queued_jobs", jobs.to_string()),
                ("queued_bytes", bytes.to_string()),
                ("most_jobs", most_jobs.to_string()),
                ("most_bytes", most_bytes.to_string()),
            ]
        }
        RejectionReason::LimitExceeded { limit, expected, budget } => vec![
            ("limit", limit.name().to_owned()),
            ("expected_wait_ms", millis(*expected)),
            ("budget_ms", millis(*budget)),
        ],
        RejectionReason::OverRate { rate } => vec![("rate", rate.to_string())],
        RejectionReason::OverInFlight { limit } => vec![("in_flight", limit.to_string())],
        RejectionReason::PayloadTooLarge { size, limit } => {
            vec![("size_bytes", size.to_string()), ("limit_bytes", limit.to_string())]
        }
        RejectionReason::QueueFull
        | RejectionReason::NoRoomInTime
        | RejectionReason::Draining
        | RejectionReason::PoolDraining
        | RejectionReason::UnknownKind { .. }
        | RejectionReason::Invalid { .. } => Vec::new(),
    }
}

fn failure_facts(failure: &Failure) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("job", failure.job.to_string()),
        ("kind", failure.kind.to_string()),
        ("pool", failure.pool.to_string()),
        ("queue_ms", millis(failure.queue)),
        ("run_ms", millis(failure.run)),
    ];
    facts.extend(failure.rung.map(|rung| ("rung", rung.to_string())));
    if let Some(HandlerError::OutputTooLarge { limit }) = failure.error {
        facts.push(("limit_bytes", limit.to_string()));
    }
    facts
}

fn millis(duration: Duration) -> String {
    format!("{:.3}", duration.as_secs_f64() * 1e3)
}
