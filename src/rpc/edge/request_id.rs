//! Adds the request id to every answer. `src/rpc/context.rs` takes it from the metadata, or makes one.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use hyper::service::Service;

use crate::rpc::{
    answer_body::AnswerBody,
    context::{REQUEST_ID, request_id},
    status_message::decode_message,
};

/// Adds the request id to answers that have none: calls may end before they reach their service.
#[derive(Clone)]
pub struct RequestIds<S> {
    pub(super) inner: S,
}

/// The answer to one call.
pub struct RequestIdFuture<F> {
    answer: F,
    /// The request id that the caller sent.
    sent: Option<HeaderValue>,
}

impl<B, S> Service<Request<B>> for RequestIds<S>
where
    S: Service<Request<B>, Response = Response<AnswerBody>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = RequestIdFuture<S::Future>;

    fn call(&self, request: Request<B>) -> Self::Future {
        let sent = request.headers().get(REQUEST_ID).cloned();
        RequestIdFuture { answer: self.inner.call(request), sent }
    }
}

impl<F> Future for RequestIdFuture<F>
where
    F: Future<Output = Result<Response<AnswerBody>, Infallible>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(mut answer) = ready!(Pin::new(&mut self.answer).poll(cx));
        name(answer.headers_mut(), self.sent.as_ref());
        decode_message(answer.headers_mut());
        Poll::Ready(Ok(answer))
    }
}

fn name(headers: &mut HeaderMap, sent: Option<&HeaderValue>) {
    let header = HeaderName::from_static(REQUEST_ID);
    if !headers.contains_key(&header)
        && let Ok(id) = HeaderValue::from_str(request_id(sent).as_str())
    {
        headers.insert(header, id);
    }
}
