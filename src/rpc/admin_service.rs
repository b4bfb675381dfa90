//! `AdminService`, and its RPCs `Pause`, `Resume`, `Resize`, `Drain`, `Reload`, `Advise` and `Restart`. `src/app/`
//! carries out reloads, forecasts and drains of the process, and `src/pool/drain.rs` drains one pool.

mod any_id;
mod pool_jobs;
mod reload;
mod stored_state;
mod suspend;

pub use reload::{DryRun, ReloadFault, SettingChange};

use std::{future::ready, num::NonZeroUsize, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, future::BoxFuture, stream};
use tokio::{sync::watch, time::Instant};
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status, async_trait};
use tracing::{Instrument, info};

use super::{
    context::{Arrival, operator, span},
    convert::{duration, listed_schedule, phase},
    recent,
    routes::of_operators,
    service_state::ResponseStream,
    stats::{check_pool, no_pool, size_stats},
    status::{failed_precondition, invalid_field},
    watches::ticks,
};
use crate::{
    auth::{Caller, Rpc},
    detached::Detached,
    model::Reason,
    monitor::{Monitor, Operator},
    phase::Phase,
    pool::{Pool, Pools, RestartFault},
    proto::{
        self, AdviseRequest, AdviseResponse, CancelJobRequest, CancelJobResponse, DrainRequest, DrainResponse,
        ExplainRequest, ExplainResponse, ListJobsRequest, ListJobsResponse, ListSchedulesRequest,
        ListSchedulesResponse, PauseRequest, PauseResponse, PoolForecast, PoolState, ReloadRequest, ReloadResponse,
        ResizeRequest, ResizeResponse, RestartRequest, RestartResponse, ResumeRequest, ResumeResponse,
        StatsHistoryRequest, StatsHistoryResponse, WhoAmIRequest, WhoAmIResponse, admin_service_server::AdminService,
    },
};

/// What `AdminService` can control.
pub trait DrainControl: Send + Sync + 'static {
    /// Starts the drain. Further calls do nothing.
    fn drain(&self);
    /// Progress of the drain.
    fn progress(&self) -> DrainProgress;
    /// The same as a message.
    fn report(&self) -> DrainResponse {
        recent::drain(&self.progress())
    }
    /// A receiver of the phase of the process.
    fn phase(&self) -> watch::Receiver<Phase>;
    /// A receiver of the number of answers that the drain cut off; `None` until the drain is over.
    fn cut(&self) -> watch::Receiver<Option<u64>>;
    /// Reads the configuration again, and applies all changes or none.
    ///
    /// # Errors
    /// The reason why nothing was changed.
    fn reload(&self) -> BoxFuture<'_, Result<Vec<SettingChange>, ReloadFault>>;
    /// Reads the configuration again, and changes nothing.
    ///
    /// # Errors
    /// The reason why a reload would change nothing.
    fn try_reload(&self) -> BoxFuture<'_, Result<DryRun, ReloadFault>>;
    /// Replays the last jobs of `pools` with other numbers of workers.
    ///
    /// # Errors
    /// That the server drains, or the replay panicked.
    fn advise(&self, pools: Vec<Pool>) -> BoxFuture<'_, Result<Vec<PoolForecast>, ReloadFault>>;
}

/// Progress of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Detached jobs that were stopped, and are back in their store.
    pub given_back: u64,
    /// Answers that were cut off; `None` until known.
    pub cut: Option<u64>,
    /// Time since the drain began.
    pub elapsed: Duration,
    /// Expected time until the drain ends.
    pub expected: Duration,
    /// Time until running jobs are stopped.
    pub hard_stop: Duration,
    /// Jobs that will probably not end before.
    pub likely_lost: u64,
    /// Ids of the first jobs that will not be finished.
    pub lost_jobs: Vec<String>,
    /// Who started it, and why.
    pub operator: Operator,
}

/// `waterwheel.v1.AdminService`.
#[derive(Clone)]
pub struct Admin {
    control: Arc<dyn DrainControl>,
    pools: Pools,
    /// `None` without a store.
    detached: Option<Detached>,
    monitor: Monitor,
}

impl Admin {
    /// The service for `control` and `pools`, which `monitor` watches.
    pub fn new(control: Arc<dyn DrainControl>, pools: Pools, detached: Option<Detached>, monitor: Monitor) -> Self {
        Self { control, pools, detached, monitor }
    }
}

/// Number of next ticks of a schedule in an answer.
const NEXT_TICKS: usize = 3;

#[async_trait]
impl AdminService for Admin {
    type DrainStream = ResponseStream<DrainResponse>;

    /// Drains the process, or one pool.
    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<Self::DrainStream>, Status> {
        let DrainRequest { pool, reason } = request.get_ref();
        let span = span(&request, reason);
        if pool.is_empty() {
            let _entered = span.entered();
            if self.control.phase().borrow().lt(&Phase::Draining) {
                self.monitor.note("", operator(&request, reason));
            }
            return Ok(Response::new(drain_all(self)));
        }
        let found = find(self, pool)?.clone();
        let reports = span.in_scope(|| drain_one(self, found.clone()));
        self.note(&found, true, operator(&request, reason)).instrument(span).await?;
        Ok(Response::new(reports))
    }

    /// Stops starting jobs of a pool.
    async fn pause(&self, request: Request<PauseRequest>) -> Result<Response<PauseResponse>, Status> {
        suspend::pause(self, &request).await
    }

    /// Starts jobs of a pool again.
    async fn resume(&self, request: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, Status> {
        suspend::resume(self, &request).await
    }

    /// Changes the number of workers.
    async fn resize(&self, request: Request<ResizeRequest>) -> Result<Response<ResizeResponse>, Status> {
        let _entered = span(&request, &request.get_ref().reason).entered();
        let ResizeRequest { pool, min_workers: min, max_workers: max, reason: _ } = request.get_ref();
        let pool = find(self, pool)?;
        let max = if *max == 0 { min } else { max };
        let Some(least) = count(*min) else {
            return Err(invalid_field("min_workers", &format!("send 1 to {MAX_WORKERS}")));
        };
        let Some(most) = count(*max).filter(|most| *most >= least) else {
            return Err(invalid_field(
                "max_workers",
                &format!("send min_workers to {MAX_WORKERS}, or 0 for min_workers"),
            ));
        };
        check_serving(pool)?;
        if !pool.resize(least, most) {
            return Err(invalid_field("pool", "its workers attach from elsewhere; attach more of them, or fewer"));
        }
        info!(pool = %pool.name(), min, max, "an operator resized the pool");
        Ok(Response::new(ResizeResponse { pool: Some(state(pool)) }))
    }

    async fn cancel_job(&self, request: Request<CancelJobRequest>) -> Result<Response<CancelJobResponse>, Status> {
        let span = span(&request, &request.get_ref().reason);
        any_id::cancel_job(self, request.get_ref()).instrument(span).await
    }

    /// Reloads the configuration.
    async fn reload(&self, request: Request<ReloadRequest>) -> Result<Response<ReloadResponse>, Status> {
        let span = span(&request, &request.get_ref().reason);
        reload::reload(&*self.control, request.get_ref().dry_run).instrument(span).await.map(Response::new)
    }

    /// Replays the last jobs with other numbers of workers.
    async fn advise(&self, request: Request<AdviseRequest>) -> Result<Response<AdviseResponse>, Status> {
        let pool = &request.get_ref().pool;
        check_pool(&self.pools, pool)?;
        let asked = self.pools.all().iter().filter(|it| pool.is_empty() || **it.name() == **pool).cloned().collect();
        let pools = self.control.advise(asked).await.map_err(|fault| reload::status_of(&fault))?;
        Ok(Response::new(AdviseResponse { pools }))
    }

    /// Replaces the processes of a pool.
    async fn restart(&self, request: Request<RestartRequest>) -> Result<Response<RestartResponse>, Status> {
        let span = span(&request, &request.get_ref().reason);
        let pool = find(self, &request.get_ref().pool)?;
        check_serving(pool)?;
        pool.restart().instrument(span.clone()).await.map_err(|fault| match fault {
            RestartFault::NoProgram => invalid_field("pool", &fault.to_string()),
            RestartFault::CannotStart { .. } => failed_precondition(Reason::HandlerUnavailable, fault.to_string()),
        })?;
        span.in_scope(|| info!(pool = %pool.name(), "an operator restarts the programs of the pool"));
        Ok(Response::new(RestartResponse { pool: Some(state(pool)) }))
    }

    async fn list_jobs(&self, request: Request<ListJobsRequest>) -> Result<Response<ListJobsResponse>, Status> {
        pool_jobs::list_jobs(self, request.into_inner())
    }

    async fn stats_history(
        &self,
        request: Request<StatsHistoryRequest>,
    ) -> Result<Response<StatsHistoryResponse>, Status> {
        let pool = &request.get_ref().pool;
        check_pool(&self.pools, pool)?;
        Ok(Response::new(recent::history(&self.monitor, pool)))
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainResponse>, Status> {
        any_id::explain(self, &request.into_inner().id).await.map(Response::new)
    }

    async fn list_schedules(
        &self,
        _: Request<ListSchedulesRequest>,
    ) -> Result<Response<ListSchedulesResponse>, Status> {
        let schedules = self.detached.iter().flat_map(|detached| detached.schedules(NEXT_TICKS)).map(listed_schedule);
        Ok(Response::new(ListSchedulesResponse { schedules: schedules.collect() }))
    }

    async fn who_am_i(&self, request: Request<WhoAmIRequest>) -> Result<Response<WhoAmIResponse>, Status> {
        let caller = request.extensions().get::<Arrival>().and_then(|arrival| arrival.caller.as_deref());
        let may = |rpc: &Rpc| caller.is_none_or(|caller| caller.may_call(*rpc).is_ok());
        let rpcs = of_operators().filter(may).map(|rpc| rpc.name().to_owned()).collect();
        let principal = caller.map(Caller::principal).unwrap_or_default().to_owned();
        Ok(Response::new(WhoAmIResponse { principal, rpcs }))
    }
}

/// Largest number of workers of a pool, the same as in the configuration.
const MAX_WORKERS: u32 = 65_536;
/// Interval of the progress reports of a drain.
const REPORT: Duration = Duration::from_millis(100);

/// The pool named `name`.
fn find<'a>(admin: &'a Admin, name: &str) -> Result<&'a Pool, Status> {
    if name.is_empty() {
        let names: Vec<_> = admin.pools.all().iter().map(|pool| &**pool.name()).collect();
        return Err(invalid_field("pool", &format!("name one of {}", names.join(", "))));
    }
    admin.pools.get(name).ok_or_else(|| no_pool(&admin.pools, name))
}

fn count(workers: u32) -> Option<NonZeroUsize> {
    let count = usize::try_from(workers).ok().and_then(NonZeroUsize::new);
    count.filter(|_| workers <= MAX_WORKERS)
}

fn check_serving(pool: &Pool) -> Result<(), Status> {
    if pool.phase() < Phase::Draining {
        return Ok(());
    }
    Err(failed_precondition(Reason::Draining, Reason::Draining.words()))
}

fn state(pool: &Pool) -> PoolState {
    let stats = pool.stats();
    PoolState {
        name: stats.name.to_string(),
        phase: phase(stats.phase).into(),
        paused: stats.paused.map(duration),
        queued: stats.queued as u64,
        running: stats.in_flight as u64,
        size: Some(size_stats(&stats.size)),
    }
}

fn drain_all(admin: &Admin) -> ResponseStream<DrainResponse> {
    info!("an operator drains the server");
    admin.control.drain();
    let control = Arc::clone(&admin.control);
    // The end is reported at once, because the connection closes soon after.
    let settled = WatchStream::new(control.cut()).map(|_| ());
    reports(admin, settled, move || {
        let progress = control.progress();
        (recent::drain(&progress), progress.cut.is_some())
    })
}

fn drain_one(admin: &Admin, pool: Pool) -> ResponseStream<DrainResponse> {
    pool.shut();
    info!(pool = %pool.name(), "an operator drains the pool");
    let (begin, before) = (Instant::now(), pool.stats().counts.ended());
    let monitor = admin.monitor.clone();
    // A drain of the process, which also drains this pool, is reported in the same way.
    reports(admin, stream::pending(), move || {
        let expected = monitor.outlook(&pool, Duration::MAX).expected;
        let report = DrainResponse { expected: Some(duration(expected)), ..report_of(&pool, begin, before) };
        let is_last = matches!(report.phase(), proto::Phase::Stopped | proto::Phase::Serving);
        (report, is_last)
    })
}

/// Reports progress at each interval, at each change of the phase, and at each of `events`, up to the final report.
fn reports(
    admin: &Admin,
    events: impl Stream<Item = ()> + Send + 'static,
    mut report: impl FnMut() -> (DrainResponse, bool) + Send + 'static,
) -> ResponseStream<DrainResponse> {
    let phases = WatchStream::new(admin.control.phase()).map(|_| ());
    let updates = stream::select(stream::select(ticks(REPORT), phases), events);
    Box::pin(updates.scan(false, move |ended, ()| {
        if *ended {
            return ready(None);
        }
        let (report, is_last) = report();
        *ended = is_last;
        ready(Some(Ok(report)))
    }))
}

fn report_of(pool: &Pool, begin: Instant, before: u64) -> DrainResponse {
    let stats = pool.stats();
    // Detached jobs go back to their store.
    let lost = pool.report().lost.iter().filter(|job| !job.is_detached).count() as u64;
    DrainResponse {
        phase: phase(stats.phase).into(),
        queued: stats.queued as u64,
        running: stats.in_flight as u64,
        finished: (stats.counts.ended() - before).saturating_sub(lost),
        lost,
        elapsed: Some(duration(begin.elapsed())),
        ..DrainResponse::default()
    }
}
