//! Completes the answers of the worker pool.

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
        status,
        telling::{AnswerBody, Meters, Telling},
    },
};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Adds the load of the process to answers of the worker pool where they are to tell it, and says a refusal of the codec
/// as the service would.
#[derive(Clone)]
pub struct Told<S> {
    pub(super) meters: Option<Arc<Meters>>,
    pub(super) memory: Arc<ConnectionMemory>,
    pub(super) inner: S,
}

/// The answer to one call.
pub struct ToldFuture<F> {
    answer: F,
    /// What is told of the load; nothing by services other than the worker pool.
    telling: Option<Telling>,
    memory: Arc<ConnectionMemory>,
}

impl<B, S> Service<Arrived<B>> for Told<S>
where
    S: Service<Arrived<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = ToldFuture<S::Future>;

    fn call(&self, call: Arrived<B>) -> Self::Future {
        let hot = self.meters.as_ref().zip(call.method);
        let telling = hot.map(|(meters, method)| Telling::new(Arc::clone(meters), method, call.at));
        ToldFuture { answer: self.inner.call(call), telling, memory: Arc::clone(&self.memory) }
    }
}

impl<F> Future for ToldFuture<F>
where
    F: Future<Output = Result<Response<Body>, Infallible>> + Unpin,
{
    type Output = Result<Response<AnswerBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(Ok(mut answer)) = Pin::new(&mut self.answer).poll(cx) else {
            self.telling.iter_mut().for_each(Telling::wait);
            return Poll::Pending;
        };
        let is_whole = answer.headers().contains_key(GRPC_STATUS);
        if is_whole && let Some(refusal) = refusal_by_codec(&answer) {
            self.telling.iter().for_each(|telling| telling.count_refusal(refusal.code()));
            answer = refusal.into_http();
        }
        let memory = Arc::clone(&self.memory);
        Poll::Ready(Ok(match self.telling.take() {
            Some(telling) => telling.tell(answer, is_whole, memory),
            None => AnswerBody::plain(answer, memory),
        }))
    }
}

/// What a refusal by the codec should say. No handler of ours leaves the details out, so that it is told apart.
fn refusal_by_codec(answer: &Response<Body>) -> Option<Status> {
    let headers = answer.headers();
    let code = headers.get(GRPC_STATUS)?;
    let is_refusal = ["3", "8", "11", "12", "13"].iter().any(|refused| code == refused)
        && !headers.contains_key("grpc-status-details-bin");
    if is_refusal { Status::from_header_map(headers).map(status::refused_by_codec) } else { None }
}
