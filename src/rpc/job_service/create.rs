//! `CreateJob`, and `CreateJobs` for many jobs on one call. The store writes concurrent jobs in one transaction.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status, Streaming};

use super::{JobsCall, filter::read_time, groups::GROUP_LABEL, measured};
use crate::{
    detached::{SCHEDULE_PREFIX, wall_clock},
    model::{Criticality, FieldViolation, RequestId},
    proto::{
        self, CreateJobRequest, CreateJobResponse, CreateJobsRequest, CreateJobsResponse, JobOptions,
        create_jobs_response::Outcome, job_options,
    },
    rpc::{
        calls::{Calls, Meter},
        convert,
        message_stream::Messages,
        service_state::ResponseStream,
        status,
        submit_many::{MAX_TAG, failure},
    },
    store::{GROUP_PREFIX, KindPolicy, NewJob, RetryPolicy, Start, Submitted, Timestamp},
};

/// Longest retention of a job after its end.
const MAX_RETAINED: Duration = YEAR;
/// Maximum number of attempts, unless the kind has more.
const MAX_ATTEMPTS: u32 = 100;
/// Bytes of the jobs of one call that may be on their way into the store. Further messages are read later.
const MAX_IN_FLIGHT: usize = 4 << 20;
const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);

impl JobsCall {
    /// Creates one job, and answers once it is durable.
    pub(super) async fn create_job(&self, request: CreateJobRequest) -> Result<CreateJobResponse, Status> {
        let reserved = [SCHEDULE_PREFIX, GROUP_PREFIX].into_iter().find(|prefix| request.job_id.starts_with(prefix));
        if let Some(prefix) = reserved {
            let detail = format!("`{prefix}` begins the ids of schedules or groups; send another id");
            return Err(self.context.invalid("job_id", detail));
        }
        self.store_job(read(self, request)).await
    }

    /// Stores a job that was read.
    pub(super) async fn store_job(
        &self,
        job: Result<NewJob, Vec<FieldViolation>>,
    ) -> Result<CreateJobResponse, Status> {
        let Self { service, context, .. } = self;
        if service.pools.is_closing() {
            return Err(status::draining(context.request_id()));
        }
        let mut job = job.map_err(|violations| status::unreadable(violations, context.request_id()))?;
        if let Some(cause) = self.detached.away() {
            return Err(status::store_unavailable(&cause));
        }
        // The hold ends with this call: a quota counts jobs in pools, and not jobs in the store.
        let _hold = service.access.admit(&service.pools, self.rpc, context, &mut job.job)?;
        let pool = service.pools.pool_of(&job.job);
        let pool = pool.map_err(|rejection| status::status(&rejection.into(), context.request_id()))?;
        job.pool = pool.name().to_string();
        let (job_id, group) = (job.id.clone(), job.group.clone());
        match self.detached.create(job).await.map_err(status::write_failure)? {
            Submitted::Created | Submitted::Leased(_) => Ok(CreateJobResponse { job_id, already_existed: false }),
            Submitted::Existing(old) if service.access.allows(self.rpc, context, &old.request.job) => {
                Ok(CreateJobResponse { job_id, already_existed: true })
            }
            Submitted::Existing(_) | Submitted::Conflict => Err(status::job_exists(&job_id)),
            Submitted::Full(full) => Err(status::store_full(full)),
            Submitted::NoGroup => Err(status::group_not_open(&group, "the tenant has no group with this id")),
            Submitted::GroupClosed => Err(status::group_not_open(&group, "the group is closed")),
        }
    }
}

/// Creates jobs, and answers each once it is durable. While a caller does not read its answers, its jobs are not read.
pub(super) fn create_jobs(
    call: JobsCall,
    meter: Meter<Calls>,
    request: &Request<Streaming<CreateJobsRequest>>,
) -> Result<Response<ResponseStream<CreateJobsResponse>>, Status> {
    let inbound = Messages::of(request, call.service.largest_message);
    let window = call.service.window;
    let call = Arc::new(call);
    let room = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    let messages = stream::try_unfold(inbound, move |mut inbound: Messages<CreateJobsRequest>| {
        let room = Arc::clone(&room);
        async move {
            let message = inbound.message().await.map_err(status::refused_by_codec)?;
            let Some(message) = message else { return Ok(None) };
            let bytes = message.job.as_ref().map_or(0, |job| job.payload.len()).min(MAX_IN_FLIGHT) as u32;
            let held = room.acquire_many_owned(bytes).await.ok();
            Ok(Some(((message, held), inbound)))
        }
    });
    let (for_jobs, for_names) = (Arc::clone(&call), Arc::clone(&call));
    let create = move |message: Result<(CreateJobsRequest, _), Status>| {
        let call = Arc::clone(&for_jobs);
        async move {
            let (message, _held) = message?;
            create(call, message).await
        }
    };
    let answers = messages.map(create).buffer_unordered(window);
    let answers = answers.map(move |answer| answer.map_err(|status| for_names.context.with_request_id(status)));
    Ok(call.context.answer(measured(meter, answers)))
}

async fn create(call: Arc<JobsCall>, message: CreateJobsRequest) -> Result<CreateJobsResponse, Status> {
    let CreateJobsRequest { job, job_id, options, tag } = message;
    if tag.len() > MAX_TAG {
        return Err(call.context.invalid("tag", format!("longer than {MAX_TAG} bytes")));
    }
    let outcome = match call.create_job(CreateJobRequest { job, job_id, options }).await {
        Ok(created) => Outcome::Created(created),
        Err(status) => Outcome::Failure(failure(&status)),
    };
    Ok(CreateJobsResponse { tag, outcome: Some(outcome) })
}

/// The job of a request, except for its pool.
pub(super) fn read(call: &JobsCall, request: CreateJobRequest) -> Result<NewJob, Vec<FieldViolation>> {
    let CreateJobRequest { job, job_id, options } = request;
    let mut faults = Vec::new();
    if !job_id.is_empty() && job_id.parse::<RequestId>().is_err() {
        faults.push(FieldViolation::new("job_id", "send 1 to 128 visible ASCII characters, or nothing"));
    }
    let is_unspecified = job.as_ref().is_some_and(|job| job.criticality() == proto::Criticality::Unspecified);
    let mut job = *convert::job(job)?;
    // No caller waits for a detached job, so it gives way to the jobs of callers that wait.
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
    let policy = call.detached.policy(&job.kind);
    let new = NewJob { request_id: call.context.request_id().as_str().to_owned(), ..NewJob::new(id, "", job) };
    let new = with_options(new, options.unwrap_or_default(), policy, &mut faults);
    if faults.is_empty() { Ok(new) } else { Err(faults) }
}

fn with_options(new: NewJob, options: JobOptions, policy: KindPolicy, faults: &mut Vec<FieldViolation>) -> NewJob {
    let JobOptions { expire_time, retry, retain_for, group, start } = options;
    let start = match start {
        None => Start::Now,
        Some(job_options::Start::StartTime(time)) => {
            read_time("options.start_time", Some(time), faults).map_or(Start::Now, Start::At)
        }
        Some(job_options::Start::Delay(delay)) => {
            let delay = convert::read_duration("options.delay", Some(delay), faults);
            if delay.is_some_and(|delay| wall_clock()().plus(delay) == Timestamp::MAX) {
                faults.push(FieldViolation::new("options.delay", "the job would start after the year 9999"));
            }
            delay.map_or(Start::Now, Start::After)
        }
    };
    let retained = convert::read_duration("options.retain_for", retain_for, faults);
    if retained > Some(MAX_RETAINED) {
        faults.push(FieldViolation::new("options.retain_for", "longer than a year"));
    }
    let mut job = new.job;
    if !group.is_empty() {
        if format!("{GROUP_PREFIX}{group}").parse::<RequestId>().is_err() {
            faults.push(FieldViolation::new("options.group", "no group can have this id"));
        }
        job.labels.insert(GROUP_LABEL.to_owned(), group.clone());
    }
    NewJob {
        job,
        group,
        start,
        expire_at: read_time("options.expire_time", expire_time, faults),
        policy: KindPolicy {
            retry: retry.map_or(policy.retry, |retry| read_retry(retry, policy.retry, faults)),
            retain_for: retained.unwrap_or(policy.retain_for),
            retain_dead_for: retained.unwrap_or(policy.retain_dead_for),
            ..policy
        },
        ..new
    }
}

fn read_retry(retry: proto::RetryPolicy, usual: RetryPolicy, faults: &mut Vec<FieldViolation>) -> RetryPolicy {
    let proto::RetryPolicy { max_attempts, initial, max } = retry;
    let most = usual.max_attempts.max(MAX_ATTEMPTS);
    if max_attempts > most {
        faults.push(FieldViolation::new("options.retry.max_attempts", format!("more than {most}")));
    }
    let longest = usual.max.min(YEAR);
    let mut delay = |field, sent, usual: Duration| {
        let delay = convert::read_duration(field, sent, faults).unwrap_or(usual.min(longest));
        if delay > longest {
            let longest = humantime::format_duration(longest);
            faults.push(FieldViolation::new(field, format!("longer than {longest}, the longest delay of the kind")));
        }
        delay
    };
    RetryPolicy {
        max_attempts: if max_attempts == 0 { usual.max_attempts } else { max_attempts },
        initial: delay("options.retry.initial", initial, usual.initial),
        max: delay("options.retry.max", max, usual.max),
    }
}
