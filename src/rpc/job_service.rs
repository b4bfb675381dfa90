//! `JobService`: jobs that outlive their calls. `src/detached.rs` runs them. A new RPC also needs a row in
//! `src/auth/rule.rs`.

mod cancel;
mod create;
mod filter;
mod page_token;
mod watch;

use std::{future::ready, sync::Arc, time::SystemTime};

use futures_util::{Stream, StreamExt, stream};
use prost_types::Timestamp as ProtoTimestamp;
use tokio::time::sleep_until;
use tonic::{Code, Request, Response, Status, Streaming, async_trait};

use self::{
    filter::read_filter,
    page_token::{page_token, read_page_token},
};
use super::{
    calls::{Calls, Meter},
    context::CallContext,
    convert::{criticality, duration, job_state},
    service_state::{CallerServices, ResponseStream, ServiceState},
    status::{self, invalid_field},
};
use crate::{
    auth::Rpc,
    detached::Detached,
    model::{Job, Reason, RequestId},
    proto::{
        self, CancelJobsRequest, CancelJobsResponse, CreateJobRequest, CreateJobResponse, CreateJobsRequest,
        CreateJobsResponse, DeleteJobRequest, DeleteJobResponse, DetachedJob, GetJobRequest, GetJobResponse,
        JobServiceCancelJobRequest, JobServiceCancelJobResponse, JobServiceListJobsRequest, JobServiceListJobsResponse,
        PurgeJobsRequest, PurgeJobsResponse, RetryJobRequest, RetryJobResponse, WaitJobRequest, WaitJobResponse,
        WatchJobRequest, WatchJobResponse, job_service_server::JobService,
    },
    store::{Action, Attempt, BATCH, Change, Extent, JobName, JobRecord, JobStore, Timestamp},
};

/// Default number of jobs per page.
const DEFAULT_PAGE_SIZE: usize = 100;

/// A call for detached jobs.
struct JobsCall {
    service: Arc<ServiceState>,
    call: CallContext,
    rpc: Rpc,
    detached: Detached,
    meter: Option<Meter<Calls>>,
}

impl JobsCall {
    /// Reads the metadata of a call.
    fn read<T>(service: &Arc<ServiceState>, rpc: Rpc, request: &Request<T>) -> Result<Self, Status> {
        let call = CallContext::read(request, rpc, &service.sampler)?;
        let meter = Calls::begin(service.calls.clone(), rpc, None, call.at);
        let Some(detached) = service.detached.clone() else {
            meter.end(Code::FailedPrecondition);
            return Err(call.named(status::of(Reason::NoStore)));
        };
        Ok(Self { service: Arc::clone(service), call, rpc, detached, meter: Some(meter) })
    }

    fn store(&self) -> &dyn JobStore {
        self.detached.store()
    }

    /// The job, if it exists and the caller may see it.
    async fn job(&self, id: &str, extent: Extent) -> Result<JobRecord, Status> {
        check_id(id)?;
        let found = self.store().get(id, extent).await.map_err(status::read_failure)?;
        let job = found.filter(|job| self.service.access.allows(self.rpc, &self.call, &job.request.job));
        job.ok_or_else(|| unknown(id))
    }

    /// Ends the call with its answer.
    fn answer<A>(self, answer: Result<A, Status>) -> Result<Response<A>, Status> {
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        self.call.record_status(code);
        if let Some(meter) = self.meter {
            meter.end(code);
        }
        answer.map(|message| self.call.answer(message)).map_err(|status| self.call.named(status))
    }

    async fn get_job(&self, request: GetJobRequest) -> Result<GetJobResponse, Status> {
        let extent = if request.with_payload { Extent::All } else { Extent::Output };
        let job = self.job(&request.job_id, extent).await?;
        Ok(GetJobResponse { job: Some(self.service.access.shown(detached_job(job))) })
    }

    async fn list_jobs(&self, request: JobServiceListJobsRequest) -> Result<JobServiceListJobsResponse, Status> {
        let JobServiceListJobsRequest { filter, page_size, page_token: token } = request;
        let limit = match page_size as usize {
            0 => DEFAULT_PAGE_SIZE,
            size if size <= BATCH => size,
            _ => return Err(invalid_field("page_size", &format!("send up to {BATCH}"))),
        };
        let filter = read_filter(self, filter.unwrap_or_default())?;
        let secret = self.store().secret().await.map_err(status::read_failure)?;
        let before = read_page_token(&secret, &token)?;
        let page = self.store().list(filter, before, limit).await.map_err(status::read_failure)?;
        let jobs = page.jobs.into_iter().map(|job| self.service.access.shown(detached_job(job))).collect();
        Ok(JobServiceListJobsResponse { jobs, next_page_token: page_token(&secret, page.next) })
    }

    /// Waits for the end of a job, at most until the deadline of the call. The server limits that deadline as for any
    /// job.
    async fn wait_job(&self, request: WaitJobRequest) -> Result<WaitJobResponse, Status> {
        let id = &request.job_id;
        // Many callers may wait, so none of them keeps a payload in memory.
        let mut job = self.job(id, Extent::Output).await?;
        if !job.state.is_ended() {
            let deadline = self.call.deadline(&self.service.deadline);
            job = tokio::select! {
                ended = self.store().wait(JobName::from(&job)) => {
                    let ended = ended.map_err(status::read_failure)?;
                    ended.ok_or_else(|| unknown(id))?
                }
                () = sleep_until(deadline.reply_by()) => self.job(id, Extent::Output).await?,
                () = self.service.pools.closing() => return Err(status::draining(self.call.request_id())),
            };
        }
        Ok(WaitJobResponse { job: Some(detached_job(job)) })
    }

    async fn cancel_job(&self, request: JobServiceCancelJobRequest) -> Result<JobServiceCancelJobResponse, Status> {
        let state = match self.change(request.job_id, Action::Cancel).await? {
            Change::Requested => proto::JobState::Running,
            _ => proto::JobState::Cancelled,
        };
        Ok(JobServiceCancelJobResponse { state: state.into() })
    }

    async fn retry_job(&self, request: RetryJobRequest) -> Result<RetryJobResponse, Status> {
        let job = self.job(&request.job_id, Extent::Bare).await?;
        // As for a created job, the quota limits how often, and the hold is not kept.
        let _hold = self.service.access.admit_again(&self.call, &job.request.job)?;
        self.change(request.job_id, Action::Retry).await.map(|_| RetryJobResponse {})
    }

    async fn delete_job(&self, request: DeleteJobRequest) -> Result<DeleteJobResponse, Status> {
        self.change(request.job_id, Action::Delete).await.map(|_| DeleteJobResponse {})
    }

    /// Changes one job.
    async fn change(&self, id: String, action: Action) -> Result<Change, Status> {
        check_id(&id)?;
        let job = match self.service.access.authenticator {
            Some(_) => JobName::from(&self.job(&id, Extent::Bare).await?),
            None => JobName::from(&*id),
        };
        let changes = self.detached.change(vec![job], action).await;
        match changes.map_err(status::write_failure)?.pop() {
            Some(change @ (Change::Done | Change::Requested)) => Ok(change),
            Some(Change::WrongState(state)) => Err(status::wrong_state(&id, state)),
            Some(Change::Full(full)) => Err(status::store_full(full)),
            Some(Change::NotFound) | None => Err(unknown(&id)),
        }
    }

    async fn purge_jobs(&self, request: PurgeJobsRequest) -> Result<PurgeJobsResponse, Status> {
        let filter = read_filter(self, request.filter.unwrap_or_default())?;
        let (mut removed, mut before) = (0, None);
        loop {
            let purged = self.detached.purge(filter.clone(), before).await.map_err(status::write_failure)?;
            removed += purged.removed as u64;
            before = purged.next;
            if before.is_none() {
                return Ok(PurgeJobsResponse { removed });
            }
        }
    }
}

/// A stream that ends the measurement of its call when it ends.
fn measured<T>(
    meter: Option<Meter<Calls>>,
    items: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> ResponseStream<T>
where
    T: Send + 'static,
{
    let mut meter = meter;
    Box::pin(items.map(Some).chain(stream::once(ready(None))).filter_map(move |item| {
        let end = item.as_ref().map_or(Some(Code::Ok), |item| item.as_ref().err().map(Status::code));
        if let Some((code, meter)) = end.and_then(|code| Some((code, meter.take()?))) {
            meter.end(code);
        }
        ready(item)
    }))
}

/// An id that no job can have is unknown. It is not sent to the store, which may not be able to compare it.
fn check_id(id: &str) -> Result<(), Status> {
    id.parse::<RequestId>().map(drop).map_err(|_| unknown(id))
}

/// The status of a call for a job that does not exist, or that its caller may not see.
fn unknown(job: &str) -> Status {
    status::unknown_job(job, "no such detached job; it may have been removed")
}

impl CallerServices {
    /// Answers a unary call.
    async fn unary<T, A>(
        &self,
        rpc: Rpc,
        request: Request<T>,
        act: impl AsyncFnOnce(&JobsCall, T) -> Result<A, Status>,
    ) -> Result<Response<A>, Status> {
        let asked = JobsCall::read(&self.0, rpc, &request)?;
        let answer = act(&asked, request.into_inner()).await;
        asked.answer(answer)
    }
}

#[async_trait]
impl JobService for CallerServices {
    type CreateJobsStream = ResponseStream<CreateJobsResponse>;
    type WatchJobStream = ResponseStream<WatchJobResponse>;

    async fn create_job(&self, request: Request<CreateJobRequest>) -> Result<Response<CreateJobResponse>, Status> {
        self.unary(Rpc::CreateJob, request, JobsCall::create_job).await
    }

    async fn create_jobs(
        &self,
        request: Request<Streaming<CreateJobsRequest>>,
    ) -> Result<Response<Self::CreateJobsStream>, Status> {
        let asked = JobsCall::read(&self.0, Rpc::CreateJobs, &request)?;
        create::create_jobs(asked, &request)
    }

    async fn get_job(&self, request: Request<GetJobRequest>) -> Result<Response<GetJobResponse>, Status> {
        self.unary(Rpc::GetJob, request, JobsCall::get_job).await
    }

    async fn list_jobs(
        &self,
        request: Request<JobServiceListJobsRequest>,
    ) -> Result<Response<JobServiceListJobsResponse>, Status> {
        self.unary(Rpc::ListDetached, request, JobsCall::list_jobs).await
    }

    async fn wait_job(&self, request: Request<WaitJobRequest>) -> Result<Response<WaitJobResponse>, Status> {
        self.unary(Rpc::WaitJob, request, JobsCall::wait_job).await
    }

    async fn watch_job(&self, request: Request<WatchJobRequest>) -> Result<Response<Self::WatchJobStream>, Status> {
        let asked = JobsCall::read(&self.0, Rpc::WatchJob, &request)?;
        watch::watch_job(asked, request).await
    }

    async fn cancel_job(
        &self,
        request: Request<JobServiceCancelJobRequest>,
    ) -> Result<Response<JobServiceCancelJobResponse>, Status> {
        self.unary(Rpc::CancelDetached, request, JobsCall::cancel_job).await
    }

    async fn retry_job(&self, request: Request<RetryJobRequest>) -> Result<Response<RetryJobResponse>, Status> {
        self.unary(Rpc::RetryJob, request, JobsCall::retry_job).await
    }

    async fn delete_job(&self, request: Request<DeleteJobRequest>) -> Result<Response<DeleteJobResponse>, Status> {
        self.unary(Rpc::DeleteJob, request, JobsCall::delete_job).await
    }

    async fn cancel_jobs(&self, request: Request<CancelJobsRequest>) -> Result<Response<CancelJobsResponse>, Status> {
        self.unary(Rpc::CancelJobs, request, JobsCall::cancel_jobs).await
    }

    async fn purge_jobs(&self, request: Request<PurgeJobsRequest>) -> Result<Response<PurgeJobsResponse>, Status> {
        self.unary(Rpc::PurgeJobs, request, JobsCall::purge_jobs).await
    }
}

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

fn time(time: Timestamp) -> ProtoTimestamp {
    SystemTime::from(time).into()
}
