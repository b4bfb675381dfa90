//! `WorkerPoolService`: its service, and one method for each RPC. A new RPC also needs a row in `src/auth/rule.rs`.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::Stream;
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status, Streaming, async_trait};

use super::{AccessControl, Watches, calls::Calls, stats, submit, submit_many, trace::Sampler};
use crate::{
    auth::Rpc,
    detached::Detached,
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
pub struct CallerServices(pub(super) Arc<ServiceState>);

/// State that the RPCs share.
pub struct ServiceState {
    /// The pools that run the jobs.
    pub pools: Pools,
    /// The detached jobs; `None` without a store.
    pub detached: Option<Detached>,
    /// Phase of the process.
    pub phase: PhaseCell,
    /// Policy for deadlines.
    pub deadline: DeadlinePolicy,
    /// Chooses the traced calls.
    pub sampler: Sampler,
    /// Most jobs in flight on one `SubmitMany` call.
    pub window: usize,
    /// Largest message, in bytes.
    pub largest_message: usize,
    /// Runs the tasks of calls.
    pub tasks: Tasks,
    /// Authorization of calls and jobs.
    pub access: AccessControl,
    /// Start of the process.
    pub started: Instant,
    /// Records the durations of calls.
    pub calls: Calls,
    /// Open watches of the stats.
    pub watches: Watches,
    /// Time after which an attached worker is asked to leave and to attach again.
    pub max_attached: Duration,
}

/// The response of a streaming RPC.
pub(super) type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl CallerServices {
    /// The services of callers with this state.
    #[must_use]
    pub fn new(service: ServiceState) -> Self {
        Self(Arc::new(service))
    }
}

#[async_trait]
impl WorkerPoolService for CallerServices {
    type StreamStream = ResponseStream<StreamResponse>;
    type SubmitManyStream = ResponseStream<SubmitManyResponse>;
    type WatchStatsStream = ResponseStream<WatchStatsResponse>;

    // Like the code that the macro generates, except that the request is read before the future is created.
    fn submit<'a, 'b>(
        &'a self,
        request: Request<SubmitRequest>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<SubmitResponse>, Status>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(submit::submit(&self.0, request))
    }

    async fn stream(&self, request: Request<StreamRequest>) -> Result<Response<Self::StreamStream>, Status> {
        submit::stream(&self.0, request).await
    }

    async fn submit_many(
        &self,
        request: Request<Streaming<SubmitManyRequest>>,
    ) -> Result<Response<Self::SubmitManyStream>, Status> {
        submit_many::submit_many(&self.0, request)
    }

    async fn stats(&self, request: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        let meter = Calls::begin(&self.0.calls, Rpc::Stats, None, Instant::now());
        let answer = stats::stats(&self.0, request.into_inner());
        meter.end(answer.as_ref().map_or_else(Status::code, |_| Code::Ok));
        answer
    }

    async fn watch_stats(
        &self,
        request: Request<WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        let answer = stats::watch_stats(&self.0, request);
        if let Err(status) = &answer {
            self.0.calls.refuse(Rpc::WatchStats, status.code());
        }
        answer
    }
}
