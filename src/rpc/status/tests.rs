use std::time::Duration;

use super::*;
use crate::model::{JobId, Limiter};

const HOUR: Duration = Duration::from_secs(3_600);

fn rejected(reason: RejectionReason) -> JobError {
    Rejection { reason, pool: Some("cpu".into()), kind: "echo".into(), retry_after: Some(HOUR) }.into()
}

fn failed(cause: FailureCause) -> JobError {
    let (queue, run, execution) = (Duration::ZERO, Duration::ZERO, Execution::NotStarted);
    let (job, kind, pool) = (JobId::next(), "echo".into(), "cpu".into());
    Failure { job, kind, pool, cause, execution, queue, run, rung: None }.into()
}

#[test]
fn no_hint_exceeds_a_minute_whatever_the_reason() {
    let limit = RejectionReason::LimitExceeded { limit: Limiter::Rate, expected: HOUR, budget: HOUR };
    for error in [
        rejected(RejectionReason::QueueFull),
        rejected(RejectionReason::OverRate { rate: 1 }),
        rejected(limit),
        failed(FailureCause::Shed { retry_after: HOUR }),
        failed(FailureCause::HandlerUnavailable { message: "none".into(), retry_after: HOUR }),
    ] {
        let status = status(&error, &RequestId::generate());
        assert_eq!(status.metadata().get(PUSHBACK).expect("a hint"), "60000", "{error:?}");
        let told = status.get_error_details().retry_info().and_then(|info| info.retry_delay);
        assert_eq!(told, Some(LONGEST_HINT), "{error:?}");
    }
}
