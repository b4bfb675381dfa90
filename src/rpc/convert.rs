//! Converts messages to jobs and back. `src/model/job.rs` checks the bounds of fields.

use std::time::Duration;

use prost_types::Duration as ProtoDuration;

use crate::{
    model::{Completed, Criticality, FieldViolation, Job, JobStage, Waterfall, WhenFull},
    phase::Phase,
    pool::{ProcessState, WorkerState},
    proto,
    store::JobState,
};

/// Defines a function from an enum to the protobuf enum with the same name and variants.
macro_rules! same_variants {
    ($function:ident, $name:ident, [$($variant:ident),+]) => {
        pub(super) fn $function(value: $name) -> proto::$name {
            match value {
                $($name::$variant => proto::$name::$variant,)+
            }
        }
    };
}

same_variants!(criticality, Criticality, [Sheddable, SheddablePlus, Critical, CriticalPlus]);
same_variants!(job_stage, JobStage, [Waiting, Queued, Running, Completed, Failed]);
same_variants!(job_state, JobState, [Scheduled, Ready, Blocked, Running, Succeeded, Failed, Cancelled, Expired]);
same_variants!(phase, Phase, [Starting, Serving, Draining, Stopping, Stopped]);
same_variants!(process_state, ProcessState, [Starting, Idle, Busy, Leaving, Failing]);
same_variants!(worker_state, WorkerState, [Idle, Busy, Draining, Stopped, Stuck]);

/// A job as its caller sent it. Boxed, because it passes through many functions.
///
/// # Errors
/// Every invalid field.
pub(super) fn job(job: Option<proto::Job>) -> Result<Box<Job>, Vec<FieldViolation>> {
    let Some(job) = job else {
        return Err(vec![FieldViolation::new("job", "required")]);
    };
    let mut violations = Vec::new();
    let run_timeout = read_duration("job.run_timeout", job.run_timeout, &mut violations);
    let queue_timeout = read_duration("job.queue_timeout", job.queue_timeout, &mut violations);
    let criticality = read_criticality(job.criticality, &mut violations);
    let when_full = read_when_full(job.when_full, &mut violations);
    if !violations.is_empty() {
        return Err(violations);
    }
    // All fields are given here: to assign them one by one would first make a job of defaults.
    Ok(Box::new(Job {
        kind: job.kind,
        payload: job.payload,
        content_type: job.content_type,
        timeout: None,
        run_timeout,
        queue_timeout,
        criticality,
        tenant: job.tenant,
        ordering_key: job.ordering_key,
        limit_key: job.limit_key,
        when_full,
        labels: job.labels,
        deadline: None,
        call: None,
    }))
}

pub(super) fn job_result(completed: Completed) -> proto::JobResult {
    let Completed { job, output, waterfall } = completed;
    proto::JobResult {
        job_id: job.into(),
        output: output.bytes.into(),
        content_type: output.content_type,
        waterfall: Some(self::waterfall(waterfall)),
    }
}

pub(super) fn waterfall(waterfall: Waterfall) -> proto::Waterfall {
    let Waterfall { budget, queue, run, left, worker } = waterfall;
    proto::Waterfall {
        budget_seconds: budget.as_secs_f64(),
        queue_seconds: queue.as_secs_f64(),
        run_seconds: run.as_secs_f64(),
        left_seconds: left.as_secs_f64(),
        worker,
    }
}

pub(super) fn duration(duration: Duration) -> ProtoDuration {
    ProtoDuration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).expect("fewer than a billion"),
    }
}

pub(super) fn read_duration(
    field: &'static str,
    value: Option<ProtoDuration>,
    violations: &mut Vec<FieldViolation>,
) -> Option<Duration> {
    let value = value?;
    match (u64::try_from(value.seconds), u32::try_from(value.nanos)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 && seconds <= MAX_SECONDS => {
            Some(Duration::new(seconds, nanos))
        }
        _ => {
            violations.push(FieldViolation::new(field, "out of range; send a duration from 0 to 10,000 years"));
            None
        }
    }
}

/// Largest duration of protobuf's well-known type.
const MAX_SECONDS: u64 = 315_576_000_000;

fn read_criticality(value: i32, violations: &mut Vec<FieldViolation>) -> Criticality {
    match proto::Criticality::try_from(value) {
        Ok(proto::Criticality::Unspecified | proto::Criticality::Critical) => Criticality::Critical,
        Ok(proto::Criticality::Sheddable) => Criticality::Sheddable,
        Ok(proto::Criticality::SheddablePlus) => Criticality::SheddablePlus,
        Ok(proto::Criticality::CriticalPlus) => Criticality::CriticalPlus,
        Err(_) => {
            violations.push(FieldViolation::new("job.criticality", "unknown criticality; send a value of the enum"));
            Criticality::Critical
        }
    }
}

fn read_when_full(value: i32, violations: &mut Vec<FieldViolation>) -> Option<WhenFull> {
    match proto::WhenFull::try_from(value) {
        Ok(proto::WhenFull::Unspecified) => None,
        Ok(proto::WhenFull::Reject) => Some(WhenFull::Reject),
        Ok(proto::WhenFull::Wait) => Some(WhenFull::Wait),
        Ok(proto::WhenFull::Shed) => Some(WhenFull::Shed),
        Ok(proto::WhenFull::DropOldest) => Some(WhenFull::DropOldest),
        Err(_) => {
            violations.push(FieldViolation::new("job.when_full", "unknown policy; send a value of the enum"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unsound_field_is_named_at_once() {
        let sent = proto::Job {
            kind: "echo".into(),
            run_timeout: Some(ProtoDuration { seconds: -1, nanos: 0 }),
            queue_timeout: Some(ProtoDuration { seconds: 0, nanos: -5 }),
            criticality: 77,
            when_full: -1,
            ..proto::Job::default()
        };
        let fields: Vec<_> = job(Some(sent)).expect_err("unsound").into_iter().map(|v| v.field).collect();
        assert_eq!(fields, ["job.run_timeout", "job.queue_timeout", "job.criticality", "job.when_full"]);
        assert_eq!(job(None).expect_err("absent")[0].field, "job");
    }
}
