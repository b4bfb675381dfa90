//! The statuses of refused and failed jobs, and of calls for detached jobs. `src/rpc/status.rs` has those of other
//! failures.

use std::time::Duration;

use tonic::{Code, Status};

use super::{FailedCall, MAX_JOB_ID, MAX_VIOLATIONS, Pushback};
use crate::{
    model::{
        Execution, Failure, HandlerError, JobError, Outcome, Reason, Rejection, RejectionReason, RequestId, TenantPart,
    },
    rpc::status_message::shorten,
    store::{Full, JobState, StoreError},
};

/// Retry time while the store fails.
const FAILS_FOR: Duration = Duration::from_secs(1);
/// Retry time while the backlog is full.
const FULL_FOR: Duration = Duration::from_secs(5);

/// The status of a job that was refused or failed.
pub(in crate::rpc) fn status(error: &JobError, request_id: &RequestId) -> Status {
    let call = match error {
        JobError::Rejected(rejection) => rejected(rejection),
        JobError::Failed(failure) => failed(failure),
    };
    call.status_of(Some(request_id), None)
}

fn rejected(rejection: &Rejection) -> FailedCall {
    let Rejection { reason, retry_after, .. } = rejection;
    // Its time has passed, whatever room there is.
    if matches!(reason, RejectionReason::DeadlineUnreachable { budget: Duration::ZERO, .. }) {
        return FailedCall { facts: place(rejection), ..FailedCall::of(Reason::ExpiredInQueue).never() };
    }
    let pushback = match reason {
        // Another job of the same tenant must end first, at an unknown time.
        RejectionReason::OverInFlight { .. } | RejectionReason::PayloadTooLarge { .. } => Pushback::Never,
        RejectionReason::DeadlineUnreachable { .. } => retry_after.map_or(Pushback::Never, Pushback::after),
        _ => retry_after.map_or(Pushback::Unsaid, Pushback::after),
    };
    let message = reason.to_string();
    let facts = place(rejection).into_iter().chain(figures(rejection)).collect();
    let call = FailedCall { pushback, facts, ..FailedCall::of(reason.reason()) };
    match reason {
        RejectionReason::Invalid { violations } => {
            let violations = violations.iter().take(MAX_VIOLATIONS);
            violations.fold(call, |call, violation| call.violation(violation.field, &violation.description))
        }
        RejectionReason::UnknownKind { .. } => call.violation("job.kind", &message),
        _ => call,
    }
    .saying(message)
}

fn failed(failure: &Failure) -> FailedCall {
    let call = FailedCall::of(failure.outcome.reason()).saying(failure.to_string());
    let code = match (failure.outcome, &failure.error) {
        (Outcome::HandlerFailed, Some(HandlerError::Refused { code, .. })) => Code::from_i32(*code as i32),
        (Outcome::DrainKilled { idempotent: true } | Outcome::WorkerLost { idempotent: true }, _) => Code::Unavailable,
        _ => call.code,
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
    FailedCall { code, pushback, execution, facts: failure_facts(failure), ..call }
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
        RejectionReason::NoWorkers { needed: Duration::ZERO, .. } => Vec::new(),
        RejectionReason::DeadlineUnreachable { expected, needed, budget }
        | RejectionReason::NoWorkers { expected, needed, budget } => vec![
            ("expected_wait_ms", millis(*expected)),
            ("needed_timeout_ms", needed.as_millis().to_string()),
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
    match failure.outcome {
        Outcome::DeadlineExceeded => facts.push(("limit", "deadline".to_owned())),
        Outcome::RunTimeout => facts.push(("limit", "run_timeout".to_owned())),
        _ => {}
    }
    if let Some(HandlerError::OutputTooLarge { limit }) = failure.error {
        facts.push(("limit_bytes", limit.to_string()));
    }
    facts
}

fn millis(duration: Duration) -> String {
    format!("{:.3}", duration.as_secs_f64() * 1e3)
}

/// The status of a call whose write to the store failed.
pub(in crate::rpc) fn write_failure(error: StoreError) -> Status {
    if error == StoreError::Busy {
        let call = FailedCall::of(Reason::StoreFull).saying(error.to_string());
        return FailedCall { pushback: Pushback::After(FAILS_FOR), ..call }.status();
    }
    let execution = if error.is_doubtful() { "UNKNOWN" } else { "NOT_STARTED" };
    FailedCall { execution, ..unavailable(&error) }.status()
}

/// The status of a call that suspended or resumed a pool of this server, where the store has not noted it.
pub(in crate::rpc) fn not_told(error: StoreError) -> Status {
    let said = format!("done on this server, but its store did not note it for others and for a restart: {error}");
    unavailable(&error).saying(said).status()
}

/// The status of a call that would have to wait for a failing store.
pub(in crate::rpc) fn store_unavailable(cause: &StoreError) -> Status {
    unavailable(cause).status()
}

/// The status of a call that could not read the store.
pub(in crate::rpc) fn read_failure(error: StoreError) -> Status {
    FailedCall { help: "", ..unavailable(&error) }.status()
}

/// Says what only an operator can mend. Paths are not for callers.
fn unavailable(cause: &StoreError) -> FailedCall {
    let call = FailedCall::of(Reason::StoreUnavailable);
    let call = match cause {
        StoreError::DiskFull | StoreError::NoRoom => {
            call.saying("the disk of the store of detached jobs is full; its operator has to make room")
        }
        StoreError::Corrupt(_) | StoreError::Damaged { .. } | StoreError::File { .. } => call
            .saying("the file of the store of detached jobs is damaged or gone; its operator has to look at the log"),
        _ => call,
    };
    FailedCall { pushback: Pushback::After(FAILS_FOR), ..call }
}

/// The status of a job that does not fit in the backlog.
pub(in crate::rpc) fn store_full(full: Full) -> Status {
    let call = match full {
        Full::Backlog => FailedCall::of(Reason::StoreFull),
        Full::Quota { held, quota } => {
            let held = [("stored_jobs", held.jobs), ("stored_bytes", held.bytes)];
            let most = [("most_jobs", quota.max_jobs), ("most_bytes", quota.max_bytes)];
            // A quota may bound only one of the two.
            let figures = held.into_iter().chain(most).filter(|(_, figure)| *figure < u64::MAX);
            let facts = figures.map(|(name, figure)| (name, figure.to_string())).collect();
            let call = FailedCall::of(Reason::QuotaExceeded).saying("the tenant has used up its quota of stored jobs");
            FailedCall { facts, ..call }
        }
    };
    FailedCall { pushback: Pushback::After(FULL_FOR), ..call }.status()
}

/// The status of a job whose id another job has.
pub(in crate::rpc) fn job_exists(job: &str) -> Status {
    FailedCall::of(Reason::JobExists).never().fact("job", shorten(job, MAX_JOB_ID)).status()
}

/// The status of a job that cannot join its group.
pub(in crate::rpc) fn group_not_open(group: &str, what: &'static str) -> Status {
    FailedCall::of(Reason::GroupNotOpen).saying(what).never().fact("group", shorten(group, MAX_JOB_ID)).status()
}

/// The status of a call that the state of the job does not allow.
pub(in crate::rpc) fn wrong_state(job: &str, state: JobState) -> Status {
    let call = FailedCall::of(Reason::WrongState).fact("job", shorten(job, MAX_JOB_ID));
    call.fact("state", format!("{state:?}").to_uppercase()).status()
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt;

    use super::{super::PUSHBACK, *};
    use crate::model::{JobId, Limiter, MAX_RETRY_AFTER};

    const HOUR: Duration = Duration::from_secs(3_600);

    fn rejected(reason: RejectionReason) -> JobError {
        Rejection { reason, pool: Some("cpu".into()), kind: "echo".into(), retry_after: Some(HOUR) }.into()
    }

    fn failed(outcome: Outcome, wait: Duration) -> JobError {
        let (execution, retry_after) = (Execution::NotStarted, Some(wait));
        let (job, kind, pool) = (JobId::next(), "echo".into(), "cpu".into());
        let (queue, run) = (wait, wait);
        let failure = Failure { job, kind, pool, outcome, error: None, retry_after, execution, queue, run, rung: None };
        JobError::Failed(Box::new(failure))
    }

    #[test]
    fn no_hint_exceeds_a_minute_whatever_the_reason() {
        let limit = RejectionReason::LimitExceeded { limit: Limiter::Rate, expected: HOUR, budget: HOUR };
        for error in [
            rejected(RejectionReason::QueueFull),
            rejected(RejectionReason::OverRate { rate: 1 }),
            rejected(limit),
            failed(Outcome::Shed, HOUR),
            failed(Outcome::HandlerUnavailable, HOUR),
        ] {
            let status = status(&error, &RequestId::generate());
            assert_eq!(status.metadata().get(PUSHBACK).expect("a hint"), "60000", "{error:?}");
            let told = status.get_error_details().retry_info().and_then(|info| info.retry_delay);
            assert_eq!(told, Some(MAX_RETRY_AFTER), "{error:?}");
        }
    }

    #[test]
    fn the_hint_in_milliseconds_is_rounded_up() {
        let status = status(&failed(Outcome::Shed, Duration::from_micros(1_000_001)), &RequestId::generate());
        assert_eq!(status.metadata().get(PUSHBACK).expect("a hint"), "1001");
    }

    #[test]
    fn the_sentence_is_the_same_for_each_reason_and_the_figures_are_beside_it() {
        let told = |seconds| {
            let wait = Duration::from_secs(seconds);
            let errors = [
                rejected(RejectionReason::DeadlineUnreachable { expected: wait, needed: wait, budget: wait }),
                rejected(RejectionReason::QueueTooLong { expected: wait }),
                rejected(RejectionReason::WaitTooLong { expected: wait, patience: wait }),
                rejected(RejectionReason::LimitExceeded { limit: Limiter::Rate, expected: wait, budget: wait }),
                rejected(RejectionReason::OverRate { rate: seconds as u32 }),
                rejected(RejectionReason::OverInFlight { limit: seconds as usize }),
                rejected(RejectionReason::PayloadTooLarge { size: seconds as usize, limit: 1 }),
                failed(Outcome::RunTimeout, wait),
                failed(Outcome::ExpiredInQueue, wait),
            ];
            errors.map(|error| {
                let status = status(&error, &RequestId::generate());
                let facts = status.get_error_details().error_info().expect("always").metadata.clone();
                (status.message().to_owned(), facts)
            })
        };
        for ((one, facts), (other, other_facts)) in told(1).into_iter().zip(told(2)) {
            assert_eq!(one, other);
            assert_ne!(facts, other_facts, "{one}");
        }
    }

    #[test]
    fn a_stopped_job_says_which_limit_it_reached() {
        for (outcome, limit) in [(Outcome::DeadlineExceeded, "deadline"), (Outcome::RunTimeout, "run_timeout")] {
            let status = status(&failed(outcome, Duration::ZERO), &RequestId::generate());
            let info = status.get_error_details().error_info().expect("always").clone();
            assert_eq!((&*info.reason, &*info.metadata["limit"]), ("RUN_TIMEOUT", limit));
        }
    }

    #[test]
    fn a_failure_of_the_store_says_whether_it_may_have_stored_something() {
        for (error, execution) in [
            (StoreError::DiskFull, "UNKNOWN"),
            (StoreError::Unavailable(String::new()), "UNKNOWN"),
            (StoreError::NoRoom, "NOT_STARTED"),
            (StoreError::Closed, "NOT_STARTED"),
            (StoreError::Busy, "NOT_STARTED"),
        ] {
            let [written, read] = [write_failure(error.clone()), read_failure(error)].map(|it| it.get_error_details());
            let executions = [&written, &read].map(|it| it.error_info().expect("always").metadata["execution"].clone());
            assert_eq!(executions, [execution, "NOT_STARTED"]);
            assert!(written.help().is_some() && read.help().is_none(), "a read has no job_id to send again");
        }
    }

    #[test]
    fn a_job_without_time_is_late_and_not_refused_for_want_of_room() {
        let none = Duration::ZERO;
        let error = rejected(RejectionReason::DeadlineUnreachable { expected: none, needed: none, budget: none });
        let status = status(&error, &RequestId::generate());
        let reason = status.get_error_details().error_info().expect("always").reason.clone();
        assert_eq!((status.code(), reason.as_str()), (Code::DeadlineExceeded, "EXPIRED_IN_QUEUE"));
        assert_eq!(status.metadata().get(PUSHBACK).expect("never again"), "-1");
    }
}
