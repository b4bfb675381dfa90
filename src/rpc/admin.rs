mod cancel;
mod drain;
mod explain;
mod jobs;
mod pool;
mod reload;

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tonic::{Request, Response, Status, async_trait};

pub use self::reload::{ReloadFault, SettingChange};
use super::worker_pool::ResponseStream;
use crate::{
    phase::Phase,
    pool::Pools,
    proto::{
        CancelJobRequest, CancelJobResponse, DrainRequest, DrainResponse, ExplainRequest, ExplainResponse,
        ListJobsRequest, ListJobsResponse, PauseRequest, PauseResponse, ReloadRequest, ReloadResponse, ResizeRequest,
        ResizeResponse, ResumeRequest, ResumeResponse, admin_service_server::AdminService,
    },
};

/// What a request lacks that names no job.
const NAME_A_JOB: &str = "send the id of a job, as its answer and its log lines tell it, or its request id";

/// What the operator's service steers.
pub trait DrainControl: Send + Sync + 'static {
    /// Starts the drain; does nothing where it is under way.
    fn drain(&self);
    /// How far the drain is.
    fn progress(&self) -> DrainProgress;
    /// Follows the phase of the process.
    fn phase(&self) -> watch::Receiver<Phase>;
    /// Reads the configuration again and takes over what changed, all or nothing; a dry run tells what would change. It
    /// may block.
    ///
    /// # Errors
    /// Why nothing was changed.
    fn reload(&self, is_dry_run: bool) -> Result<Vec<SettingChange>, ReloadFault>;
}

/// How far a drain is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainProgress {
    /// Phase of the process.
    pub phase: Phase,
    /// Jobs in the queues.
    pub queued: usize,
    /// Jobs that hold a worker.
    pub running: usize,
    /// Jobs that ended since the drain began.
    pub finished: u64,
    /// Jobs that could not be finished.
    pub lost: u64,
    /// Time since the drain began.
    pub elapsed: Duration,
    /// Expected time until nothing is left.
    pub expected: Duration,
    /// Time until what still runs is stopped.
    pub hard_stop: Duration,
}

/// `waterwheel.v1.AdminService`.
#[derive(Clone)]
pub struct Admin {
    control: Arc<dyn DrainControl>,
    pools: Pools,
}

impl Admin {
    /// The service over `control` and `pools`.
    #[must_use]
    pub fn new(control: Arc<dyn DrainControl>, pools: Pools) -> Self {
        Self { control, pools }
    }
}

#[async_trait]
impl AdminService for Admin {
    type DrainStream = ResponseStream<DrainResponse>;

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<Self::DrainStream>, Status> {
        drain::drain(self, &request.into_inner())
    }

    async fn pause(&self, request: Request<PauseRequest>) -> Result<Response<PauseResponse>, Status> {
        pool::pause(self, &request.into_inner())
    }

    async fn resume(&self, request: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, Status> {
        pool::resume(self, &request.into_inner())
    }

    async fn resize(&self, request: Request<ResizeRequest>) -> Result<Response<ResizeResponse>, Status> {
        pool::resize(self, &request.into_inner())
    }

    async fn cancel_job(&self, request: Request<CancelJobRequest>) -> Result<Response<CancelJobResponse>, Status> {
        cancel::cancel_job(self, &request.into_inner())
    }

    async fn reload(&self, request: Request<ReloadRequest>) -> Result<Response<ReloadResponse>, Status> {
        reload::reload(self, request.into_inner()).await
    }

    async fn list_jobs(&self, request: Request<ListJobsRequest>) -> Result<Response<ListJobsResponse>, Status> {
        jobs::list_jobs(self, request.into_inner())
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainResponse>, Status> {
        explain::explain(self, &request.into_inner())
    }
}
