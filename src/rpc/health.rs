use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::IntervalStream;
use tonic::{Request, Response, Status, async_trait};

use super::{Watches, status};
use crate::{
    phase::{Phase, PhaseCell},
    pool::Pools,
    proto::{
        health::{
            HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
            health_check_response::ServingStatus, health_server::Health as HealthService,
        },
        worker_pool_service_server::SERVICE_NAME,
    },
};

/// How often a watch looks at what no event announces: saturation, and pools that got stuck.
const LOOK: Duration = Duration::from_millis(250);

/// `grpc.health.v1.Health`.
///
/// | name | SERVING while |
/// |---|---|
/// | `""`, `waterwheel.v1.WorkerPoolService`, `readiness` | the process serves and does not drain |
/// | `liveness` | the process can make progress; a drain does not change it |
/// | `capacity` | the process is ready, and every pool's queue that was filled to four fifths fell to one fifth since |
/// | `pool/<name>` | the process serves, and the pool takes jobs and starts them |
#[derive(Clone)]
pub struct Health {
    pools: Pools,
    phase: PhaseCell,
    watches: Watches,
}

impl Health {
    /// Health of a process with `pools`.
    #[must_use]
    pub fn new(pools: Pools, phase: PhaseCell) -> Self {
        let watches = Watches::new(phase.clone(), usize::MAX);
        Self { pools, phase, watches }
    }

    /// Whether a name is SERVING. One that does not exist is not.
    #[must_use]
    pub fn is_serving(&self, name: &str) -> bool {
        self.status(name) == Some(ServingStatus::Serving)
    }

    /// The status of one name; `None` where there is no such name.
    fn status(&self, name: &str) -> Option<ServingStatus> {
        let ready = self.phase.get() == Phase::Serving;
        let serving = match name {
            "" | SERVICE_NAME | "readiness" => ready,
            "liveness" => !self.pools.all().iter().any(crate::pool::Pool::is_impaired),
            "capacity" => ready && self.pools.has_headroom(),
            _ => self.pools.get(name.strip_prefix("pool/")?)?.is_serving() && ready,
        };
        Some(if serving { ServingStatus::Serving } else { ServingStatus::NotServing })
    }

    fn names(&self) -> Vec<String> {
        let fixed = ["", SERVICE_NAME, "readiness", "liveness", "capacity"].map(str::to_owned);
        let pools = self.pools.all().iter().map(|pool| format!("pool/{}", pool.name()));
        fixed.into_iter().chain(pools).collect()
    }
}

type Watch = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

#[async_trait]
impl HealthService for Health {
    type WatchStream = Watch;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let status = self.status(&request.into_inner().service);
        // Whoever asks need not be known, and is not told the names of pools.
        let status = status.ok_or_else(|| status::not_found("health knows no service of this name".to_owned()))?;
        Ok(Response::new(answer(status)))
    }

    async fn list(&self, _: Request<HealthListRequest>) -> Result<Response<HealthListResponse>, Status> {
        let statuses = self.names().into_iter().filter_map(|name| {
            let status = self.status(&name)?;
            Some((name, answer(status)))
        });
        Ok(Response::new(HealthListResponse { statuses: statuses.collect() }))
    }

    /// The status now and whenever it changes, until nothing runs any more. A name that does not exist is SERVICE_UNKNOWN, and the watch stays.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Watch>, Status> {
        let ended = self.watches.open(&request)?;
        let name = request.into_inner().service;
        let health = Arc::new(self.clone());
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let moves = tokio_stream::wrappers::WatchStream::new(self.phase.subscribe());
        let looks = stream::select(IntervalStream::new(ticks).map(|_| ()), moves.map(|_| ()));
        let changes = looks
            .map(move |()| health.status(&name).unwrap_or(ServingStatus::ServiceUnknown))
            .scan(None, |last, status| {
                let changed = last.replace(status) != Some(status);
                std::future::ready(Some(changed.then_some(status)))
            })
            .filter_map(|change| std::future::ready(change.map(|status| Ok(answer(status)))));
        Ok(Response::new(Box::pin(changes.take_until(ended))))
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
