use std::{
    convert::Infallible,
    panic::AssertUnwindSafe,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, header::HeaderName};
use tonic::{Code, Status, body::Body, service::Routes};
use tower::Service;

use super::{
    context::{Arrival, REQUEST_ID},
    status,
};
use crate::proto::worker_pool_service_server::{SERVICE_NAME, WorkerPoolServiceServer};
use crate::rpc::WorkerPool;

/// The front of all services of one listener.
///
/// It fixes the arrival and the request id, echoes the id on every answer, answers a panicking call with INTERNAL, and
/// turns the codec's refusal of a large message into the service's own.
#[derive(Clone)]
pub struct Edge {
    worker_pool: Option<WorkerPoolServiceServer<WorkerPool>>,
    others: Routes,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Edge {
    /// Hands calls of the worker pool to `worker_pool`, all others to `others`.
    pub(super) fn new(worker_pool: Option<WorkerPoolServiceServer<WorkerPool>>, others: Routes) -> Self {
        Self { worker_pool, others }
    }
}

impl<B> Service<Request<B>> for Edge
where
    B: http_body::Body<Data = bytes::Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = EdgeFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> EdgeFuture {
        let arrival = Arrival::of(request.headers());
        let request_id = HeaderValue::from_str(arrival.request_id.as_str());
        request.extensions_mut().insert(arrival);
        // The router costs as much as the pool: calls of the hot service pass it by.
        let direct = self.worker_pool.as_mut().filter(|_| is_worker_pool(request.uri().path()));
        let answer: Answer = match direct {
            Some(service) => Box::pin(service.call(request)),
            None => Box::pin(self.others.call(request.map(Body::new))),
        };
        EdgeFuture { answer, request_id: request_id.ok() }
    }
}

/// The answer to one call.
pub struct EdgeFuture {
    answer: Answer,
    request_id: Option<HeaderValue>,
}

impl Future for EdgeFuture {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = AssertUnwindSafe(|| self.answer.poll_unpin(cx));
        let mut response = match std::panic::catch_unwind(polled) {
            Ok(polled) => match ready!(polled) {
                Ok(response) => rename_codec_refusal(response),
                Err(never) => match never {},
            },
            Err(_) => {
                tracing::error!(request_id = ?self.request_id, "a call panicked");
                status::panicked().into_http()
            }
        };
        if let Some(id) = self.request_id.take() {
            response.headers_mut().entry(HeaderName::from_static(REQUEST_ID)).or_insert(id);
        }
        Poll::Ready(Ok(response))
    }
}

fn is_worker_pool(path: &str) -> bool {
    path.strip_prefix('/').and_then(|path| path.strip_prefix(SERVICE_NAME)).is_some_and(|rest| rest.starts_with('/'))
}

/// The codec answers a message over its limit with OUT_OF_RANGE and without details. No handler of ours leaves the
/// details out, so that is told apart.
fn rename_codec_refusal(response: Response<Body>) -> Response<Body> {
    let headers = response.headers();
    let is_refusal =
        headers.get("grpc-status").is_some_and(|code| code == "11") && !headers.contains_key("grpc-status-details-bin");
    if !is_refusal {
        return response;
    }
    match Status::from_header_map(headers) {
        Some(refusal) if refusal.code() == Code::OutOfRange => status::message_too_large(refusal.message()).into_http(),
        _ => response,
    }
}
