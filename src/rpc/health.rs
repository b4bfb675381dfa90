//! `grpc.health.v1.Health`: maps the state of the process to the health of service names.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status, async_trait};

use super::{Watches, status, watches::ticks, worker_pool_service::ResponseStream};
use crate::{
    detached::Detached,
    model::Reason,
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

/// Interval of the checks for states without an event: saturation, and stuck pools.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// `grpc.health.v1.Health`.
///
/// | name | SERVING while |
/// |---|---|
/// | `""`, `waterwheel.v1.WorkerPoolService`, `readiness` | the process serves and does not drain |
/// | `liveness` | the process makes progress; a drain does not change it |
/// | `capacity` | the process is ready, and no pool's queue is saturated: four fifths full, and not yet down to one
/// fifth again |
/// | `store` | the store of detached jobs answers; unknown without a store |
/// | `pool/<name>` | the process serves, and the pool accepts and starts jobs |
#[derive(Clone)]
pub struct Health {
    pools: Pools,
    phase: PhaseCell,
    detached: Option<Detached>,
    watches: Watches,
}

impl Health {
    /// Health of a process with `pools`.
    #[must_use]
    pub fn new(pools: Pools, phase: PhaseCell, detached: Option<Detached>) -> Self {
        let watches = Watches::new(phase.clone(), usize::MAX);
        Self { pools, phase, detached, watches }
    }

    /// Whether a name is SERVING; false for unknown names.
    #[must_use]
    pub fn is_serving(&self, name: &str) -> bool {
        self.status(name) == Some(ServingStatus::Serving)
    }

    /// The status of one name; `None` if it is unknown.
    fn status(&self, name: &str) -> Option<ServingStatus> {
        let ready = self.phase.get() == Phase::Serving;
        let serving = match name {
            "" | SERVICE_NAME | "readiness" => ready,
            "liveness" => !self.pools.all().iter().any(crate::pool::Pool::is_impaired),
            "capacity" => ready && self.pools.has_headroom(),
            "store" => self.detached.as_ref()?.is_well(),
            _ => self.pools.get(name.strip_prefix("pool/")?)?.is_serving() && ready,
        };
        Some(if serving { ServingStatus::Serving } else { ServingStatus::NotServing })
    }

    fn names(&self) -> Vec<String> {
        let fixed = ["", SERVICE_NAME, "readiness", "liveness", "capacity"].map(str::to_owned);
        let store = self.detached.is_some().then(|| "store".to_owned());
        let pools = self.pools.all().iter().map(|pool| format!("pool/{}", pool.name()));
        fixed.into_iter().chain(store).chain(pools).collect()
    }
}

#[async_trait]
impl HealthService for Health {
    type WatchStream = ResponseStream<HealthCheckResponse>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let status = self.status(&request.into_inner().service);
        // The caller may be unauthenticated, and must not learn the names of pools.
        let status = status.ok_or_else(|| status::saying(Reason::NotFound, "health knows no service of this name"))?;
        Ok(Response::new(answer(status)))
    }

    async fn list(&self, _: Request<HealthListRequest>) -> Result<Response<HealthListResponse>, Status> {
        let statuses = self.names().into_iter().filter_map(|name| {
            let status = self.status(&name)?;
            Some((name, answer(status)))
        });
        Ok(Response::new(HealthListResponse { statuses: statuses.collect() }))
    }

    /// Sends the status now and at each change, until the process has stopped. For an unknown name it is
    /// SERVICE_UNKNOWN, and the watch stays open.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let ended = self.watches.open(&request)?;
        let name = request.into_inner().service;
        let health = Arc::new(self.clone());
        let moves = WatchStream::new(self.phase.subscribe()).map(|_| ());
        let checks = stream::select(ticks(CHECK_INTERVAL), moves);
        let changes = checks
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
