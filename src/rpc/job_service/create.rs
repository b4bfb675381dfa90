//! `CreateJob`, and `CreateJobs` for many jobs on one call. The store writes concurrent jobs in one transaction.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use tonic::{Request, Response, Status, Streaming};

use super::{JobsCall, measured, read_time};
use crate::{
    auth::Rpc,
    detached::SCHEDULE_PREFIX,
    model::{Criticality, FieldViolation, Rejection, RequestId},
    proto::{
        self, CreateJobRequest, CreateJobResponse, CreateJobsRequest, CreateJobsResponse, JobOptions,
        create_jobs_response::Outcome, job_options,
    },
    rpc::{
        convert,
        message_stream::Messages,
        status,
        submit_many::{MAX_TAG, failure},
        worker_pool_service::ResponseStream,
    },
    store::{KindPolicy, NewJob, RetryPolicy, Start, Submitted},
};

/// Path of the RPC. It reads its messages here, without the codec.
pub(in crate::rpc) const CREATE_JOBS: &str = "/waterwheel.v1.JobService/CreateJobs";
/// Longest retention of a job after its end.
const MAX_RETAINED: Duration = Duration::from_secs(366 * 24 * 3600);

impl JobsCall {
    /// Creates one job, and answers once it is durable.
    pub(super) async fn create_job(&self, request: CreateJobRequest) -> Result<CreateJobResponse, Status> {
        let Self { service, call, .. } = self;
        if service.pools.is_closing() {
            return Err(status::draining(call.request_id()));
        }
        let unreadable = |violations| status::unreadable(violations, call.request_id());
        let refused = |rejection: Rejection| status::status(&rejection.into(), call.request_id());
        let mut job = read(self, request).map_err(unreadable)?;
        if !self.detached.is_well() {
            return Err(status::store_is_away());
        }
        // A quota limits jobs that run or wait for a caller, so a detached job does not keep its hold.
        let _hold = service.access.admit(&service.pools, Rpc::CreateJob, call, &mut job.job)?;
        let pool = service.pools.pool_of(&job.job).map_err(refused)?;
        job.pool = pool.name().to_string();
        let job_id = job.id.clone();
        match self.detached.create(job).await.map_err(status::store_fails)? {
            Some(Submitted::Created | Submitted::Leased(_)) => Ok(CreateJobResponse { job_id, already_existed: false }),
            Some(Submitted::Existing(old)) if service.access.allows(self.rpc, call, &old.request.job) => {
                Ok(CreateJobResponse { job_id, already_existed: true })
            }
            Some(Submitted::Existing(_) | Submitted::Conflict) => Err(status::job_exists(&job_id)),
            Some(Submitted::Full) | None => Err(status::store_full()),
        }
    }
}

/// Creates jobs, and answers each once it is durable. While a caller does not read its answers, its jobs are not read.
pub(super) fn create_jobs(
    mut asked: JobsCall,
    request: &Request<Streaming<CreateJobsRequest>>,
) -> Result<Response<ResponseStream<CreateJobsResponse>>, Status> {
    let inbound = Messages::of(request, asked.service.largest_message);
    let window = asked.service.window;
    let meter = asked.meter.take();
    let asked = Arc::new(asked);
    let messages = stream::unfold(Some(inbound), async |inbound| {
        let mut inbound: Messages<CreateJobsRequest> = inbound?;
        match inbound.message().await {
            Ok(Some(message)) => Some((Ok(message), Some(inbound))),
            Ok(None) => None,
            Err(fault) => Some((Err(status::refused_by_codec(fault)), None)),
        }
    });
    let (creator, caller) = (Arc::clone(&asked), Arc::clone(&asked));
    let answers = messages.map(move |message| create(Arc::clone(&creator), message)).buffer_unordered(window);
    let answers = answers.map(move |answer| answer.map_err(|status| caller.call.named(status)));
    Ok(asked.call.answer(measured(meter, answers)))
}

async fn create(
    asked: Arc<JobsCall>,
    message: Result<CreateJobsRequest, Status>,
) -> Result<CreateJobsResponse, Status> {
    let CreateJobsRequest { job, job_id, options, tag } = message?;
    if tag.len() > MAX_TAG {
        let fault = FieldViolation::new("tag", format!("longer than {MAX_TAG} bytes"));
        return Err(status::unreadable(vec![fault], asked.call.request_id()));
    }
    let outcome = match asked.create_job(CreateJobRequest { job, job_id, options }).await {
        Ok(created) => Outcome::Created(created),
        Err(status) => Outcome::Failure(failure(&status)),
    };
    Ok(CreateJobsResponse { tag, outcome: Some(outcome) })
}

/// The job of a request, except for its pool.
fn read(asked: &JobsCall, request: CreateJobRequest) -> Result<NewJob, Vec<FieldViolation>> {
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
    let mut job = *convert::job(job)?;
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
            read_time("options.start_time", Some(time), faults).map_or(Start::Now, Start::At)
        }
        Some(job_options::Start::Delay(delay)) => {
            convert::read_duration("options.delay", Some(delay), faults).map_or(Start::Now, Start::After)
        }
    };
    let retained = convert::read_duration("options.retain_for", retain_for, faults);
    if retained > Some(MAX_RETAINED) {
        faults.push(FieldViolation::new("options.retain_for", "longer than a year"));
    }
    NewJob {
        start,
        expire_at: read_time("options.expire_time", expire_time, faults),
        policy: KindPolicy {
            retry: retry.map_or(policy.retry, |retry| read_retry(retry, policy.retry, faults)),
            retain_for: retained.unwrap_or(policy.retain_for),
            retain_dead_for: retained.unwrap_or(policy.retain_dead_for),
        },
        ..new
    }
}

fn read_retry(retry: proto::RetryPolicy, usual: RetryPolicy, faults: &mut Vec<FieldViolation>) -> RetryPolicy {
    let proto::RetryPolicy { max_attempts, initial, max } = retry;
    RetryPolicy {
        max_attempts: if max_attempts == 0 { usual.max_attempts } else { max_attempts },
        initial: convert::read_duration("options.retry.initial", initial, faults).unwrap_or(usual.initial),
        max: convert::read_duration("options.retry.max", max, faults).unwrap_or(usual.max),
    }
}
