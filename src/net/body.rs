//! The body of a request, with flow control. `src/rpc/message_stream.rs` splits it into messages.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http_body::{Body, Frame};
use hyper::body::Incoming;

use crate::memory::HeldBack;

/// The body of a request.
#[derive(Debug)]
pub struct RequestBody {
    body: Inner,
    /// Whether window updates are sent as soon as data is read.
    is_free: bool,
}

#[derive(Debug)]
enum Inner {
    Http1(Incoming),
    Http2(RecvStream),
}

/// An error of the connection or the stream.
type Failure = Box<dyn std::error::Error + Send + Sync>;

impl RequestBody {
    pub(super) fn http1(body: Incoming) -> Self {
        Self { body: Inner::Http1(body), is_free: true }
    }

    pub(super) fn http2(body: RecvStream) -> Self {
        Self { body: Inner::Http2(body), is_free: true }
    }
}

impl HeldBack for RequestBody {
    fn hold_back(&mut self) {
        self.is_free = false;
    }

    /// HTTP/1.1 has no windows, so its peers may always send.
    fn give_back(&mut self, bytes: usize) {
        if let Inner::Http2(body) = &mut self.body {
            // Fails only if the stream is gone; then no bytes need to be returned.
            let _ = body.flow_control().release_capacity(bytes);
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let this = &mut *self;
        let body = match &mut this.body {
            Inner::Http1(body) => return Pin::new(body).poll_frame(cx).map_err(Into::into),
            Inner::Http2(body) => body,
        };
        if let Some(data) = ready!(body.poll_data(cx)) {
            let data = match data {
                Ok(data) => data,
                // The peer expects no answer. The end of the call reports the reason.
                Err(error) if matches!(error.reason(), Some(Reason::NO_ERROR | Reason::CANCEL)) => {
                    return Poll::Ready(None);
                }
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            };
            if this.is_free {
                this.give_back(data.len());
            }
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        let trailers = ready!(body.poll_trailers(cx)).map_err(Failure::from)?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Inner::Http1(body) => body.is_end_stream(),
            Inner::Http2(body) => body.is_end_stream(),
        }
    }
}
