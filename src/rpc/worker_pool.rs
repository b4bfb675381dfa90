use std::{pin::Pin, sync::Arc};

use futures_util::Stream;
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::{Guard, stats, stream, submit, submit_many, trace::Sampler};
use crate::{
    model::DeadlinePolicy,
    phase::PhaseCell,
    pool::Pools,
    proto::{
        StatsRequest, StatsResponse, StreamRequest, StreamResponse, SubmitManyRequest, SubmitManyResponse,
        SubmitRequest, SubmitResponse, WatchStatsRequest, WatchStatsResponse,
        worker_pool_service_server::WorkerPoolService,
    },
    task::Tasks,
};

/// `waterwheel.v1.WorkerPoolService` over a set of pools.
#[derive(Clone)]
pub struct WorkerPool(pub(super) Arc<Parts>);

/// What the RPCs share.
pub(super) struct Parts {
    pub(super) pools: Pools,
    pub(super) phase: PhaseCell,
    pub(super) deadline: DeadlinePolicy,
    pub(super) sampler: Sampler,
    pub(super) window: usize,
    pub(super) tasks: Tasks,
    pub(super) guard: Guard,
    pub(super) started: Instant,
}

/// What a streaming RPC answers with.
pub(super) type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl WorkerPool {
    /// The service; `window` is the most jobs in flight on one `SubmitMany` call.
    #[must_use]
    pub fn new(
        pools: Pools,
        phase: PhaseCell,
        deadline: DeadlinePolicy,
        sampler: Sampler,
        window: usize,
        tasks: Tasks,
        guard: Guard,
    ) -> Self {
        Self(Arc::new(Parts { pools, phase, deadline, sampler, window, tasks, guard, started: Instant::now() }))
    }
}

#[async_trait]
impl WorkerPoolService for WorkerPool {
    type StreamStream = ResponseStream<StreamResponse>;
    type SubmitManyStream = ResponseStream<SubmitManyResponse>;
    type WatchStatsStream = ResponseStream<WatchStatsResponse>;

    async fn submit(&self, request: Request<SubmitRequest>) -> Result<Response<SubmitResponse>, Status> {
        submit::submit(&self.0, request).await
    }

    async fn stream(&self, request: Request<StreamRequest>) -> Result<Response<Self::StreamStream>, Status> {
        stream::stream(&self.0, request).await
    }

    async fn submit_many(
        &self,
        request: Request<Streaming<SubmitManyRequest>>,
    ) -> Result<Response<Self::SubmitManyStream>, Status> {
        submit_many::submit_many(&self.0, request)
    }

    async fn stats(&self, request: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        stats::stats(&self.0, request.into_inner())
    }

    async fn watch_stats(
        &self,
        request: Request<WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        stats::watch_stats(&self.0, request.into_inner())
    }
}
