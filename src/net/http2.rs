//! HTTP/2 on one connection.
//!
//! The connection and its calls are one task, so that everything that is ready together leaves in one write. Calls that
//! were read together are first polled in place. Only pending ones move to where each has its own waker, because most
//! short jobs end at their first poll.

use std::{
    convert::Infallible,
    error::Error,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use h2::{PingPong, server};
use http::{Request, Response};
use hyper::service::Service;
use tokio::time::{sleep, timeout};

use super::{
    body::RequestBody, call::Calls, connection::Socket, exchange::Exchange, limits::Http2, write_stall::Heard,
};
use crate::memory::ConnectionMemory;

/// Window of a stream while messages of its connection are held back, in bytes.
const CROWDED_WINDOW: u32 = 64 << 10;
/// Smallest window of a connection, in bytes: its initial one.
const MIN_WINDOW: u32 = 65_535;

/// A connection after its handshake.
pub(super) struct Connection<S: AnswerService> {
    h2: server::Connection<Socket, Bytes>,
    service: S,
    calls: Calls,
    memory: Arc<ConnectionMemory>,
    http2: Http2,
    /// The last granted windows: of the connection, and of a stream.
    windows: (u32, u32),
    begun: Vec<Exchange<S::Future, S::Body>>,
    pending: FuturesUnordered<Exchange<S::Future, S::Body>>,
}

/// A service whose answers can be sent.
pub trait AnswerService: Service<Request<RequestBody>, Response = Response<Self::Body>, Error = Infallible> {
    /// The body of an answer.
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static;
}

impl<S, B> AnswerService for S
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Body = B;
}

impl<S> Connection<S>
where
    S: AnswerService,
    S::Future: Send + Unpin + 'static,
{
    /// Sends the settings and takes the preface.
    pub(super) async fn handshake(
        socket: Socket,
        http2: Http2,
        service: S,
        calls: Calls,
        memory: Arc<ConnectionMemory>,
    ) -> Result<Self, h2::Error> {
        let h2 = http2.builder().handshake(socket).await?;
        let windows = (http2.connection_window, http2.stream_window);
        Ok(Self { h2, service, calls, memory, http2, windows, begun: Vec::new(), pending: FuturesUnordered::new() })
    }

    /// The handle for pings; `None` the second time.
    pub(super) fn ping_pong(&mut self) -> Option<PingPong> {
        self.h2.ping_pong()
    }

    /// Asks the peer to open no more streams, and ends with the last open one.
    pub(super) fn graceful_shutdown(&mut self) {
        self.h2.graceful_shutdown();
    }

    /// Serves until the connection has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        self.grant(cx);
        loop {
            while let Poll::Ready(Some(())) = self.pending.poll_next_unpin(cx) {}
            while let Poll::Ready(accepted) = self.h2.poll_accept(cx) {
                let Some((request, respond)) = accepted.transpose()? else { return Poll::Ready(Ok(())) };
                let call = self.calls.begin(&request);
                let answer = self.service.call(request.map(RequestBody::http2));
                self.begun.push(Exchange::new(answer, respond, call));
            }
            if self.begun.is_empty() {
                return Poll::Pending;
            }
            // Calls that their callers left are finished first.
            while let Poll::Ready(Some(())) = self.pending.poll_next_unpin(cx) {}
            for mut exchange in self.begun.drain(..) {
                if exchange.poll_unpin(cx).is_pending() {
                    self.pending.push(exchange);
                }
            }
        }
    }

    /// Widens the window of the connection by the bytes that waiting messages hold, so that other messages continue.
    /// While there are any, the windows of streams are smaller.
    fn grant(&mut self, cx: &Context<'_>) {
        let grant = self.memory.grant(cx.waker());
        let share = u32::try_from(grant.share).unwrap_or(u32::MAX).max(MIN_WINDOW);
        let held = u32::try_from(grant.held).unwrap_or(u32::MAX);
        let connection = self.http2.connection_window.min(share).saturating_add(held).min(i32::MAX as u32);
        if connection != self.windows.0 {
            self.windows.0 = connection;
            self.h2.set_target_window_size(connection);
        }
        let full = self.http2.stream_window;
        let stream = if grant.is_crowded { full.min(CROWDED_WINDOW) } else { full };
        // This fails until the peer has acknowledged the last change; it is tried again.
        if stream != self.windows.1 && self.h2.set_initial_window_size(stream).is_ok() {
            self.windows.1 = stream;
        }
    }
}

/// Returns when the peer shows no activity for too long.
pub(super) async fn unresponsive(mut pings: PingPong, heard: Heard, http2: Http2) {
    loop {
        let before = heard.reads();
        sleep(http2.keepalive_interval).await;
        if heard.reads() != before {
            continue;
        }
        // If a ping is already in flight, its answer is awaited.
        let _ = pings.send_ping(h2::Ping::opaque());
        let answered = timeout(http2.keepalive_timeout, std::future::poll_fn(|cx| pings.poll_pong(cx))).await;
        if answered.is_err() && heard.reads() == before {
            return;
        }
    }
}
