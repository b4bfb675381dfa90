//! Finishes the answers of the worker pool: the load report, and the details of refusals by the codec.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{HeaderName, Response};
use hyper::service::Service;
use tonic::{Status, body::Body};

use super::Arrived;
use crate::{
    memory::ConnectionMemory,
    rpc::{
        answer_body::{AnswerBody, Meters, PendingAnswer},
        status,
    },
};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

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
    /// Adds the load report; `None` for other services than the worker pool.
    pending: Option<PendingAnswer>,
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
        let hot = self.meters.as_ref().zip(call.method);
        let pending = hot.map(|(meters, method)| PendingAnswer::new(Arc::clone(meters), method, call.at));
        FinishedFuture { answer: self.inner.call(call), pending, memory: Arc::clone(&self.memory) }
    }
}

impl<F> Future for FinishedFuture<F>
where
    F: Future<Output = Result<Response<Body>, Infallible>> + Unpin,
{
    type Output = Result<Response<AnswerBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(Ok(mut answer)) = Pin::new(&mut self.answer).poll(cx) else {
            self.pending.iter_mut().for_each(PendingAnswer::wait);
            return Poll::Pending;
        };
        let is_whole = answer.headers().contains_key(GRPC_STATUS);
        if is_whole && let Some(refusal) = refusal_by_codec(&answer) {
            self.pending.iter().for_each(|pending| pending.count_refusal(refusal.code()));
            answer = refusal.into_http();
        }
        let memory = Arc::clone(&self.memory);
        Poll::Ready(Ok(match self.pending.take() {
            Some(pending) => pending.complete(answer, is_whole, memory),
            None => AnswerBody::plain(answer, memory),
        }))
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
