//! Finishes the answers of the worker pool: the load report, and the details of refusals by the codec.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::Response;
use hyper::service::Service;
use tonic::{Status, body::Body};

use super::Arrived;
use crate::{
    auth::Rpc,
    memory::ConnectionMemory,
    rpc::{
        answer_body::{AnswerBody, GRPC_STATUS, Meters},
        status,
    },
};

/// Adds the load of the process to answers, if configured, and replaces a refusal by the codec with one of the service.
#[derive(Clone)]
pub struct Finished<S> {
    pub(super) meters: Option<Arc<Meters>>,
    pub(super) memory: Arc<ConnectionMemory>,
    pub(super) inner: S,
}

/// The answer to one call.
pub struct FinishedFuture<F> {
    answer: F,
    /// What measures the call; `None` for other services than the worker pool.
    measured: Option<(Arc<Meters>, Rpc)>,
    memory: Arc<ConnectionMemory>,
}

impl<B, S> Service<Arrived<B>> for Finished<S>
where
    S: Service<Arrived<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = FinishedFuture<S::Future>;

    fn call(&self, call: Arrived<B>) -> Self::Future {
        let measured = self.meters.clone().zip(call.method);
        FinishedFuture { answer: self.inner.call(call), measured, memory: Arc::clone(&self.memory) }
    }
}

impl<F> Future for FinishedFuture<F>
where
    F: Future<Output = Result<Response<Body>, Infallible>> + Unpin,
{
    type Output = Result<Response<AnswerBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(Ok(mut answer)) = Pin::new(&mut self.answer).poll(cx) else { return Poll::Pending };
        let measured = self.measured.take();
        if let Some(refusal) = refusal_by_codec(&answer) {
            if let Some((meters, method)) = &measured {
                meters.calls.refuse(*method, refusal.code());
            }
            answer = refusal.into_http();
        }
        let load = measured.and_then(|(meters, _)| meters.load.clone());
        Poll::Ready(Ok(AnswerBody::with_load(answer, load, Arc::clone(&self.memory))))
    }
}

/// The service's status for a refusal by the codec. Only the codec omits the details, so that its refusals are
/// recognizable.
fn refusal_by_codec(answer: &Response<Body>) -> Option<Status> {
    let headers = answer.headers();
    let code = headers.get(GRPC_STATUS)?;
    let is_refusal = ["3", "8", "11", "12", "13"].iter().any(|refused| code == refused)
        && !headers.contains_key("grpc-status-details-bin");
    if is_refusal { Status::from_header_map(headers).map(status::refused_by_codec) } else { None }
}
