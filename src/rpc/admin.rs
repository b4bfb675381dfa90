//! `AdminService`: each of its RPCs has a file below `admin/`. The drain and the reload are carried out in `src/app/`.

mod cancel;
mod drain;
mod explain;
mod jobs;
mod pool;
mod reload;

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tonic::{Request, Response, Status, async_trait};
use tracing::{Instrument, Span, field::display, info_span};

pub use self::reload::{ReloadFault, SettingChange};
use super::{context::Arrival, status_message::shorten, worker_pool::ResponseStream};
use crate::{
    auth::Caller,
    phase::Phase,
    pool::Pools,
    proto::{
        CancelJobRequest, CancelJobResponse, DrainRequest, DrainResponse, ExplainRequest, ExplainResponse,
        ListJobsRequest, ListJobsResponse, PauseRequest, PauseResponse, ReloadRequest, ReloadResponse, ResizeRequest,
        ResizeResponse, ResumeRequest, ResumeResponse, admin_service_server::AdminService,
    },
};

/// Message for a request that names no job.
const NAME_A_JOB: &str = "send the id of a job, from its answer or its log lines, or its request id";

/// What the operator's service controls.
pub trait DrainControl: Send + Sync + 'static {
    /// Starts the drain. Further calls do nothing.
    fn drain(&self);
    /// Progress of the drain.
    fn progress(&self) -> DrainProgress;
    /// Watches the phase of the process.
    fn phase(&self) -> watch::Receiver<Phase>;
    /// Number of answers that the drain cut, once it is over.
    fn cut(&self) -> watch::Receiver<Option<u64>>;
    /// Reads the configuration again and applies all changes or none; a dry run only returns them. It may block.
    ///
    /// # Errors
    /// Why nothing was changed.
    fn reload(&self, is_dry_run: bool) -> Result<Vec<SettingChange>, ReloadFault>;
}

/// Progress of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainProgress {
    /// Phase of the process.
    pub phase: Phase,
    /// Jobs in the queues.
    pub queued: usize,
    /// Running jobs.
    pub running: usize,
    /// Jobs that ended since the drain began.
    pub finished: u64,
    /// Jobs that could not be finished.
    pub lost: u64,
    /// Answers that were cut; `None` until known.
    pub cut: Option<u64>,
    /// Time since the drain began.
    pub elapsed: Duration,
    /// Expected time until the end.
    pub expected: Duration,
    /// Time until running jobs are stopped.
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

/// Longest reason that is logged, in bytes.
const MAX_REASON: usize = 256;

/// The span of an operator's action: principal, peer and reason go into its log lines.
fn span<T>(request: &Request<T>, reason: &str) -> Span {
    let arrival = request.extensions().get::<Arrival>();
    let caller = arrival.and_then(|arrival| arrival.caller.as_deref());
    let peer = arrival.and_then(|arrival| arrival.peer.as_deref());
    let reason = (!reason.is_empty()).then(|| shorten(reason, MAX_REASON));
    let (principal, peer) = (caller.map(Caller::principal), peer.map(|peer| display(peer.origin)));
    info_span!("operator", principal, peer, reason)
}

#[async_trait]
impl AdminService for Admin {
    type DrainStream = ResponseStream<DrainResponse>;

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<Self::DrainStream>, Status> {
        span(&request, &request.get_ref().reason).in_scope(|| drain::drain(self, request.get_ref()))
    }

    async fn pause(&self, request: Request<PauseRequest>) -> Result<Response<PauseResponse>, Status> {
        span(&request, &request.get_ref().reason).in_scope(|| pool::pause(self, request.get_ref()))
    }

    async fn resume(&self, request: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, Status> {
        span(&request, &request.get_ref().reason).in_scope(|| pool::resume(self, request.get_ref()))
    }

    async fn resize(&self, request: Request<ResizeRequest>) -> Result<Response<ResizeResponse>, Status> {
        span(&request, &request.get_ref().reason).in_scope(|| pool::resize(self, request.get_ref()))
    }

    async fn cancel_job(&self, request: Request<CancelJobRequest>) -> Result<Response<CancelJobResponse>, Status> {
        span(&request, &request.get_ref().reason).in_scope(|| cancel::cancel_job(self, request.get_ref()))
    }

    async fn reload(&self, request: Request<ReloadRequest>) -> Result<Response<ReloadResponse>, Status> {
        let span = span(&request, &request.get_ref().reason);
        reload::reload(self, request.into_inner()).instrument(span).await
    }

    async fn list_jobs(&self, request: Request<ListJobsRequest>) -> Result<Response<ListJobsResponse>, Status> {
        jobs::list_jobs(self, request.into_inner())
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainResponse>, Status> {
        explain::explain(self, &request.into_inner())
    }
}
