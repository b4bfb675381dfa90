//! Converts stored jobs to messages, and requests to filters.

use std::time::SystemTime;

use prost_types::Timestamp as ProtoTimestamp;
use tonic::Status;

use super::JobsCall;
use crate::{
    model::{FieldViolation, Job},
    proto::{self, DetachedJob, DetachedJobFilter},
    rpc::{
        convert::{criticality, duration, job_state},
        status,
    },
    store::{Attempt, Filter, JobRecord, JobState, Timestamp},
};

/// A job, with its output if the output was read.
#[must_use]
pub fn detached_job(job: JobRecord) -> DetachedJob {
    let purge_at = job.purge_at();
    let retry = job.request.policy.retry;
    let JobRecord { request, attempts, failures, cancel_requested, payload_bytes, output, .. } = job;
    DetachedJob {
        job_id: request.id,
        job: Some(work(request.job)),
        state: job_state(job.state).into(),
        request_id: request.request_id,
        create_time: Some(time(job.created_at)),
        due_time: Some(time(job.due_at)),
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
    }
}

fn work(job: Job) -> proto::Job {
    proto::Job {
        kind: job.kind,
        payload: job.payload,
        content_type: job.content_type,
        run_timeout: job.run_timeout.map(duration),
        queue_timeout: None,
        criticality: criticality(job.criticality).into(),
        tenant: job.tenant,
        ordering_key: job.ordering_key,
        when_full: 0,
        labels: job.labels,
        limit_key: job.limit_key,
    }
}

fn attempt(attempt: Attempt) -> proto::Attempt {
    let Attempt { number, started_at, ended_at, worker, outcome, code, message } = attempt;
    let outcome = outcome.map_or_else(String::new, |reason| reason.name().to_owned());
    let (start_time, end_time) = (Some(time(started_at)), Some(time(ended_at)));
    proto::Attempt { number, start_time, end_time, worker, outcome, code, message }
}

/// The filter of a call, restricted to what its caller may see.
pub(super) fn filter(asked: &JobsCall, filter: DetachedJobFilter) -> Result<Filter, Status> {
    let mut faults = Vec::new();
    let is_known = |wanted: &JobState| filter.states().any(|sent| sent == job_state(*wanted));
    let states: Vec<_> = JobState::ALL.into_iter().filter(is_known).collect();
    let is_state = |sent: &i32| proto::JobState::try_from(*sent).is_ok_and(|it| it != proto::JobState::Unspecified);
    if !filter.states.iter().all(is_state) {
        faults.push(FieldViolation::new("filter.states", "not a state; send values of the enum"));
    }
    if filter.label_key.is_empty() && !filter.label_value.is_empty() {
        faults.push(FieldViolation::new("filter.label_key", "missing; send the label of the value"));
    }
    let DetachedJobFilter { states: _, kind, tenant, label_key, label_value, created_from, created_before } = filter;
    let kind = Some(kind).filter(|kind| !kind.is_empty());
    let filter = Filter {
        states,
        tenant: asked.service.access.tenant(asked.rpc, &asked.call, kind.as_deref(), tenant.as_deref())?,
        kind,
        label: Some((label_key, label_value)).filter(|(key, _)| !key.is_empty()),
        created_from: read_time("filter.created_from", created_from, &mut faults),
        created_before: read_time("filter.created_before", created_before, &mut faults),
    };
    if faults.is_empty() { Ok(filter) } else { Err(status::unreadable(faults, asked.call.request_id())) }
}

/// A wall-clock time from 1970 on.
pub(super) fn read_time(
    field: &'static str,
    time: Option<ProtoTimestamp>,
    faults: &mut Vec<FieldViolation>,
) -> Option<Timestamp> {
    let read = SystemTime::try_from(time?).ok().filter(|time| *time >= SystemTime::UNIX_EPOCH);
    if read.is_none() {
        faults.push(FieldViolation::new(field, "out of range; send a time from 1970 to 9999"));
    }
    read.map(Timestamp::from)
}

fn time(time: Timestamp) -> ProtoTimestamp {
    SystemTime::from(time).into()
}
