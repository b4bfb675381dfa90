//! Conversion of messages to jobs and back. Bounds of fields are checked in `src/model/job/check.rs`.

use std::time::Duration;

use prost_types::Duration as ProtoDuration;

use crate::{
    model::{Completed, Criticality, FieldViolation, Job, JobStage, Waterfall, WhenFull},
    phase::Phase,
    proto,
};

/// Stage of a job.
pub(super) fn job_stage(stage: JobStage) -> proto::JobStage {
    match stage {
        JobStage::Waiting => proto::JobStage::Waiting,
        JobStage::Queued => proto::JobStage::Queued,
        JobStage::Running => proto::JobStage::Running,
        JobStage::Completed => proto::JobStage::Completed,
        JobStage::Failed => proto::JobStage::Failed,
    }
}

/// A job as its caller sent it. Boxed, because it passes through many functions.
///
/// # Errors
/// Every invalid field.
pub(super) fn job(job: Option<proto::Job>) -> Result<Box<Job>, Vec<FieldViolation>> {
    let Some(job) = job else {
        return Err(vec![FieldViolation::new("job", "required")]);
    };
    let mut violations = Vec::new();
    let proto::Job {
        kind,
        payload,
        content_type,
        run_timeout,
        queue_timeout,
        criticality,
        tenant,
        ordering_key,
        when_full,
        labels,
        limit_key,
    } = job;
    let run_timeout = read_duration("job.run_timeout", run_timeout, &mut violations);
    let queue_timeout = read_duration("job.queue_timeout", queue_timeout, &mut violations);
    let criticality = read_criticality(criticality, &mut violations);
    let when_full = read_when_full(when_full, &mut violations);
    if !violations.is_empty() {
        return Err(violations);
    }
    // As a whole: assigning field by field would drop each default value first.
    Ok(Box::new(Job {
        kind,
        payload,
        content_type,
        timeout: None,
        run_timeout,
        queue_timeout,
        criticality,
        tenant,
        ordering_key,
        limit_key,
        when_full,
        labels,
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
    let [budget, queue, run, left] = [budget, queue, run, left].map(|part| Some(duration(part)));
    proto::WaterfallParts { budget, queue, run, left, worker }.into()
}

pub(super) fn duration(duration: Duration) -> ProtoDuration {
    ProtoDuration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).expect("fewer than a billion"),
    }
}

pub(super) fn phase(phase: Phase) -> proto::Phase {
    match phase {
        Phase::Starting => proto::Phase::Starting,
        Phase::Serving => proto::Phase::Serving,
        Phase::Draining => proto::Phase::Draining,
        Phase::Stopping => proto::Phase::Stopping,
        Phase::Stopped => proto::Phase::Stopped,
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
