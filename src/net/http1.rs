//! HTTP/1.1 on one connection: pages for operators' tools, and gRPC-Web.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, header::CONNECTION};
use http_body::{Body, Frame, SizeHint};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tower::BoxError;

use super::{
    call::{Call, Calls, REQUEST_ID},
    http2::AnswerService,
    limits::Http2,
    request_body::RequestBody,
    stream::Stream,
};

/// Smallest buffer for a request's head, in bytes.
const MIN_BUFFER: usize = 8 << 10;

type Connection<S> = http1::Connection<TokioIo<Stream>, S>;

/// A connection whose calls are counted and time-limited. The headers of each request must arrive within
/// `head_timeout`.
pub(super) fn connection<S: AnswerService>(
    stream: Stream,
    http2: &Http2,
    head_timeout: Duration,
    service: S,
    calls: Arc<Calls>,
) -> Connection<impl Service<Request<Incoming>, Response = Response<AnswerBody<S::Body>>, Error = Late, Future: Send>> {
    let counted = move |request: Request<Incoming>| {
        let mut call = calls.begin(&request);
        let is_read = Arc::new(AtomicBool::new(request.body().is_end_stream()));
        let read = Arc::clone(&is_read);
        let mut answer = service.call(request.map(|body| RequestBody::http1(body, read)));
        async move {
            let answered = poll_fn(|cx| match answer.poll_unpin(cx) {
                Poll::Ready(Ok(response)) => Poll::Ready(Ok(response)),
                Poll::Pending => call.poll_end(cx).map(|()| Err(Late)),
            });
            let mut response = answered.await?;
            if !is_read.load(Relaxed) {
                // The rest of the request is discarded, so the client has to open another connection.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            call.handed_over(response.headers().get(REQUEST_ID));
            Ok(response.map(|body| AnswerBody { body, call }))
        }
    };
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size((http2.max_header_list as usize).max(MIN_BUFFER))
        .serve_connection(TokioIo::new(stream), service_fn(counted))
}

/// The body of an answer, with its call.
pub(super) struct AnswerBody<B> {
    body: B,
    call: Call,
}

/// The call reached its time limit. That ends the connection, because HTTP/1.1 has no other way to end a call.
#[derive(Debug, thiserror::Error)]
#[error("the call reached its time limit before its answer was sent")]
pub(super) struct Late;

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for AnswerBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
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
