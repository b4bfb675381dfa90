//! HTTP/2 on one connection.
//!
//! The connection and its calls are one task: whatever is ready together leaves in one write. Calls that were read
//! together are polled once where they lie, and only those that are pending are put where they can be woken one by one,
//! for most short jobs end at their first poll.

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
/// Least window of a connection, in bytes: what it begins with.
const LEAST_WINDOW: u32 = 65_535;

/// A connection after its handshake.
pub(super) struct Connection<S: AnswerService> {
    h2: server::Connection<Socket, Bytes>,
    service: S,
    calls: Calls,
    memory: Arc<ConnectionMemory>,
    http2: Http2,
    /// What the peer was granted last: the window of the connection, and that of a stream.
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

    /// What pings the peer; none the second time.
    pub(super) fn ping_pong(&mut self) -> Option<PingPong> {
        self.h2.ping_pong()
    }

    /// Asks the peer to open no more streams, and ends with the last one.
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
            // Those that their callers have left give up their places first.
            while let Poll::Ready(Some(())) = self.pending.poll_next_unpin(cx) {}
            for mut exchange in self.begun.drain(..) {
                if exchange.poll_unpin(cx).is_pending() {
                    self.pending.push(exchange);
                }
            }
        }
    }

    /// Widens the window of the connection by what messages keep that are held back, so that others go on beside them,
    /// and has the peer send less of each while there are any.
    fn grant(&mut self, cx: &Context<'_>) {
        let grant = self.memory.grant(cx.waker());
        let share = u32::try_from(grant.share).unwrap_or(u32::MAX).max(LEAST_WINDOW);
        let held = u32::try_from(grant.held).unwrap_or(u32::MAX);
        let connection = self.http2.connection_window.min(share).saturating_add(held).min(i32::MAX as u32);
        if connection != self.windows.0 {
            self.windows.0 = connection;
            self.h2.set_target_window_size(connection);
        }
        let full = self.http2.stream_window;
        let stream = if grant.is_crowded { full.min(CROWDED_WINDOW) } else { full };
        // It fails while the peer has not acknowledged the last change; it is tried again.
        if stream != self.windows.1 && self.h2.set_initial_window_size(stream).is_ok() {
            self.windows.1 = stream;
        }
    }
}

/// Returns when the peer gives no sign of life for longer than it may.
pub(super) async fn unresponsive(mut pings: PingPong, heard: Heard, http2: Http2) {
    loop {
        let before = heard.reads();
        sleep(http2.keepalive_interval).await;
        if heard.reads() != before {
            continue;
        }
        // Where a ping is under way, its answer is what is waited for.
        let _ = pings.send_ping(h2::Ping::opaque());
        let answered = timeout(http2.keepalive_timeout, std::future::poll_fn(|cx| pings.poll_pong(cx))).await;
        if answered.is_err() && heard.reads() == before {
            return;
        }
    }
}
