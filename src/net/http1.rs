//! HTTP/1.1 on one connection: pages for operators' tools, and gRPC-Web.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::{body::Incoming, server::conn::http1, service::Service};
use hyper_util::rt::{TokioIo, TokioTimer};

use super::{
    body::RequestBody,
    call::{Call, Calls, REQUEST_ID},
    connection::Socket,
    http2::AnswerService,
    limits::Http2,
};

/// Smallest buffer for a request's head, in bytes.
const MIN_BUFFER: usize = 8 << 10;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Makes the connection. Each request has `head_timeout` for its head.
pub(super) fn connection<S: AnswerService>(
    socket: Socket,
    http2: &Http2,
    head_timeout: Duration,
    service: S,
    calls: Calls,
) -> http1::Connection<TokioIo<Socket>, Counting<S>>
where
    S::Future: Unpin,
{
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size((http2.max_header_list as usize).max(MIN_BUFFER))
        .serve_connection(TokioIo::new(socket), Counting { service, calls })
}

/// A service whose calls are counted and time-limited.
pub(super) struct Counting<S> {
    service: S,
    calls: Calls,
}

/// A call until its answer is ready.
pub(super) struct Answering<F> {
    answer: F,
    call: Option<Call>,
}

/// The body of an answer, with its call.
pub(super) struct AnswerBody<B> {
    body: B,
    call: Call,
}

/// The call reached its time limit, which ends the connection: HTTP/1.1 has no other way to end a call.
#[derive(Debug, thiserror::Error)]
#[error("the call reached its time limit before its answer was sent")]
pub(super) struct Late;

impl<S: AnswerService> Service<Request<Incoming>> for Counting<S>
where
    S::Future: Unpin,
{
    type Response = Response<AnswerBody<S::Body>>;
    type Error = Late;
    type Future = Answering<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let call = Some(self.calls.begin(&request));
        Answering { answer: self.service.call(request.map(RequestBody::http1)), call }
    }
}

impl<F, B> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, Infallible>> + Unpin,
{
    type Output = Result<Response<AnswerBody<B>>, Late>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Poll::Ready(Ok(response)) = Pin::new(&mut this.answer).poll(cx) else {
            ready!(this.call.as_mut().map_or(Poll::Ready(()), |call| call.poll_end(cx)));
            return Poll::Ready(Err(Late));
        };
        let call = this.call.take().ok_or(Late)?;
        call.handed_over(response.headers().get(REQUEST_ID));
        Poll::Ready(Ok(response.map(|body| AnswerBody { body, call })))
    }
}

impl<B> Body for AnswerBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Failure>,
{
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(frame.map(|frame| frame.map_err(Into::into))),
            Poll::Pending => self.call.poll_end(cx).map(|()| Some(Err(Late.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
