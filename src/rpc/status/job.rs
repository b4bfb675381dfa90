//! Statuses of refused and failed jobs. Other failures of calls are in `src/rpc/status.rs`.

use std::time::Duration;

use tonic::{Code, Status};

use super::{Answer, MAX_VIOLATIONS, Pushback};
use crate::model::{
    Execution, Failure, HandlerError, JobError, Outcome, Reason, Rejection, RejectionReason, RequestId, TenantPart,
};

/// The status of a job that was refused or failed.
pub(in crate::rpc) fn status(error: &JobError, request_id: &RequestId) -> Status {
    let answer = match error {
        JobError::Rejected(rejection) => rejected(rejection),
        JobError::Failed(failure) => failed(failure),
    };
    answer.status_of(Some(request_id), None)
}

fn rejected(rejection: &Rejection) -> Answer {
    let Rejection { reason, retry_after, .. } = rejection;
    if matches!(reason, RejectionReason::DeadlineUnreachable { budget: Duration::ZERO, .. }) {
        return Answer { facts: place(rejection), ..Answer::of(Reason::ExpiredInQueue).never() };
    }
    let pushback = match reason {
        // Another job of the same tenant must end first, and when is unknown.
        RejectionReason::OverInFlight { .. } | RejectionReason::PayloadTooLarge { .. } => Pushback::Never,
        _ => retry_after.map_or(Pushback::Unsaid, Pushback::after),
    };
    let message = reason.to_string();
    let facts = place(rejection).into_iter().chain(figures(rejection)).collect();
    let answer = Answer { pushback, facts, ..Answer::of(reason.reason()) };
    match reason {
        RejectionReason::Invalid { violations } => {
            let violations = violations.iter().take(MAX_VIOLATIONS);
            violations.fold(answer, |answer, violation| answer.violation(violation.field, &violation.description))
        }
        RejectionReason::UnknownKind { .. } => answer.violation("job.kind", &message),
        _ => answer,
    }
    .saying(message)
}

fn failed(failure: &Failure) -> Answer {
    let answer = Answer::of(failure.outcome.reason()).saying(failure.to_string());
    let code = match (failure.outcome, &failure.error) {
        (Outcome::HandlerFailed, Some(HandlerError::Refused { code, .. })) => Code::from_i32(*code as i32),
        (Outcome::DrainKilled { idempotent: true } | Outcome::WorkerLost { idempotent: true }, _) => Code::Unavailable,
        _ => answer.code,
    };
    let pushback = match failure.outcome {
        Outcome::HandlerUnavailable
        | Outcome::Drained
        | Outcome::DrainKilled { idempotent: true }
        | Outcome::WorkerLost { idempotent: true } => Pushback::Unsaid,
        _ => Pushback::Never,
    };
    let pushback = failure.retry_after.map_or(pushback, Pushback::after);
    let execution = match failure.execution {
        Execution::NotStarted => "NOT_STARTED",
        Execution::Started => "STARTED",
    };
    Answer { code, pushback, execution, facts: failure_facts(failure), ..answer }
}

/// The kind and the pool of a refusal.
fn place(rejection: &Rejection) -> Vec<(&'static str, String)> {
    let kind = (!rejection.kind.is_empty()).then(|| ("kind", rejection.kind.to_string()));
    let pool = rejection.pool.as_ref().map(|pool| ("pool", pool.to_string()));
    kind.into_iter().chain(pool).collect()
}

/// The figures of a refusal.
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
        | RejectionReason::NoWorkers
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
