//! `JobService`: jobs that outlive their calls. `src/detached.rs` runs them. A new RPC is also a row in
//! `src/auth/rpc.rs`.

mod change;
mod convert;
mod create;
mod create_many;
mod read;
mod watch;

use std::{future::ready, sync::Arc};

use futures_util::{Stream, StreamExt, stream};
use tonic::{Code, Request, Response, Status, Streaming, async_trait};

pub use self::convert::stored as detached_job;
pub(super) use self::create_many::CREATE_JOBS;
use super::{
    calls::{Calls, Meter},
    context::CallContext,
    status,
    worker_pool::{Parts, ResponseStream, WorkerPool},
};
use crate::{
    auth::Rpc,
    detached::Detached,
    proto::{
        CreateJobRequest, CreateJobResponse, CreateJobsRequest, CreateJobsResponse, DeleteJobRequest,
        DeleteJobResponse, GetJobRequest, GetJobResponse, JobServiceCancelJobRequest, JobServiceCancelJobResponse,
        JobServiceListJobsRequest, JobServiceListJobsResponse, PurgeJobsRequest, PurgeJobsResponse, RetryJobRequest,
        RetryJobResponse, WaitJobRequest, WaitJobResponse, WatchJobRequest, WatchJobResponse,
        job_service_server::JobService,
    },
    store::{Action, JobStore, StoredJob},
};

/// A call for detached jobs.
struct Asked {
    parts: Arc<Parts>,
    call: CallContext,
    rpc: Rpc,
    detached: Detached,
    meter: Option<Meter<Calls>>,
}

impl Asked {
    /// Reads the metadata of a call.
    fn read<T>(parts: &Arc<Parts>, rpc: Rpc, request: &Request<T>) -> Result<Self, Status> {
        let call = CallContext::read(request, rpc.name(), &parts.sampler)?;
        let meter = Calls::begin(parts.calls.clone(), rpc, None, call.arrival());
        let Some(detached) = parts.detached.clone() else {
            meter.end(Code::FailedPrecondition);
            return Err(named(&call, status::no_store()));
        };
        Ok(Self { parts: Arc::clone(parts), call, rpc, detached, meter: Some(meter) })
    }

    fn store(&self) -> &dyn JobStore {
        self.detached.store()
    }

    /// The job, if there is one and the caller may see it.
    async fn job(&self, id: &str, with_payload: bool) -> Result<StoredJob, Status> {
        let found = self.store().get(id, with_payload).await.map_err(|error| status::store_fails(&error))?;
        let job = found.filter(|job| self.parts.guard.allows(self.rpc, &self.call, &job.record.request.job));
        job.ok_or_else(|| status::no_detached_job(id))
    }

    /// Records the end of the call.
    fn end(&mut self, code: Code) {
        self.call.record_status(code);
        if let Some(meter) = self.meter.take() {
            meter.end(code);
        }
    }

    fn answer<A>(mut self, answer: Result<A, Status>) -> Result<Response<A>, Status> {
        self.end(answer.as_ref().map_or_else(Status::code, |_| Code::Ok));
        answer.map(|message| self.call.answer(message)).map_err(|status| named(&self.call, status))
    }
}

/// A stream that ends the measurement of its call.
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

fn named(call: &CallContext, mut status: Status) -> Status {
    status::name(&mut status, call.request_id());
    status
}

#[async_trait]
impl JobService for WorkerPool {
    type CreateJobsStream = ResponseStream<CreateJobsResponse>;
    type WatchJobStream = ResponseStream<WatchJobResponse>;

    async fn create_job(&self, request: Request<CreateJobRequest>) -> Result<Response<CreateJobResponse>, Status> {
        let asked = Asked::read(&self.0, Rpc::CreateJob, &request)?;
        let answer = create::create_job(&asked, request.into_inner()).await;
        asked.answer(answer)
    }

    async fn create_jobs(
        &self,
        request: Request<Streaming<CreateJobsRequest>>,
    ) -> Result<Response<Self::CreateJobsStream>, Status> {
        let asked = Asked::read(&self.0, Rpc::CreateJobs, &request)?;
        create_many::create_jobs(asked, &request)
    }

    async fn get_job(&self, request: Request<GetJobRequest>) -> Result<Response<GetJobResponse>, Status> {
        let asked = Asked::read(&self.0, Rpc::GetJob, &request)?;
        let answer = read::get_job(&asked, request.into_inner()).await;
        asked.answer(answer)
    }

    async fn list_jobs(
        &self,
        request: Request<JobServiceListJobsRequest>,
    ) -> Result<Response<JobServiceListJobsResponse>, Status> {
        let asked = Asked::read(&self.0, Rpc::ListDetached, &request)?;
        let answer = read::list_jobs(&asked, request.into_inner()).await;
        asked.answer(answer)
    }

    async fn wait_job(&self, request: Request<WaitJobRequest>) -> Result<Response<WaitJobResponse>, Status> {
        let asked = Asked::read(&self.0, Rpc::WaitJob, &request)?;
        let answer = read::wait_job(&asked, request.into_inner()).await;
        asked.answer(answer)
    }

    async fn watch_job(&self, request: Request<WatchJobRequest>) -> Result<Response<Self::WatchJobStream>, Status> {
        let asked = Asked::read(&self.0, Rpc::WatchJob, &request)?;
        watch::watch_job(asked, request).await
    }

    async fn cancel_job(
        &self,
        request: Request<JobServiceCancelJobRequest>,
    ) -> Result<Response<JobServiceCancelJobResponse>, Status> {
        let asked = Asked::read(&self.0, Rpc::CancelDetached, &request)?;
        let answer = change::cancel_job(&asked, request.into_inner()).await;
        asked.answer(answer)
    }

    async fn retry_job(&self, request: Request<RetryJobRequest>) -> Result<Response<RetryJobResponse>, Status> {
        let asked = Asked::read(&self.0, Rpc::RetryJob, &request)?;
        let changed = change::change(&asked, request.into_inner().job_id, Action::Retry).await;
        asked.answer(changed.map(|_| RetryJobResponse {}))
    }

    async fn delete_job(&self, request: Request<DeleteJobRequest>) -> Result<Response<DeleteJobResponse>, Status> {
        let asked = Asked::read(&self.0, Rpc::DeleteJob, &request)?;
        let changed = change::change(&asked, request.into_inner().job_id, Action::Delete).await;
        asked.answer(changed.map(|_| DeleteJobResponse {}))
    }

    async fn purge_jobs(&self, request: Request<PurgeJobsRequest>) -> Result<Response<PurgeJobsResponse>, Status> {
        let asked = Asked::read(&self.0, Rpc::PurgeJobs, &request)?;
        let answer = change::purge_jobs(&asked, request.into_inner()).await;
        asked.answer(answer)
    }
}
