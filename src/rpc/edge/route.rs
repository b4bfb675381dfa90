//! Records the arrival of a call, and routes it to its service.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::service::Service;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{body::Body, service::Routes};
use tower::{BoxError, Service as _};

use crate::{
    auth::Rpc,
    memory::{ConnectionMemory, HeldBack},
    model::Peer,
    proto::worker_pool_service_server::WorkerPoolServiceServer,
    rpc::{
        CallerServices, calls,
        context::Arrival,
        job_service::CREATE_JOBS,
        routes::Catalog,
        upload::{Expected, Upload},
        worker_service::ATTACH,
    },
};

/// A call, with the results of the layers.
pub struct Arrived<B> {
    pub(super) request: Request<B>,
    /// Its method, if it is one of the worker pool.
    pub(super) method: Option<Rpc>,
    pub(super) arrival: Arrival,
}

/// Records when a call arrived, and whether it is for the worker pool.
#[derive(Clone)]
pub struct Arrivals<S> {
    pub(super) has_pool: bool,
    /// The other end of the connection.
    pub(super) peer: Arc<Peer>,
    pub(super) memory: Arc<ConnectionMemory>,
    pub(super) inner: S,
}

impl<B, S: Service<Arrived<B>>> Service<Request<B>> for Arrivals<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, request: Request<B>) -> S::Future {
        let method = if self.has_pool { calls::of_worker_pool(request.uri().path()) } else { None };
        let (peer, memory) = (Arc::clone(&self.peer), Arc::clone(&self.memory));
        let arrival = Arrival { at: Instant::now(), peer, caller: None, memory, inbound: None };
        self.inner.call(Arrived { request, method, arrival })
    }
}

/// Counts received bytes, and selects the service. Calls of the worker pool bypass the router, which costs as much as
/// the pool itself.
#[derive(Clone)]
pub struct Route {
    pub(super) worker_pool: Option<WorkerPoolServiceServer<CallerServices>>,
    pub(super) others: Routes,
    pub(super) catalog: Arc<Catalog>,
    /// Largest message, in bytes.
    pub(super) max_message: usize,
}

type Answer = BoxFuture<'static, Result<Response<Body>, Infallible>>;

impl Route {
    /// The messages that a call should send, and whether its service reads them itself instead of using the codec.
    fn expected(&self, hot: Option<Rpc>, path: &str) -> (Expected, bool) {
        match hot {
            Some(Rpc::SubmitMany) => (Expected::Many, true),
            Some(_) => (Expected::One, false),
            None if path == ATTACH => (Expected::ManyCut, true),
            None if path == CREATE_JOBS => (Expected::Many, true),
            None if self.catalog.has_rpc(path) && !path.ends_with("/ServerReflectionInfo") => (Expected::One, false),
            None => (Expected::Many, false),
        }
    }

    fn answer<B>(&self, is_hot: bool, request: Request<B>) -> Answer
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Send,
    {
        match self.worker_pool.as_ref().filter(|_| is_hot) {
            Some(worker_pool) => worker_pool.clone().call(request),
            _ if self.catalog.has(request.uri().path()) => Box::pin(self.others.clone().call(request.map(Body::new))),
            _ => {
                let refusal = self.catalog.refuse(request.uri().path(), request.headers());
                Box::pin(std::future::ready(Ok(refusal)))
            }
        }
    }
}

impl<B> Service<Arrived<B>> for Route
where
    B: http_body::Body<Data = Bytes> + HeldBack + Send + Unpin + 'static,
    B::Error: Into<BoxError> + Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, call: Arrived<B>) -> Answer {
        let Arrived { request, method, mut arrival } = call;
        let (expected, reads_itself) = self.expected(method, request.uri().path());
        let (mut head, body) = request.into_parts();
        // Boxed, because the service moves the request about six times, each time with a copy.
        let body = Box::new(Upload::new(body, Arc::clone(&arrival.memory), self.max_message, expected));
        if reads_itself {
            arrival.inbound = Some(Arc::new(Mutex::new(Some(Body::new(body)))));
            head.extensions.insert(arrival);
            return self.answer(method.is_some(), Request::from_parts(head, Body::empty()));
        }
        head.extensions.insert(arrival);
        self.answer(method.is_some(), Request::from_parts(head, body))
    }
}
