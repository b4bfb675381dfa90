//! The bodies of requests, and what their calls leave unread. `src/rpc/message_stream.rs` splits a body into messages.
//!
//! A client that still sends its request when its answer is complete is told so by a reset of the stream. Some proxies,
//! such as HAProxy 2.6, then forward the reset and lose the answer. So a bounded rest is first read and discarded.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use h2::{Reason, RecvStream};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::{Sleep, sleep};
use tower::BoxError;

use crate::memory::HeldBack;

/// Longest time for one rest.
const MAX_TIME: Duration = Duration::from_secs(3);
/// Maximum bytes of one rest: somewhat more than the largest payload by default.
const MAX_BYTES: usize = 8 << 20;

/// The body of a request.
#[derive(Debug)]
pub struct RequestBody {
    body: Inner,
    /// Whether window updates are sent as soon as data is read.
    is_free: bool,
}

#[derive(Debug)]
enum Inner {
    /// Also whether its end was read.
    Http1(Incoming, Arc<AtomicBool>),
    /// Also where it is left if its end is not read.
    Http2(RecvStream, Arc<Left>),
    Left,
}

impl RequestBody {
    /// Sets `is_read` once the end was read.
    pub(super) fn http1(body: Incoming, is_read: Arc<AtomicBool>) -> Self {
        Self { body: Inner::Http1(body, is_read), is_free: true }
    }

    pub(super) fn http2(body: RecvStream, left: Arc<Left>) -> Self {
        Self { body: Inner::Http2(body, left), is_free: true }
    }
}

impl HeldBack for RequestBody {
    fn hold_back(&mut self) {
        self.is_free = false;
    }

    /// HTTP/1.1 has no windows, so its peers may always send.
    fn give_back(&mut self, bytes: usize) {
        if let Inner::Http2(body, _) = &mut self.body {
            // Fails only if the stream is gone; then no bytes need to be returned.
            let _ = body.flow_control().release_capacity(bytes);
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let body = match &mut this.body {
            Inner::Http1(body, is_read) => {
                let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
                is_read.store(frame.is_none() || body.is_end_stream(), Relaxed);
                return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
            }
            Inner::Http2(body, _) => body,
            Inner::Left => return Poll::Ready(None),
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
        let trailers = ready!(body.poll_trailers(cx)).map_err(BoxError::from)?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Inner::Http1(body, _) => body.is_end_stream(),
            Inner::Http2(body, _) => body.is_end_stream(),
            Inner::Left => true,
        }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Inner::Http2(body, left) = std::mem::replace(&mut self.body, Inner::Left)
            && !body.is_end_stream()
        {
            left.push(body);
        }
    }
}

/// Where request bodies leave what they did not read.
#[derive(Debug, Default)]
pub(super) struct Left {
    streams: Mutex<Vec<RecvStream>>,
    waker: AtomicWaker,
}

impl Left {
    /// Leaves a request that was not read to its end.
    pub(super) fn push(&self, stream: RecvStream) {
        self.streams.lock().push(stream);
        self.waker.wake();
    }
}

/// The rests of a connection's requests. They are no more than its open streams.
#[derive(Debug, Default)]
pub(super) struct Rests {
    pub(super) left: Arc<Left>,
    reading: Vec<Rest>,
}

#[derive(Debug)]
struct Rest {
    stream: RecvStream,
    bytes: usize,
    alarm: Pin<Box<Sleep>>,
}

impl Rests {
    /// Reads what has arrived. Dropping a rest resets its stream, unless the client has ended it.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) {
        self.left.waker.register(cx.waker());
        let left = std::mem::take(&mut *self.left.streams.lock());
        self.reading.extend(left.into_iter().map(|stream| Rest { stream, bytes: 0, alarm: Box::pin(sleep(MAX_TIME)) }));
        self.reading.retain_mut(|rest| rest.poll(cx).is_pending());
    }
}

impl Rest {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(data) = self.stream.poll_data(cx) {
            let Some(Ok(data)) = data else { return Poll::Ready(()) };
            self.bytes += data.len();
            if self.bytes > MAX_BYTES || self.stream.flow_control().release_capacity(data.len()).is_err() {
                return Poll::Ready(());
            }
        }
        self.alarm.as_mut().poll(cx)
    }
}
