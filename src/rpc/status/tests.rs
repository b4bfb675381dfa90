//! Tests of statuses: sizes, pushback, details.

use std::time::Duration;

use super::*;
use crate::model::{Execution, Failure, JobError, JobId, Limiter, Outcome};

const HOUR: Duration = Duration::from_secs(3_600);

fn rejected(reason: RejectionReason) -> JobError {
    Rejection { reason, pool: Some("cpu".into()), kind: "echo".into(), retry_after: Some(HOUR) }.into()
}

fn failed(outcome: Outcome, wait: Duration) -> JobError {
    let (execution, retry_after) = (Execution::NotStarted, Some(wait));
    let (job, kind, pool) = (JobId::next(), "echo".into(), "cpu".into());
    Failure { job, kind, pool, outcome, error: None, retry_after, execution, queue: wait, run: wait, rung: None }.into()
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
fn a_job_without_time_is_late_and_not_refused_for_want_of_room() {
    let none = Duration::ZERO;
    let error = rejected(RejectionReason::DeadlineUnreachable { expected: none, needed: none, budget: none });
    let status = status(&error, &RequestId::generate());
    let reason = status.get_error_details().error_info().expect("always").reason.clone();
    assert_eq!((status.code(), reason.as_str()), (Code::DeadlineExceeded, "EXPIRED_IN_QUEUE"));
    assert_eq!(status.metadata().get(PUSHBACK).expect("never again"), "-1");
}
