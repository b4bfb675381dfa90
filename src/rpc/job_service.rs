//! `JobService`: jobs that outlive their calls. `src/detached.rs` runs them. A new RPC also needs a row in
//! `src/auth/rule.rs`.

mod create;
mod filter;
mod page_token;
mod watch;

use std::{future::ready, sync::Arc};

use futures_util::{Stream, StreamExt, stream};
use tokio::time::sleep_until;
use tonic::{Code, Request, Response, Status, Streaming, async_trait};

use self::{
    filter::read_filter,
    page_token::{page_token, read_page_token},
};
use super::{
    calls::{Calls, Meter},
    context::CallContext,
    convert::detached_job_here,
    service_state::{CallerServices, ResponseStream, ServiceState},
    status::{self, invalid_field},
};
use crate::{
    auth::Rpc,
    detached::Detached,
    model::{Reason, RequestId},
    proto::{
        self, CancelJobsRequest, CancelJobsResponse, CreateJobRequest, CreateJobResponse, CreateJobsRequest,
        CreateJobsResponse, DeleteJobRequest, DeleteJobResponse, GetJobRequest, GetJobResponse,
        JobServiceCancelJobRequest, JobServiceCancelJobResponse, JobServiceListJobsRequest, JobServiceListJobsResponse,
        PurgeJobsRequest, PurgeJobsResponse, RetryJobRequest, RetryJobResponse, WaitJobRequest, WaitJobResponse,
        WatchJobRequest, WatchJobResponse, job_service_server::JobService,
    },
    store::{Action, BATCH, Change, Extent, Filter, JobName, JobRecord, JobState, JobStore},
};

/// Default number of jobs per page.
const DEFAULT_PAGE_SIZE: usize = 100;
/// States of the jobs that can be cancelled.
const CANCELLABLE: [JobState; 4] = [JobState::Scheduled, JobState::Ready, JobState::Blocked, JobState::Running];
/// Number of jobs that are cancelled in one write, so that other writes do not wait long.
const CANCELLED_AT_ONCE: usize = 100;

/// A call for detached jobs.
struct JobsCall {
    service: Arc<ServiceState>,
    context: CallContext,
    rpc: Rpc,
    detached: Detached,
}

impl JobsCall {
    /// Reads the metadata of a call, and starts to measure it.
    fn begin<T>(service: &Arc<ServiceState>, rpc: Rpc, request: &Request<T>) -> Result<(Self, Meter<Calls>), Status> {
        let context = CallContext::read(request, rpc, &service.sampler)?;
        let meter = Calls::begin(service.calls.clone(), rpc, None, context.at);
        let Some(detached) = service.detached.clone() else {
            meter.end(Code::FailedPrecondition);
            return Err(context.with_request_id(status::of(Reason::NoStore)));
        };
        Ok((Self { service: Arc::clone(service), context, rpc, detached }, meter))
    }

    fn store(&self) -> &dyn JobStore {
        self.detached.store()
    }

    /// The job, if it exists and the caller may see it.
    async fn job(&self, id: &str, extent: Extent) -> Result<JobRecord, Status> {
        check_id(id)?;
        let found = self.store().get(id, extent).await.map_err(status::read_failure)?;
        let job = found.filter(|job| self.service.access.allows(self.rpc, &self.context, &job.request.job));
        job.ok_or_else(|| unknown(id))
    }

    /// A job as the caller may see it.
    fn shown(&self, job: JobRecord) -> proto::DetachedJob {
        self.service.access.shown(detached_job_here(&self.detached, job))
    }

    /// Ends the call with its answer.
    fn end<A>(&self, meter: Meter<Calls>, answer: Result<A, Status>) -> Result<Response<A>, Status> {
        self.context.end(meter, answer.as_ref().map_or_else(Status::code, |_| Code::Ok));
        answer.map(|message| self.context.answer(message)).map_err(|status| self.context.with_request_id(status))
    }

    async fn get_job(&self, request: GetJobRequest) -> Result<GetJobResponse, Status> {
        let extent = if request.with_payload { Extent::All } else { Extent::Output };
        let job = self.job(&request.job_id, extent).await?;
        Ok(GetJobResponse { job: Some(self.shown(job)) })
    }

    async fn list_jobs(&self, request: JobServiceListJobsRequest) -> Result<JobServiceListJobsResponse, Status> {
        let JobServiceListJobsRequest { filter, page_size, page_token } = request;
        let limit = match page_size as usize {
            0 => DEFAULT_PAGE_SIZE,
            size if size <= BATCH => size,
            _ => return Err(invalid_field("page_size", &format!("send up to {BATCH}"))),
        };
        let filter = read_filter(self, filter.unwrap_or_default())?;
        let (jobs, next_page_token) = self.page(filter, &page_token, limit).await?;
        let jobs = jobs.into_iter().map(|job| self.shown(job)).collect();
        Ok(JobServiceListJobsResponse { jobs, next_page_token })
    }

    /// A page of the jobs that match a filter, the newest first, and the token of the next page.
    async fn page(&self, filter: Filter, token: &str, limit: usize) -> Result<(Vec<JobRecord>, String), Status> {
        let secret = self.store().secret().await.map_err(status::read_failure)?;
        let before = read_page_token(&secret, token)?;
        let page = self.store().list(filter, before, limit).await.map_err(status::read_failure)?;
        Ok((page.jobs, page_token(&secret, page.next)))
    }

    /// Waits for the end of a job, at most until the deadline of the call. The server limits that deadline as for any
    /// job.
    async fn wait_job(&self, request: WaitJobRequest) -> Result<WaitJobResponse, Status> {
        let id = &request.job_id;
        // Many callers may wait, so none of them keeps a payload in memory.
        let mut job = self.job(id, Extent::Output).await?;
        if !job.state.is_ended() {
            let deadline = self.service.deadline.fix(self.context.at, self.context.timeout);
            job = tokio::select! {
                ended = self.store().wait(JobName::from(&job)) => {
                    let ended = ended.map_err(status::read_failure)?;
                    ended.ok_or_else(|| unknown(id))?
                }
                () = sleep_until(deadline.reply_by()) => self.job(id, Extent::Output).await?,
                () = self.service.pools.closing() => return Err(status::draining(self.context.request_id())),
            };
        }
        Ok(WaitJobResponse { job: Some(self.shown(job)) })
    }

    async fn cancel_job(&self, request: JobServiceCancelJobRequest) -> Result<JobServiceCancelJobResponse, Status> {
        let state = match self.change(request.job_id, Action::Cancel).await? {
            Change::Requested => proto::JobState::Running,
            _ => proto::JobState::Cancelled,
        };
        Ok(JobServiceCancelJobResponse { state: state.into() })
    }

    /// Cancels a page of jobs, the newest first. A job that has ended meanwhile is left out.
    async fn cancel_jobs(&self, request: CancelJobsRequest) -> Result<CancelJobsResponse, Status> {
        let CancelJobsRequest { filter, dry_run, page_token } = request;
        let mut filter = read_filter(self, filter.unwrap_or_default())?;
        let is_asked = |state: &JobState| filter.states.is_empty() || filter.states.contains(state);
        filter.states = CANCELLABLE.into_iter().filter(is_asked).collect();
        if filter.states.is_empty() {
            return Ok(CancelJobsResponse::default());
        }
        let (jobs, next_page_token) = self.page(filter, &page_token, BATCH).await?;
        let mut answer = CancelJobsResponse { next_page_token, ..CancelJobsResponse::default() };
        for jobs in jobs.chunks(CANCELLED_AT_ONCE) {
            let changes = if dry_run {
                let change = |state| if state == JobState::Running { Change::Requested } else { Change::Done };
                jobs.iter().map(|job| change(job.state)).collect()
            } else {
                let jobs = jobs.iter().map(JobName::from).collect();
                self.detached.change(jobs, Action::Cancel).await.map_err(status::write_failure)?
            };
            answer.cancelled += changes.iter().filter(|change| **change == Change::Done).count() as u64;
            answer.asked_to_stop += changes.iter().filter(|change| **change == Change::Requested).count() as u64;
        }
        Ok(answer)
    }

    async fn retry_job(&self, request: RetryJobRequest) -> Result<RetryJobResponse, Status> {
        let job = self.job(&request.job_id, Extent::Bare).await?;
        // As for a created job, the quota limits how often, and the hold is not kept.
        let _hold = self.service.access.admit_again(&self.context, &job.request.job)?;
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
fn measured<T>(meter: Meter<Calls>, items: impl Stream<Item = Result<T, Status>> + Send + 'static) -> ResponseStream<T>
where
    T: Send + 'static,
{
    let mut meter = Some(meter);
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
        let (call, meter) = JobsCall::begin(&self.0, rpc, &request)?;
        let answer = act(&call, request.into_inner()).await;
        call.end(meter, answer)
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
        let (call, meter) = JobsCall::begin(&self.0, Rpc::CreateJobs, &request)?;
        create::create_jobs(call, meter, &request)
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
        let (call, meter) = JobsCall::begin(&self.0, Rpc::WatchJob, &request)?;
        watch::watch_job(call, meter, request).await
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
