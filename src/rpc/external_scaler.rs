//! KEDA's `externalscaler.ExternalScaler`: how many jobs want the workers of a pool, over all servers of the store.
//! `src/detached/demand.rs` adds them up.

use std::{future::ready, num::NonZeroU32, sync::Arc, time::Duration};

use futures_util::StreamExt;
use tonic::{Request, Response, Status, async_trait};

use super::{
    service_state::{CallerServices, ResponseStream, ServiceState},
    status::{self, invalid_field},
    watches::{ticks, until},
};
use crate::{
    detached::Detached,
    pool::{Pool, Pools},
    proto::externalscaler::{
        GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
        ScaledObjectRef, external_scaler_server::ExternalScaler,
    },
};

/// Name of the only metric. KEDA asks for it with or without a prefix, and Kubernetes in lower case, so the name in a
/// request is not compared.
const METRIC: &str = "waterwheel-jobs";
/// Time between two looks of a stream.
const LOOK: Duration = Duration::from_millis(250);

#[async_trait]
impl ExternalScaler for CallerServices {
    async fn is_active(&self, request: Request<ScaledObjectRef>) -> Result<Response<IsActiveResponse>, Status> {
        let target = Target::read(&self.0.pools, request.get_ref())?;
        Ok(Response::new(IsActiveResponse { result: is_active(&self.0, &target.pool)? }))
    }

    type StreamIsActiveStream = ResponseStream<IsActiveResponse>;

    /// Sends the state now, and each change: KEDA takes a repeated `true` for new activity. While the store is away,
    /// nothing changes.
    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        let Target { pool, .. } = Target::read(&self.0.pools, request.get_ref())?;
        let ended = self.0.watches.open(&request)?;
        let (service, mut last) = (Arc::clone(&self.0), None);
        let changes = ticks(LOOK).filter_map(move |()| {
            let active = is_active(&service, &pool).ok().filter(|active| last.replace(*active) != Some(*active));
            ready(active.map(|result| Ok(IsActiveResponse { result })))
        });
        Ok(Response::new(until(ended, changes)))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        let jobs = Target::read(&self.0.pools, request.get_ref())?.jobs_per_worker.get();
        let (target_size, target_size_float) = (jobs.into(), jobs.into());
        let spec = MetricSpec { metric_name: METRIC.to_owned(), target_size, target_size_float };
        Ok(Response::new(GetMetricSpecResponse { metric_specs: vec![spec] }))
    }

    async fn get_metrics(&self, request: Request<GetMetricsRequest>) -> Result<Response<GetMetricsResponse>, Status> {
        let target = Target::read(&self.0.pools, &request.into_inner().scaled_object_ref.unwrap_or_default())?;
        let jobs = demand(&self.0, &target.pool)?;
        let metric_value = i64::try_from(jobs).unwrap_or(i64::MAX);
        let value = MetricValue { metric_name: METRIC.to_owned(), metric_value, metric_value_float: jobs as f64 };
        Ok(Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }
}

/// Whether the pool needs a worker. A job of this server says so without the store.
fn is_active(service: &ServiceState, pool: &Pool) -> Result<bool, Status> {
    Ok(pool.demand() > 0 || demand(service, pool)? > 0)
}

/// Jobs that run and wait. Without the store the answer is an error, so that KEDA keeps the workers that it has.
fn demand(service: &ServiceState, pool: &Pool) -> Result<u64, Status> {
    let own = pool.demand();
    let Some(detached) = &service.detached else { return Ok(own) };
    let of_store = Detached::demand(detached, pool);
    of_store.map(|more| own.saturating_add(more)).map_err(|cause| status::store_unavailable(&cause))
}

/// What the metadata of a trigger name.
struct Target {
    pool: Pool,
    jobs_per_worker: NonZeroU32,
}

impl Target {
    fn read(pools: &Pools, object: &ScaledObjectRef) -> Result<Self, Status> {
        let of = |key: &str| object.scaler_metadata.get(key).map(|value| value.trim());
        let pool = of("pool").and_then(|name| pools.get(name)).cloned().ok_or_else(|| {
            let names: Vec<_> = pools.all().iter().map(|pool| &**pool.name()).collect();
            let rule = format!("set it in the metadata of the trigger to one of {}", names.join(", "));
            invalid_field("scalerMetadata.pool", &rule)
        })?;
        let jobs = of("jobsPerWorker").unwrap_or("1").parse();
        let jobs_per_worker = jobs.map_err(|_| {
            let rule =
                "set it to the jobs that one worker is to have, such as its slots: a whole number from 1, in quotes";
            invalid_field("scalerMetadata.jobsPerWorker", rule)
        })?;
        Ok(Self { pool, jobs_per_worker })
    }
}
