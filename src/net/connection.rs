//! The life of one connection: stages, HTTP, keepalive, age, GOAWAY, cut.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::debug;

use super::{
    call::{Calls, UnsentAnswers},
    establish::{PREFACE, Stages, establish},
    http1,
    http2::{self, AnswerService},
    limits::{ConnectionLimits, Http2, Transport},
    linger::Linger,
    listener::Accepted,
    proxy::Proxies,
    server::{Stage, reached},
    stream::Stream,
    tracker::Closed,
    write_stall::{Heard, WriteStall},
};
use crate::{memory::ConnectionMemory, model::Peer};

/// The socket of a connection, with its wrappers.
pub(super) type Socket = Linger<WriteStall<Stream>>;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Numbers connections across all listeners.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// Time that an idle peer has to close after GOAWAY.
const FAREWELL: Duration = Duration::from_secs(10);

/// State that the connections of a server share.
pub(super) struct Serving<M> {
    /// Makes the service of one connection.
    pub(super) make: M,
    pub(super) transport: Transport,
    pub(super) stages: Stages,
    pub(super) stage: watch::Sender<Stage>,
    unsent: UnsentAnswers,
}

impl<M> Serving<M> {
    pub(super) fn new(
        make: M,
        transport: Transport,
        proxies: Proxies,
        stage: watch::Sender<Stage>,
        unsent: UnsentAnswers,
    ) -> Self {
        let (preface_timeout, tls) = (transport.connections.preface_timeout, transport.tls.clone());
        let stages = Stages { preface_timeout, proxies, tls, http1: transport.http1 };
        Self { make, transport, stages, stage, unsent }
    }

    /// Serves one connection until its peer closes it, it reaches its age, or the server ends it.
    pub(super) async fn serve<S>(&self, accepted: Accepted, mut stage: watch::Receiver<Stage>)
    where
        M: Fn(Arc<Peer>, Arc<ConnectionMemory>) -> S,
        S: AnswerService,
        S::Future: Send + Unpin + 'static,
    {
        let Accepted { socket, origin, mut entry } = accepted;
        let connection = NEXT_CONNECTION.fetch_add(1, Relaxed);
        let mut peer = Peer { connection, origin, proxy: None, certificate: None, is_unasked: false };
        debug!(connection, peer = %origin, "connection accepted");
        let established = match socket.into_stream() {
            Ok(stream) => tokio::select! {
                established = establish(stream, &mut peer, &mut entry, &self.stages) => established,
                // No call can be open yet.
                () = reached(&mut stage, Stage::GoAway) => return entry.close(Closed::GoAway),
            },
            Err(error) => Err(error.into()),
        };
        let reason = match established {
            Ok(stream) => self.speak(stream, Arc::new(peer), stage).await,
            Err(error) => {
                debug!(connection, peer = %peer.origin, %error, "connection not established");
                error.reason()
            }
        };
        debug!(connection, reason = reason.as_str(), "connection closed");
        entry.close(reason);
    }

    /// Speaks HTTP. Returns why the connection ended.
    async fn speak<S>(&self, stream: Stream, peer: Arc<Peer>, stage: watch::Receiver<Stage>) -> Closed
    where
        M: Fn(Arc<Peer>, Arc<ConnectionMemory>) -> S,
        S: AnswerService,
        S::Future: Send + Unpin + 'static,
    {
        let Transport { http2, connections, memory, stream_limit, .. } = &self.transport;
        let number = peer.connection;
        let is_http2 = stream.ahead().starts_with(PREFACE);
        let memory = memory.of(number);
        let stall = self.transport.memory.limits().stall;
        let calls = Calls::new(Arc::clone(&peer), stream_limit.clone(), stall, self.unsent.clone());
        let service = (self.make)(peer, Arc::clone(&memory));
        let stream = WriteStall::new(stream, stall);
        let heard = stream.heard();
        let socket = Linger::new(stream);
        let mut events = Events::new(connections, calls.clone(), stage);
        let (mut backlog, written) = (calls.backlog(), heard.clone());
        if !is_http2 {
            let connection = http1::connection(socket, http2, connections.preface_timeout, service, calls);
            let mut connection = pin!(connection);
            return events
                .until_the_end(number, |cx, order| {
                    if order.is_some() {
                        connection.as_mut().graceful_shutdown();
                    }
                    let polled = connection.as_mut().poll(cx).map_err(Into::into);
                    backlog.note(written.is_blocked());
                    polled
                })
                .await;
        }
        let mut connection = match http2::Connection::handshake(socket, *http2, service, calls, memory).await {
            Ok(connection) => connection,
            Err(error) => return ending(number, Err(error.into()), Closed::Error),
        };
        if let Some(pings) = connection.ping_pong() {
            events.watch(pings, heard, *http2);
        }
        events
            .until_the_end(number, |cx, order| {
                if order.is_some() {
                    // Sends GOAWAY with the highest stream id and a PING, then GOAWAY with the last accepted id.
                    connection.graceful_shutdown();
                }
                let polled = connection.poll(cx).map_err(Into::into);
                backlog.note(written.is_blocked());
                polled
            })
            .await
    }
}

/// Events that may end the connection. Each is polled only when it is woken.
struct Events(FuturesUnordered<Pin<Box<dyn Future<Output = Event> + Send>>>);

/// An event from outside of the connection.
enum Event {
    /// The peer must open no more streams; after the grace the connection is cut.
    Goodbye(Goodbye),
    /// The connection is cut.
    Cut(Closed),
}

/// Why the server ends a connection, and the grace of its peer; `None` until all connections are cut.
#[derive(Debug, Clone, Copy)]
struct Goodbye {
    reason: Closed,
    grace: Option<Duration>,
}

impl Events {
    fn new(limits: &ConnectionLimits, calls: Calls, stage: watch::Receiver<Stage>) -> Self {
        let events = Self(FuturesUnordered::new());
        let (limits, mut going, mut cut) = (*limits, stage.clone(), stage);
        events.push(async move { Event::Goodbye(end_of_time(limits, calls).await) });
        events.push(async move {
            reached(&mut going, Stage::GoAway).await;
            Event::Goodbye(Goodbye { reason: Closed::GoAway, grace: None })
        });
        events.push(async move {
            reached(&mut cut, Stage::Cut).await;
            Event::Cut(Closed::Cut)
        });
        events
    }

    fn push(&self, event: impl Future<Output = Event> + Send + 'static) {
        self.0.push(Box::pin(event));
    }

    /// Cuts the connection if its peer shows no activity.
    fn watch(&self, pings: h2::PingPong, heard: Heard, http2: Http2) {
        self.push(async move {
            http2::unresponsive(pings, heard, http2).await;
            Event::Cut(Closed::Unresponsive)
        });
    }

    /// Polls the connection until it has ended, and starts its shutdown at most once. The connection is polled first,
    /// so that ready data is written before a cut.
    async fn until_the_end(
        &mut self,
        number: u64,
        mut connection: impl FnMut(&mut Context<'_>, Option<Goodbye>) -> Poll<Result<(), Failure>>,
    ) -> Closed {
        let mut said = None;
        poll_fn(|cx| {
            let mut order = None;
            loop {
                if let Poll::Ready(ended) = connection(cx, order.take()) {
                    let otherwise = said.map_or(Closed::Peer, |goodbye: Goodbye| goodbye.reason);
                    return Poll::Ready(ending(number, ended, otherwise));
                }
                match self.0.poll_next_unpin(cx) {
                    Poll::Ready(Some(Event::Goodbye(goodbye))) if said.is_none() => {
                        debug!(connection = number, reason = goodbye.reason.as_str(), "closing the connection");
                        self.cut_after(goodbye);
                        (said, order) = (Some(goodbye), Some(goodbye));
                    }
                    Poll::Ready(Some(Event::Goodbye(_))) => {}
                    Poll::Ready(Some(Event::Cut(reason))) => return Poll::Ready(reason),
                    Poll::Ready(None) | Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    fn cut_after(&self, goodbye: Goodbye) {
        let reason = if goodbye.reason == Closed::Age { Closed::AgeCut } else { goodbye.reason };
        let at = goodbye.grace.and_then(|grace| Instant::now().checked_add(grace));
        self.push(async move {
            until(at).await;
            Event::Cut(reason)
        });
    }
}

/// Returns when the connection reaches its age, or had no stream for too long.
async fn end_of_time(limits: ConnectionLimits, calls: Calls) -> Goodbye {
    let begin = Instant::now();
    let jitter = rand::random_range(0.9..=1.1);
    let old = begin.checked_add(limits.max_age.mul_f64(jitter));
    let mut seen = calls.opened();
    loop {
        let idle_check = Instant::now().checked_add(limits.idle_timeout);
        let age_first = old.is_some_and(|old| idle_check.is_none_or(|idle_check| old <= idle_check));
        until(if age_first { old } else { idle_check }).await;
        if age_first {
            return Goodbye { reason: Closed::Age, grace: Some(limits.max_age_grace) };
        }
        let opened = calls.opened();
        if calls.open() == 0 && opened == seen {
            return Goodbye { reason: Closed::Idle, grace: Some(FAREWELL) };
        }
        seen = opened;
    }
}

/// Returns at `instant`; `None` means never.
async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

fn ending(connection: u64, ended: Result<(), Failure>, otherwise: Closed) -> Closed {
    match ended {
        Ok(()) => otherwise,
        Err(error) => {
            debug!(connection, %error, "connection failed");
            Closed::Error
        }
    }
}
