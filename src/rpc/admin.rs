mod explain;

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tokio_stream::wrappers::{IntervalStream, WatchStream};
use tonic::{Request, Response, Status, async_trait};

use super::convert::{duration, phase};
use crate::{
    phase::Phase,
    pool::Pools,
    proto::{DrainRequest, DrainResponse, ExplainRequest, ExplainResponse, admin_service_server::AdminService},
};

const REPORT: Duration = Duration::from_millis(100);

/// What the operator's service steers.
pub trait DrainControl: Send + Sync + 'static {
    /// Starts the drain; does nothing where it is under way.
    fn drain(&self);
    /// How far the drain is.
    fn progress(&self) -> DrainProgress;
    /// Follows the phase of the process.
    fn phase(&self) -> watch::Receiver<Phase>;
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
    type DrainStream = Pin<Box<dyn Stream<Item = Result<DrainResponse, Status>> + Send>>;

    async fn drain(&self, _: Request<DrainRequest>) -> Result<Response<Self::DrainStream>, Status> {
        self.control.drain();
        let control = Arc::clone(&self.control);
        let mut ticks = interval(REPORT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // The end is reported at once, for the connection does not last much longer.
        let moves = WatchStream::new(control.phase()).map(|_| ());
        let looks = stream::select(IntervalStream::new(ticks).map(|_| ()), moves);
        let reports = looks.map(move |()| control.progress()).scan(false, |ended, progress| {
            let report = (!*ended).then(|| Ok(report(&progress)));
            *ended = progress.phase == Phase::Stopped;
            std::future::ready(report)
        });
        Ok(Response::new(Box::pin(reports)))
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainResponse>, Status> {
        explain::explain(self, &request.into_inner())
    }
}

fn report(progress: &DrainProgress) -> DrainResponse {
    let DrainProgress { phase: reached, queued, running, finished, lost, elapsed, expected, hard_stop } = *progress;
    DrainResponse {
        phase: phase(reached).into(),
        queued: queued as u64,
        running: running as u64,
        finished,
        lost,
        elapsed: Some(duration(elapsed)),
        expected: Some(duration(expected)),
        hard_stop: Some(duration(hard_stop)),
    }
}
