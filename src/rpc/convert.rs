//! Converts messages to jobs and back, and detached jobs to messages. `src/model/job.rs` checks the limits of fields.

use std::time::{Duration, SystemTime};

use prost_types::{Duration as ProtoDuration, Timestamp as ProtoTimestamp};
use tokio::time::Instant;

use crate::{
    detached::{Detached, Schedule, wall_clock},
    handler::Context,
    model::{AttemptToken, Completed, Criticality, FieldViolation, Job, JobStage, ProgressReport, Waterfall, WhenFull},
    monitor::StoreState,
    phase::Phase,
    pool::{ProcessState, WorkerState},
    proto,
    store::{Attempt, Group, JobRecord, JobState, Timestamp},
};

/// Largest duration of protobuf's well-known type, in seconds.
const MAX_SECONDS: u64 = 315_576_000_000;

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

same_variants!(criticality_to_wire, Criticality, [Sheddable, SheddablePlus, Critical, CriticalPlus]);
same_variants!(job_stage, JobStage, [Waiting, Queued, Running, Completed, Failed]);
same_variants!(job_state, JobState, [Scheduled, Ready, Blocked, Running, Succeeded, Failed, Cancelled, Expired]);
same_variants!(store_state, StoreState, [Ok, Away, ReadOnly]);
same_variants!(phase, Phase, [Starting, Serving, Draining, Stopping, Stopped]);
same_variants!(process_state, ProcessState, [Starting, Idle, Busy, Leaving, Failing]);
same_variants!(when_full_to_wire, WhenFull, [Reject, Wait, Shed, DropOldest]);
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
    let classes = Criticality::BY_IMPORTANCE;
    let criticality = read_enum("job.criticality", job.criticality, classes, criticality_to_wire, &mut violations);
    let policies = [WhenFull::Reject, WhenFull::Wait, WhenFull::Shed, WhenFull::DropOldest];
    let when_full = read_enum("job.when_full", job.when_full, policies, when_full_to_wire, &mut violations);
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
        criticality: criticality.unwrap_or_default(),
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

/// A job, with its output if the output was read.
pub fn detached_job(job: JobRecord) -> proto::DetachedJob {
    let purge_at = job.purge_at();
    let due_time = if job.waits_for_group() { None } else { Some(time(job.due_at)) };
    let retry = job.request.policy.retry;
    let JobRecord { request, attempts, failures, cancel_requested, payload_bytes, output, .. } = job;
    proto::DetachedJob {
        job_id: request.id,
        job: Some(wire_job(request.job)),
        state: job_state(job.state).into(),
        request_id: request.request_id,
        create_time: Some(time(job.created_at)),
        due_time,
        start_time: job.started_at.map(time),
        end_time: job.ended_at.map(time),
        expire_time: request.expire_at.map(time),
        purge_time: purge_at.map(time),
        attempts: attempts.into_iter().map(attempt).collect(),
        failures,
        retry: Some(proto::RetryPolicy {
            max_attempts: retry.max_attempts,
            initial: Some(duration(retry.initial)),
            max: Some(duration(retry.max)),
        }),
        cancel_requested,
        payload_bytes,
        output_bytes: job.output_bytes,
        output: output.bytes.into(),
        output_type: output.content_type,
        progress: None,
    }
}

/// A job as the store has it, with the attempt that runs, and what is known of its run on this server.
pub(super) fn detached_job_here(detached: &Detached, job: JobRecord) -> proto::DetachedJob {
    if job.state != JobState::Running {
        return detached_job(job);
    }
    let (number, start_time) = (job.starts, job.started_at.map(time));
    let is_this = |token: &AttemptToken| (token.row, token.number) == (job.row, number);
    let run = detached.run_of(&job.request.id).filter(|run| run.attempt().is_some_and(is_this));
    let mut job = detached_job(job);
    let mut attempt = proto::Attempt { number, start_time, ..proto::Attempt::default() };
    if let Some(run) = &run {
        attempt.job_id = run.job().into();
        attempt.worker =
            if run.waited().is_some() { format!("{}/{}", run.pool(), run.worker()) } else { String::new() };
        attempt.runner = run.runner().map(ToString::to_string).unwrap_or_default();
    }
    job.attempts.push(attempt);
    job.progress = run.as_ref().and_then(progress);
    job
}

fn progress(run: &Context) -> Option<proto::JobProgress> {
    let ProgressReport { fraction, message, at } = run.running_attempt()?.watch().borrow().progress.clone()?;
    Some(proto::JobProgress { fraction, message, time: Some(time_before(at.elapsed())) })
}

pub(super) fn listed_schedule((schedule, ticks): (Schedule, Vec<Timestamp>)) -> proto::ListedSchedule {
    let Schedule { name, cron, timezone, kind, payload: _, overlap: _ } = schedule;
    proto::ListedSchedule { name, cron, timezone, kind, next_times: ticks.into_iter().map(time).collect() }
}

pub(super) fn job_group(group: Group) -> proto::JobGroup {
    let Group { kind, outcome, pattern: message, jobs: count, first_end, last_end, tenants, tenant_count, newest } =
        group;
    proto::JobGroup {
        kind,
        outcome,
        message,
        count,
        first_end_time: first_end.map(time),
        last_end_time: last_end.map(time),
        tenants: tenants.into_iter().take(tenant_count as usize).collect(),
        tenant_count,
        newest_job_id: newest,
    }
}

fn wire_job(job: Job) -> proto::Job {
    proto::Job {
        kind: job.kind,
        payload: job.payload,
        content_type: job.content_type,
        run_timeout: job.run_timeout.map(duration),
        // A detached job has neither a time in the queue nor a policy for a full pool: it waits in the store.
        queue_timeout: None,
        criticality: criticality_to_wire(job.criticality).into(),
        tenant: job.tenant,
        ordering_key: job.ordering_key,
        // UNSPECIFIED.
        when_full: 0,
        labels: job.labels,
        limit_key: job.limit_key,
    }
}

fn attempt(attempt: Attempt) -> proto::Attempt {
    let Attempt { number, started_at, ended_at, worker, outcome, code, message } = attempt;
    let outcome = outcome.map_or_else(String::new, |reason| reason.name().to_owned());
    let (start_time, end_time) = (Some(time(started_at)), Some(time(ended_at)));
    let known = proto::Attempt::default();
    proto::Attempt { number, start_time, end_time, worker, outcome, code, message, ..known }
}

pub(super) fn time(time: Timestamp) -> ProtoTimestamp {
    SystemTime::from(time).into()
}

/// The time so long ago.
pub(super) fn time_before(age: Duration) -> ProtoTimestamp {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    (SystemTime::UNIX_EPOCH + now.saturating_sub(age)).into()
}

/// The time in so long.
pub(super) fn time_after(wait: Duration) -> ProtoTimestamp {
    time(wall_clock()().plus(wait))
}

/// The time of an instant that has passed, by the clock of the system.
pub(super) fn instant(at: Instant) -> ProtoTimestamp {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    (SystemTime::UNIX_EPOCH + now.saturating_sub(at.elapsed())).into()
}

pub(super) fn duration(duration: Duration) -> ProtoDuration {
    ProtoDuration::try_from(duration).unwrap_or(ProtoDuration { seconds: i64::MAX, nanos: 0 })
}

pub(super) fn read_duration(
    field: &'static str,
    value: Option<ProtoDuration>,
    violations: &mut Vec<FieldViolation>,
) -> Option<Duration> {
    let read = Duration::try_from(value?).ok().filter(|duration| duration.as_secs() <= MAX_SECONDS);
    if read.is_none() {
        violations.push(FieldViolation::new(field, "out of range; send a duration from 0 to 10,000 years"));
    }
    read
}

/// Of `variants`, the one that `to_wire` converts to `number`. 0, which is UNSPECIFIED in every enum, is `None`.
fn read_enum<E: Copy, W: Into<i32>>(
    field: &'static str,
    number: i32,
    variants: [E; 4],
    to_wire: fn(E) -> W,
    violations: &mut Vec<FieldViolation>,
) -> Option<E> {
    let read = variants.into_iter().find(|variant| to_wire(*variant).into() == number);
    if read.is_none() && number != 0 {
        violations.push(FieldViolation::new(field, "unknown number; send a value of the enum"));
    }
    read
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
