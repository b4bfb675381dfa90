//! `JobService`: jobs that outlive their calls. `src/detached.rs` runs them. A new RPC also needs a row in
//! `src/auth/rule.rs`.

mod acts;
mod create;
mod filter;
mod groups;
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
    context::{Arrival, CallContext},
    convert::{detached_job_here, job_group},
    service_state::{CallerServices, ResponseStream, ServiceState},
    status::{self, invalid_field},
};
use crate::{
    auth::Rpc,
    detached::Detached,
    model::{Peer, Reason, RequestId},
    proto::{
        self, CancelJobsRequest, CancelJobsResponse, CloseGroupRequest, CloseGroupResponse, CreateGroupRequest,
        CreateGroupResponse, CreateJobRequest, CreateJobResponse, CreateJobsRequest, CreateJobsResponse,
        DeleteJobRequest, DeleteJobResponse, GetGroupRequest, GetGroupResponse, GetJobRequest, GetJobResponse,
        GroupJobsRequest, GroupJobsResponse, JobServiceCancelJobRequest, JobServiceCancelJobResponse,
        JobServiceListJobsRequest, JobServiceListJobsResponse, PurgeJobsRequest, PurgeJobsResponse, RetryJobRequest,
        RetryJobResponse, RetryJobsRequest, RetryJobsResponse, WaitJobRequest, WaitJobResponse, WatchJobRequest,
        WatchJobResponse, job_service_server::JobService,
    },
    store::{BATCH, Extent, Filter, Groups, JobName, JobRecord, JobStore, Order},
};

/// Default number of jobs per page.
const DEFAULT_PAGE_SIZE: usize = 100;

/// A call for detached jobs.
struct JobsCall {
    service: Arc<ServiceState>,
    context: CallContext,
    peer: Option<Arc<Peer>>,
    rpc: Rpc,
    detached: Detached,
}

impl JobsCall {
    /// Reads the metadata of a call, and starts to measure it.
    fn begin<T>(service: &Arc<ServiceState>, rpc: Rpc, request: &Request<T>) -> Result<(Self, Meter<Calls>), Status> {
        let context = CallContext::read(request, rpc, &service.sampler)?;
        let peer = request.extensions().get::<Arrival>().map(|arrival| Arc::clone(&arrival.peer));
        let meter = Calls::begin(service.calls.clone(), rpc, None, context.at);
        let Some(detached) = service.detached.clone() else {
            meter.end(Code::FailedPrecondition);
            return Err(context.with_request_id(status::of(Reason::NoStore)));
        };
        Ok((Self { service: Arc::clone(service), context, peer, rpc, detached }, meter))
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
        let JobServiceListJobsRequest { filter, page_size, page_token, with_count, oldest_first } = request;
        let limit = match page_size as usize {
            0 => DEFAULT_PAGE_SIZE,
            size if size <= BATCH => size,
            _ => return Err(invalid_field("page_size", &format!("send up to {BATCH}"))),
        };
        let filter = read_filter(self, filter.unwrap_or_default()).await?;
        let counted = if with_count { Some(self.group(filter.clone()).await?) } else { None };
        let order = if oldest_first { Order::Oldest } else { Order::Newest };
        let (jobs, next_page_token) = self.page(filter, order, &page_token, limit).await?;
        let jobs = jobs.into_iter().map(|job| self.shown(job)).collect();
        let count_is_cut = counted.as_ref().is_some_and(|counted| counted.is_cut);
        let count = counted.map(|counted| counted.jobs);
        Ok(JobServiceListJobsResponse { jobs, next_page_token, count, count_is_cut })
    }

    async fn group_jobs(&self, request: GroupJobsRequest) -> Result<GroupJobsResponse, Status> {
        let Groups { groups, jobs, is_cut } =
            self.group(read_filter(self, request.filter.unwrap_or_default()).await?).await?;
        let others = jobs - groups.iter().map(|group| group.jobs).sum::<u64>();
        Ok(GroupJobsResponse { groups: groups.into_iter().map(job_group).collect(), others, is_cut })
    }

    async fn group(&self, filter: Filter) -> Result<Groups, Status> {
        self.store().group(filter).await.map_err(status::read_failure)
    }

    /// A page of the jobs that match a filter, and the token of the next page.
    async fn page(
        &self,
        filter: Filter,
        order: Order,
        token: &str,
        limit: usize,
    ) -> Result<(Vec<JobRecord>, String), Status> {
        let secret = self.store().secret().await.map_err(status::read_failure)?;
        let after = read_page_token(&secret, token)?;
        let page = self.store().list(filter, order, after, limit).await.map_err(status::read_failure)?;
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

    async fn group_jobs(&self, request: Request<GroupJobsRequest>) -> Result<Response<GroupJobsResponse>, Status> {
        self.unary(Rpc::GroupJobs, request, JobsCall::group_jobs).await
    }

    async fn retry_jobs(&self, request: Request<RetryJobsRequest>) -> Result<Response<RetryJobsResponse>, Status> {
        self.unary(Rpc::RetryJobs, request, JobsCall::retry_jobs).await
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
    async fn create_group(
        &self,
        request: Request<CreateGroupRequest>,
    ) -> Result<Response<CreateGroupResponse>, Status> {
        self.unary(Rpc::CreateGroup, request, JobsCall::create_group).await
    }

    async fn close_group(&self, request: Request<CloseGroupRequest>) -> Result<Response<CloseGroupResponse>, Status> {
        self.unary(Rpc::CloseGroup, request, JobsCall::close_group).await
    }

    async fn get_group(&self, request: Request<GetGroupRequest>) -> Result<Response<GetGroupResponse>, Status> {
        self.unary(Rpc::GetGroup, request, JobsCall::get_group).await
    }
}
