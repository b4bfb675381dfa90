//! `CreateJob`.

use std::time::Duration;

use tonic::Status;

use super::{Asked, convert};
use crate::{
    auth::Rpc,
    detached::{KindPolicy, SCHEDULE_PREFIX},
    model::{Criticality, FieldViolation, RequestId},
    proto::{self, CreateJobRequest, CreateJobResponse, JobOptions, job_options},
    rpc::{convert as messages, status},
    store::{NewJob, RetryPolicy, Start, Submitted},
};

/// Longest time that a job is kept after its end.
const MAX_RETAINED: Duration = Duration::from_secs(366 * 24 * 3600);

/// Creates one job, and answers once it is durable.
pub(super) async fn create_job(asked: &Asked, request: CreateJobRequest) -> Result<CreateJobResponse, Status> {
    let Asked { parts, call, .. } = asked;
    if parts.pools.is_closing() {
        return Err(status::draining(call.request_id()));
    }
    let unreadable = |violations| status::unreadable(violations, call.request_id());
    let refused = |rejection: crate::model::Rejection| status::status(&rejection.into(), call.request_id());
    let mut job = read(asked, request).map_err(unreadable)?;
    if !asked.detached.is_well() {
        return Err(status::store_is_away());
    }
    // The quota is of jobs that wait or run for a caller; this one is only counted.
    let _hold = parts.guard.admit(&parts.pools, Rpc::CreateJob, call, &mut job.job)?;
    let pool = parts.pools.pool_of(&job.job).map_err(refused)?;
    job.pool = pool.name().to_string();
    let job_id = job.id.clone();
    match asked.detached.create(job).await.map_err(|error| status::store_fails(&error))? {
        Some(Submitted::Created | Submitted::Leased(_)) => Ok(CreateJobResponse { job_id, already_existed: false }),
        Some(Submitted::Existing(old)) if parts.guard.allows(asked.rpc, call, &old.request.job) => {
            Ok(CreateJobResponse { job_id, already_existed: true })
        }
        Some(Submitted::Existing(_) | Submitted::Conflict) => Err(status::job_exists(&job_id)),
        Some(Submitted::Full) | None => Err(status::store_full()),
    }
}

/// The job of a request, except for its pool.
fn read(asked: &Asked, request: CreateJobRequest) -> Result<NewJob, Vec<FieldViolation>> {
    let CreateJobRequest { job, job_id, options } = request;
    let mut faults = Vec::new();
    if !job_id.is_empty() && job_id.parse::<RequestId>().is_err() {
        faults.push(FieldViolation::new("job_id", "send 1 to 128 visible ASCII characters, or nothing"));
    }
    if job_id.starts_with(SCHEDULE_PREFIX) {
        let detail = format!("`{SCHEDULE_PREFIX}` begins the ids of schedules; send another id");
        faults.push(FieldViolation::new("job_id", detail));
    }
    let is_unspecified = job.as_ref().is_some_and(|job| job.criticality() == proto::Criticality::Unspecified);
    let mut job = *messages::job(job)?;
    if is_unspecified {
        job.criticality = Criticality::SheddablePlus;
    }
    if job.when_full.is_some() {
        faults.push(FieldViolation::new("job.when_full", "a detached job waits in the store; leave it out"));
    }
    if job.queue_timeout.is_some() {
        faults.push(FieldViolation::new("job.queue_timeout", "send options.expire_time instead"));
    }
    let id = if job_id.is_empty() { RequestId::generate().as_str().to_owned() } else { job_id };
    let policy = asked.detached.policy(&job.kind);
    let new = NewJob { request_id: asked.call.request_id().as_str().to_owned(), ..NewJob::new(id, "", job) };
    let new = with_options(new, options.unwrap_or_default(), policy, &mut faults);
    if faults.is_empty() { Ok(new) } else { Err(faults) }
}

fn with_options(new: NewJob, options: JobOptions, policy: KindPolicy, faults: &mut Vec<FieldViolation>) -> NewJob {
    let JobOptions { expire_time, retry, retain_for, start } = options;
    let start = match start {
        None => Start::Now,
        Some(job_options::Start::StartTime(time)) => {
            convert::read_time("options.start_time", Some(time), faults).map_or(Start::Now, Start::At)
        }
        Some(job_options::Start::Delay(delay)) => {
            messages::read_duration("options.delay", Some(delay), faults).map_or(Start::Now, Start::After)
        }
    };
    let retained = messages::read_duration("options.retain_for", retain_for, faults);
    if retained > Some(MAX_RETAINED) {
        faults.push(FieldViolation::new("options.retain_for", "longer than a year"));
    }
    NewJob {
        start,
        expire_at: convert::read_time("options.expire_time", expire_time, faults),
        retry: retry.map_or(policy.retry, |retry| read_retry(retry, policy.retry, faults)),
        retain_for: retained.unwrap_or(policy.retain_for),
        retain_dead_for: retained.unwrap_or(policy.retain_dead_for),
        ..new
    }
}

fn read_retry(retry: proto::RetryPolicy, usual: RetryPolicy, faults: &mut Vec<FieldViolation>) -> RetryPolicy {
    let proto::RetryPolicy { max_attempts, initial, max } = retry;
    RetryPolicy {
        max_attempts: if max_attempts == 0 { usual.max_attempts } else { max_attempts },
        initial: messages::read_duration("options.retry.initial", initial, faults).unwrap_or(usual.initial),
        max: messages::read_duration("options.retry.max", max, faults).unwrap_or(usual.max),
    }
}
