//! HTTP/2 on one connection. `request_body.rs` has the bodies of the requests.
//!
//! The connection and its calls are one task, so that replies that are ready at the same time are sent with one write.
//! Calls that arrive together are first polled in place. Only pending ones move to a set in which each has its own
//! waker, because most short jobs end at their first poll.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use h2::{
    PingPong, Reason, SendStream,
    server::{self, SendResponse},
};
use http::{HeaderValue, Request, Response};
use http_body::Body;
use hyper::service::Service;
use tokio::time::{sleep, timeout};
use tower::BoxError;

use super::{
    call::{Call, Calls, REQUEST_ID},
    limits::Http2,
    request_body::{RequestBody, Rests},
    stream::{Activity, Stream},
};
use crate::memory::ConnectionMemory;

/// Window of a stream, in bytes, while messages of its connection are held back.
const CROWDED_WINDOW: u32 = 64 << 10;
/// Smallest window of a connection, in bytes: its initial one.
const MIN_WINDOW: u32 = 65_535;
/// Size from which an answer may not fit in the socket at once, in bytes.
const LARGE: usize = 16 << 10;

/// A connection after its handshake.
pub(super) struct Connection<S: AnswerService> {
    h2: server::Connection<Stream, Bytes>,
    service: S,
    calls: Arc<Calls>,
    memory: Arc<ConnectionMemory>,
    http2: Http2,
    /// The window of the connection that was last announced, in bytes.
    connection_window: u32,
    /// The window of a stream that was last announced, in bytes.
    stream_window: u32,
    rests: Rests,
    begun: Vec<Exchange<S>>,
    pending: FuturesUnordered<Exchange<S>>,
}

/// A service whose answers HTTP can send.
pub trait AnswerService:
    Service<Request<RequestBody>, Response = Response<Self::Body>, Error = Infallible, Future: Send + Unpin + 'static>
{
    /// The body of an answer.
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static;
}

impl<S, B> AnswerService for S
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible, Future: Send + Unpin + 'static>,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
{
    type Body = B;
}

impl<S: AnswerService> Connection<S> {
    /// Sends the settings, and reads the preface.
    pub(super) async fn handshake(
        stream: Stream,
        http2: Http2,
        service: S,
        calls: Arc<Calls>,
        memory: Arc<ConnectionMemory>,
    ) -> Result<Self, h2::Error> {
        let h2 = http2.builder().handshake(stream).await?;
        let Http2 { connection_window, stream_window, .. } = http2;
        let (rests, begun, pending) = (Rests::default(), Vec::new(), FuturesUnordered::new());
        Ok(Self { h2, service, calls, memory, http2, connection_window, stream_window, rests, begun, pending })
    }

    /// The handle for pings; `None` the second time.
    pub(super) fn ping_pong(&mut self) -> Option<PingPong> {
        self.h2.ping_pong()
    }

    /// Asks the peer to open no more streams. The connection ends with the last open one.
    pub(super) fn graceful_shutdown(&mut self) {
        self.h2.graceful_shutdown();
    }

    /// Tells the peer which streams were accepted, with the next poll. All of them end.
    pub(super) fn abrupt_shutdown(&mut self) {
        self.h2.abrupt_shutdown(Reason::NO_ERROR);
    }

    /// Serves until the connection has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        self.grant(cx);
        loop {
            while let Poll::Ready(Some(())) = self.pending.poll_next_unpin(cx) {}
            while let Poll::Ready(accepted) = self.h2.poll_accept(cx) {
                let Some((request, respond)) = accepted.transpose()? else { return Poll::Ready(Ok(())) };
                let call = self.calls.begin(&request);
                let left = &self.rests.left;
                let answer = self.service.call(request.map(|body| RequestBody::http2(body, Arc::clone(left))));
                self.begun.push(Exchange { step: Step::Answering { answer, respond }, call });
            }
            if self.begun.is_empty() {
                self.rests.poll(cx);
                return Poll::Pending;
            }
            // Calls whose callers have left are finished first.
            while let Poll::Ready(Some(())) = self.pending.poll_next_unpin(cx) {}
            for mut exchange in self.begun.drain(..) {
                if exchange.poll_unpin(cx).is_pending() {
                    self.pending.push(exchange);
                }
            }
        }
    }

    /// Widens the connection's window by the bytes of held-back messages, so that other messages continue. Meanwhile
    /// the windows of streams are smaller.
    fn grant(&mut self, cx: &Context<'_>) {
        let grant = self.memory.grant(cx.waker());
        let share = u32::try_from(grant.share).unwrap_or(u32::MAX).max(MIN_WINDOW);
        let held = u32::try_from(grant.held).unwrap_or(u32::MAX);
        let connection = self.http2.connection_window.min(share).saturating_add(held).min(i32::MAX as u32);
        if connection != self.connection_window {
            self.connection_window = connection;
            self.h2.set_target_window_size(connection);
        }
        let full = self.http2.stream_window;
        let stream = if grant.is_crowded { full.min(CROWDED_WINDOW) } else { full };
        // Fails until the peer has acknowledged the last change; then it is tried again.
        if stream != self.stream_window && self.h2.set_initial_window_size(stream).is_ok() {
            self.stream_window = stream;
        }
    }
}

/// Returns when the peer has shown no activity for too long.
pub(super) async fn unresponsive(mut pings: PingPong, activity: Activity, http2: Http2) {
    loop {
        let before = activity.reads();
        sleep(http2.keepalive_interval).await;
        if activity.reads() != before {
            continue;
        }
        // Fails if a ping is already in flight; then that ping's answer is awaited.
        let _ = pings.send_ping(h2::Ping::opaque());
        let answered = timeout(http2.keepalive_timeout, std::future::poll_fn(|cx| pings.poll_pong(cx))).await;
        if answered.is_err() && activity.reads() == before {
            return;
        }
    }
}

/// One HTTP/2 call: waits for its answer, and sends it as fast as the peer reads. It ends when the connection has the
/// whole answer, when the peer resets the stream, or at its time limit. Dropping it resets the stream.
struct Exchange<S: AnswerService> {
    step: Step<S>,
    call: Call,
}

enum Step<S: AnswerService> {
    Answering { answer: S::Future, respond: SendResponse<Bytes> },
    Sending(Sending<S>),
}

struct Sending<S: AnswerService> {
    body: S::Body,
    stream: SendStream<Bytes>,
    /// Data that exceeds the stream's window.
    unsent: Bytes,
    request_id: Option<HeaderValue>,
}

impl<S: AnswerService> Exchange<S> {
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            match &mut self.step {
                Step::Answering { answer, respond } => {
                    let Poll::Ready(Ok(response)) = Pin::new(answer).poll(cx) else {
                        // The peer may have reset the stream.
                        return respond.poll_reset(cx).map(|reset| reset.map(drop));
                    };
                    let (head, body) = response.into_parts();
                    let request_id = head.headers.get(REQUEST_ID).cloned();
                    let is_whole = body.is_end_stream();
                    let stream = respond.send_response(Response::from_parts(head, ()), is_whole)?;
                    if is_whole {
                        return Poll::Ready(Ok(()));
                    }
                    self.step = Step::Sending(Sending { body, stream, unsent: Bytes::new(), request_id });
                }
                Step::Sending(sending) => return sending.advance(&mut self.call, cx),
            }
        }
    }
}

impl<S: AnswerService> Sending<S> {
    fn advance(&mut self, call: &mut Call, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            if !self.unsent.is_empty() {
                ready!(self.send(call, cx))?;
            }
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                return self.stream.poll_reset(cx).map(|reset| reset.map(drop));
            };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(_)) => {
                    self.stream.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(Ok(()));
                }
                None => return Poll::Ready(self.stream.send_data(Bytes::new(), true)),
            };
            match frame.into_data() {
                Ok(data) => self.unsent = data,
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    return Poll::Ready(self.stream.send_trailers(trailers));
                }
            }
        }
    }

    /// Passes unsent data to the connection, as the window allows. Data that was passed can be neither counted nor
    /// withdrawn.
    fn send(&mut self, call: &mut Call, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let is_large = self.unsent.len() >= LARGE;
        while !self.unsent.is_empty() {
            self.stream.reserve_capacity(self.unsent.len());
            let mut window = self.stream.capacity();
            while window == 0 {
                match self.stream.poll_capacity(cx) {
                    Poll::Ready(Some(granted)) => window = granted?,
                    Poll::Ready(None) => return Poll::Ready(Err(Reason::CANCEL.into())),
                    Poll::Pending => {
                        call.wait(self.request_id.as_ref(), self.unsent.len());
                        return Poll::Pending;
                    }
                }
            }
            let piece = self.unsent.split_to(window.min(self.unsent.len()));
            self.stream.send_data(piece, false)?;
        }
        if is_large {
            call.handed_over(self.request_id.as_ref());
        }
        call.sent();
        Poll::Ready(Ok(()))
    }
}

impl<S: AnswerService> Future for Exchange<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.advance(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Ready(Err(error)) => {
                tracing::debug!(%error, "a stream ended before its answer was sent");
                Poll::Ready(())
            }
            Poll::Pending => self.call.poll_end(cx),
        }
    }
}
