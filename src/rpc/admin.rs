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
use super::{context::Arrival, message::shorten, worker_pool::ResponseStream};
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
    /// How many answers the drain cut, once that is known: it is over then.
    fn cut(&self) -> watch::Receiver<Option<u64>>;
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
    /// Answers that were cut; `None` until that is known.
    pub cut: Option<u64>,
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

/// Longest reason that is logged, in bytes.
const REASON: usize = 256;

/// What the lines of log of an operator's action tell: who asked for it, from where, and why.
fn span<T>(request: &Request<T>, reason: &str) -> Span {
    let arrival = request.extensions().get::<Arrival>();
    let caller = arrival.and_then(|arrival| arrival.caller.as_deref());
    let peer = arrival.and_then(|arrival| arrival.peer.as_deref());
    let reason = (!reason.is_empty()).then(|| shorten(reason, REASON));
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
