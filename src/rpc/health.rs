//! The statuses of `grpc.health.v1.Health`, from the state of the process. tonic-health serves them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::{
    ServingStatus,
    pb::{
        HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus as StatusInAnswer,
        health_server::Health as HealthRpc,
    },
    server::{HealthReporter, HealthService},
};

use super::{AccessControl, Watches, service_state::ResponseStream, status, watches::ticks};
use crate::{
    detached::Detached,
    model::Reason,
    phase::{Phase, PhaseCell},
    pool::{Pools, Pressure},
    proto::worker_pool_service_server::SERVICE_NAME,
};

/// Interval of the checks for states without an event: saturation, and stuck pools.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

#[expect(clippy::disallowed_types, reason = "held while the reporter is told, which waits for its own lock alone")]
type Reported = tokio::sync::Mutex<HashMap<String, ServingStatus>>;

/// `grpc.health.v1.Health`.
///
/// | name | SERVING while |
/// |---|---|
/// | `""`, `waterwheel.v1.WorkerPoolService`, `readiness` | the process serves and does not drain |
/// | `liveness` | the process makes progress; a drain does not change it |
/// | `capacity` | the process is ready, and each pool has capacity left |
/// | `store` | the store of detached jobs answers; unknown without a store |
/// | `pool/<name>` | the process serves, and the pool accepts and starts jobs |
///
/// A pool has no capacity left while its queue is saturated: four fifths full, and not yet down to one fifth again
/// (`src/scheduler/transitions.rs`). It also has none while nearly all of its workers are busy, and while half of them
/// are busy and it refuses a tenth of its jobs (`src/pool/pressure.rs`).
#[derive(Clone)]
pub struct Health {
    pools: Pools,
    phase: PhaseCell,
    detached: Option<Detached>,
    watches: Watches,
    /// By pool.
    pressures: Arc<Mutex<Vec<Pressure>>>,
    service: Arc<HealthService>,
    reporter: HealthReporter,
    /// The last status told for each name: the reporter would wake the watches of a name also for a repeated status.
    reported: Arc<Reported>,
}

impl Health {
    /// Health of a process with `pools`.
    pub fn new(pools: Pools, phase: PhaseCell, detached: Option<Detached>) -> Self {
        let watches = Watches::new(phase.clone(), usize::MAX, AccessControl::default());
        let reporter = HealthReporter::new();
        let service = Arc::new(HealthService::from_health_reporter(reporter.clone()));
        let pressures = Arc::new(Mutex::new(vec![Pressure::default(); pools.all().len()]));
        Self { pools, phase, detached, watches, pressures, service, reporter, reported: Arc::default() }
    }

    /// Whether a name is SERVING; false for unknown names.
    pub fn is_serving(&self, name: &str) -> bool {
        self.status(name) == Some(ServingStatus::Serving)
    }

    /// Reports changes to open watches, for ever.
    pub async fn report_changes(self) {
        let pools = self.pools.all().iter().map(|pool| format!("pool/{}", pool.name()));
        let fixed = ["", SERVICE_NAME, "readiness", "liveness", "capacity", "store"].map(str::to_owned);
        let names: Vec<_> = fixed.into_iter().chain(pools).collect();
        let phase_changes = WatchStream::new(self.phase.subscribe()).map(|_| ());
        let samples = ticks(CHECK_INTERVAL).inspect(|()| self.sample());
        let mut checks = stream::select(samples, phase_changes);
        while checks.next().await.is_some() {
            for name in &names {
                self.report(name).await;
            }
        }
    }

    fn sample(&self) {
        let mut pressures = self.pressures.lock();
        pressures.iter_mut().zip(self.pools.all()).for_each(|(pressure, pool)| pressure.sample(&pool.load()));
    }

    /// Reports the current status of one name. Returns false if the name is unknown.
    async fn report(&self, name: &str) -> bool {
        // Locked before the status is read, so that an older status cannot overwrite a newer one.
        let mut reported = self.reported.lock().await;
        let Some(status) = self.status(name) else { return false };
        if reported.insert(name.to_owned(), status) != Some(status) {
            self.reporter.set_service_status(name, status).await;
        }
        true
    }

    /// The status of one name; `None` if it is unknown.
    fn status(&self, name: &str) -> Option<ServingStatus> {
        let ready = self.phase.get() == Phase::Serving;
        let serving = match name {
            "" | SERVICE_NAME | "readiness" => ready,
            "liveness" => !self.pools.all().iter().any(crate::pool::Pool::is_impaired),
            "capacity" => ready && self.pools.has_headroom() && !self.pressures.lock().iter().any(Pressure::is_full),
            "store" => self.detached.as_ref()?.away().is_none(),
            _ => self.pools.get(name.strip_prefix("pool/")?)?.is_serving() && ready,
        };
        Some(if serving { ServingStatus::Serving } else { ServingStatus::NotServing })
    }
}

#[async_trait]
impl HealthRpc for Health {
    type WatchStream = ResponseStream<HealthCheckResponse>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        if !self.report(&request.get_ref().service).await {
            // The caller may be unauthenticated, and must not learn the names of pools.
            return Err(status::saying(Reason::NotFound, "no health service has this name"));
        }
        self.service.check(request).await
    }

    /// Sends the status now and at each change, until the process has stopped. For an unknown name it is
    /// SERVICE_UNKNOWN, and the watch stays open, as the protocol asks; `HealthService` would refuse the call.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let ended = self.watches.open(&request)?;
        if self.report(&request.get_ref().service).await {
            let statuses = self.service.watch(request).await?.into_inner();
            return Ok(Response::new(Box::pin(statuses.take_until(ended))));
        }
        let unknown = HealthCheckResponse { status: StatusInAnswer::ServiceUnknown.into() };
        let statuses = stream::iter([Ok(unknown)]).chain(stream::pending());
        Ok(Response::new(Box::pin(statuses.take_until(ended))))
    }
}
