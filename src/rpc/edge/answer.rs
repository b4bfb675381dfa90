//! Completes every answer: adds a request id, the load report, and the details of refusals by the codec, and counts
//! unread bytes.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::{Frame, SizeHint};
use hyper::service::Service;
use tokio::time::Instant;
use tonic::{Status, body::Body};

use super::route::Arrived;
use crate::{
    auth::{Hold, Rpc},
    memory::{AnswersFull, ConnectionMemory},
    rpc::{
        Calls,
        context::{REQUEST_ID, request_id},
        load::{Load, TRAILER},
        status,
        status_message::decode_message,
    },
};

/// Only answers without a body have this header.
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Adds the request id to answers without one, because calls may end before they reach their service.
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

/// Counters that the calls of one connection share.
pub(super) struct Meters {
    pub(super) calls: Calls,
    /// The load report; `None` if answers carry none.
    pub(super) load: Option<Load>,
}

/// Adds the load of the process to answers, if configured. Replaces a refusal by the codec with one of the service.
#[derive(Clone)]
pub struct Finished<S> {
    pub(super) meters: Option<Arc<Meters>>,
    pub(super) memory: Arc<ConnectionMemory>,
    pub(super) inner: S,
}

/// The answer to one call.
pub struct FinishedFuture<F> {
    answer: F,
    /// The counters and method of a measured call; `None` for services other than the worker pool.
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
        if let Some(load) = load.as_ref().filter(|_| answer.headers().contains_key(GRPC_STATUS)) {
            answer.headers_mut().insert(TRAILER, load.trailer(Instant::now()));
        }
        Poll::Ready(Ok(AnswerBody::new(answer, load, Some(Arc::clone(&self.memory)))))
    }
}

/// The service's status for a refusal by the codec. Such refusals are recognizable, because only the codec omits the
/// details.
fn refusal_by_codec(answer: &Response<Body>) -> Option<Status> {
    let headers = answer.headers();
    let code = headers.get(GRPC_STATUS)?;
    let is_refusal = ["3", "8", "11", "12", "13"].iter().any(|refused| code == refused)
        && !headers.contains_key("grpc-status-details-bin");
    if is_refusal { Status::from_header_map(headers).map(status::refused_by_codec) } else { None }
}

/// The body of an answer. It counts unsent bytes, and adds the load of the process to the trailers.
pub struct AnswerBody {
    body: Body,
    /// `None` if the answer has no load report, or has sent it.
    load: Option<Load>,
    /// `None` for a refusal, which is small.
    memory: Option<Arc<ConnectionMemory>>,
    /// The tenant's quota, held until the answer is sent.
    _hold: Option<Arc<Hold>>,
}

impl AnswerBody {
    pub(super) fn new(
        mut response: Response<Body>,
        load: Option<Load>,
        memory: Option<Arc<ConnectionMemory>>,
    ) -> Response<Self> {
        let hold = response.extensions_mut().remove();
        response.map(|body| Self { body, load, memory, _hold: hold })
    }

    /// Ends an answer that exceeds a memory bound.
    fn give_up(&mut self) -> Frame<Bytes> {
        self.body = Body::empty();
        let mut trailers = HeaderMap::new();
        // Adding fails only if a header is invalid.
        let _ = status::answers_full().add_header(&mut trailers);
        Frame::trailers(trailers)
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            end => return Poll::Ready(end),
        };
        let mut frame = match (frame.into_data(), &self.memory) {
            (Ok(piece), Some(memory)) => memory.charge(piece).map_or_else(|AnswersFull| self.give_up(), Frame::data),
            (Ok(piece), None) => Frame::data(piece),
            (Err(trailers), _) => trailers,
        };
        if let Some(trailers) = frame.trailers_mut() {
            decode_message(trailers);
            if let Some(load) = self.load.take() {
                trailers.insert(TRAILER, load.trailer(Instant::now()));
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
