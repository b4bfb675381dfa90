//! `AdminService`, and its RPC `Reload`. `src/app/` carries out reloads and drains.

mod pool_jobs;
mod pools;

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tonic::{Request, Response, Status, async_trait};
use tracing::{Instrument, Span, field::display, info_span};

use super::{
    context::Arrival,
    status::{self, failed_precondition},
    status_message::shorten,
    worker_pool_service::ResponseStream,
};
use crate::{
    auth::Caller,
    model::Reason,
    phase::Phase,
    pool::Pools,
    proto::{
        self, CancelJobRequest, CancelJobResponse, DrainRequest, DrainResponse, ExplainRequest, ExplainResponse,
        ListJobsRequest, ListJobsResponse, PauseRequest, PauseResponse, ReloadRequest, ReloadResponse, ResizeRequest,
        ResizeResponse, ResumeRequest, ResumeResponse, admin_service_server::AdminService,
    },
    task::off_thread,
};

/// What `AdminService` can control.
pub trait DrainControl: Send + Sync + 'static {
    /// Starts the drain. Further calls do nothing.
    fn drain(&self);
    /// Progress of the drain.
    fn progress(&self) -> DrainProgress;
    /// A receiver of the phase of the process.
    fn phase(&self) -> watch::Receiver<Phase>;
    /// A receiver of the number of answers that the drain cut off; `None` until the drain is over.
    fn cut(&self) -> watch::Receiver<Option<u64>>;
    /// Reads the configuration again, and applies all changes or none. A dry run only returns the changes. May block.
    ///
    /// # Errors
    /// The reason why nothing was changed.
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
    /// Jobs that will not be finished.
    pub lost: u64,
    /// Answers that were cut off; `None` until known.
    pub cut: Option<u64>,
    /// Time since the drain began.
    pub elapsed: Duration,
    /// Expected time until the drain ends.
    pub expected: Duration,
    /// Time until running jobs are stopped.
    pub hard_stop: Duration,
}

/// A changed configuration key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingChange {
    /// Dotted key.
    pub key: String,
    /// The old value.
    pub old: String,
    /// The new value.
    pub new: String,
    /// Whether the change needs a restart.
    pub needs_restart: bool,
}

/// Why a reload applied nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReloadFault {
    /// The service does not know the source of its configuration.
    #[error("this service has no configuration file to reload")]
    NoSource,
    /// The server is draining.
    #[error("the server is draining")]
    Draining,
    /// The configuration has faults. Empty lines separate them in the report.
    #[error("{}", in_one_line(.0))]
    Faulty(String),
    /// Some of these changes need a restart.
    #[error("a restart is needed for {}", keys(.0))]
    NeedsRestart(Vec<SettingChange>),
}

/// `waterwheel.v1.AdminService`.
#[derive(Clone)]
pub struct Admin {
    control: Arc<dyn DrainControl>,
    pools: Pools,
}

impl Admin {
    /// The service for `control` and `pools`.
    #[must_use]
    pub fn new(control: Arc<dyn DrainControl>, pools: Pools) -> Self {
        Self { control, pools }
    }
}

/// Longest logged reason, in bytes.
const MAX_REASON: usize = 256;

/// The span of an operator's action. It adds principal, peer and reason to log lines.
fn span<T>(request: &Request<T>, reason: &str) -> Span {
    let arrival = request.extensions().get::<Arrival>();
    let caller = arrival.and_then(|arrival| arrival.caller.as_deref());
    let reason = (!reason.is_empty()).then(|| shorten(reason, MAX_REASON));
    let (principal, peer) = (caller.map(Caller::principal), arrival.map(|arrival| display(arrival.peer.origin)));
    info_span!("operator", principal, peer, reason)
}

#[async_trait]
impl AdminService for Admin {
    type DrainStream = ResponseStream<DrainResponse>;

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<Self::DrainStream>, Status> {
        span(&request, &request.get_ref().reason).in_scope(|| pools::drain(self, request.get_ref()))
    }

    async fn pause(&self, request: Request<PauseRequest>) -> Result<Response<PauseResponse>, Status> {
        span(&request, &request.get_ref().reason).in_scope(|| pools::pause(self, request.get_ref()))
    }

    async fn resume(&self, request: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, Status> {
        span(&request, &request.get_ref().reason).in_scope(|| pools::resume(self, request.get_ref()))
    }

    async fn resize(&self, request: Request<ResizeRequest>) -> Result<Response<ResizeResponse>, Status> {
        span(&request, &request.get_ref().reason).in_scope(|| pools::resize(self, request.get_ref()))
    }

    async fn cancel_job(&self, request: Request<CancelJobRequest>) -> Result<Response<CancelJobResponse>, Status> {
        span(&request, &request.get_ref().reason).in_scope(|| pool_jobs::cancel_job(self, request.get_ref()))
    }

    async fn reload(&self, request: Request<ReloadRequest>) -> Result<Response<ReloadResponse>, Status> {
        let span = span(&request, &request.get_ref().reason);
        reload(self, request.into_inner()).instrument(span).await
    }

    async fn list_jobs(&self, request: Request<ListJobsRequest>) -> Result<Response<ListJobsResponse>, Status> {
        pool_jobs::list_jobs(self, request.into_inner())
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainResponse>, Status> {
        pool_jobs::explain(self, &request.into_inner())
    }
}

/// Reloads the configuration.
async fn reload(admin: &Admin, request: ReloadRequest) -> Result<Response<ReloadResponse>, Status> {
    let ReloadRequest { dry_run, reason: _ } = request;
    let control = Arc::clone(&admin.control);
    let span = Span::current();
    let reloaded = off_thread(move || span.in_scope(|| control.reload(dry_run))).await;
    let (changes, faults, applied) = match reloaded.map_err(|_| status::internal("the reload panicked"))? {
        Ok(changes) => (changes, String::new(), !dry_run),
        Err(ReloadFault::NeedsRestart(changes)) => (changes, String::new(), false),
        Err(ReloadFault::Faulty(faults)) => (Vec::new(), faults, false),
        Err(fault @ ReloadFault::NoSource) => return Err(failed_precondition(Reason::NoConfig, fault.to_string())),
        Err(fault @ ReloadFault::Draining) => return Err(failed_precondition(Reason::Draining, fault.to_string())),
    };
    let change = |SettingChange { key, old, new, needs_restart }| proto::SettingChange {
        key,
        old_value: old,
        new_value: new,
        needs_restart,
    };
    let changes = changes.into_iter().map(change).collect();
    Ok(Response::new(ReloadResponse { applied, changes, faults }))
}

/// Each fault with its position, joined in one line.
fn in_one_line(report: &str) -> String {
    let headline =
        |line: &str| ["error: ", "--> "].iter().find_map(|mark| line.trim().strip_prefix(mark).map(str::to_owned));
    let faults = report.split("\n\n").map(|fault| fault.lines().filter_map(headline).collect::<Vec<_>>().join(" at "));
    faults.collect::<Vec<_>>().join("; ")
}

fn keys(changes: &[SettingChange]) -> String {
    let keys = changes.iter().filter(|change| change.needs_restart).map(|change| change.key.as_str());
    keys.collect::<Vec<_>>().join(", ")
}
