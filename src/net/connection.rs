//! Serves one connection: PROXY header, TLS and preface, each with a time limit; then HTTP, keepalive, age limit,
//! GOAWAY, cut.

use std::{
    future::poll_fn,
    io,
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
    io::AsyncWriteExt,
    sync::watch,
    time::{Instant, sleep, timeout_at},
};
use tower::BoxError;
use tracing::debug;

use super::{
    call::{Backlog, Calls, UnreadAnswers},
    http1,
    http2::{self, AnswerService},
    limits::{ConnectionLimits, Http2, Transport},
    listener::Accepted,
    proxy::read_header,
    server::{Stage, reached},
    stream::{Activity, Stream},
    tracker::{Closed, Entry},
};
use crate::{
    incidents::{self, Incident},
    memory::ConnectionMemory,
    model::{CertificateRequest, Peer},
};

/// The first bytes of every HTTP/2 client.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The answer to a client that speaks HTTP/1.1 on a listener without it.
const WRONG_VERSION: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
connection: close\r\n\r\n\
this port speaks gRPC over HTTP/2, not HTTP/1.1; a proxy in front of it must also use HTTP/2; \
with server.json = true it also takes JSON by HTTP/1.1; \
web pages may call by gRPC-Web if server.grpc_web_origins lists their origin; \
metrics and health for HTTP/1.1 are on server.ops_listen\n";

/// Numbers the connections of all listeners.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// Time that an idle peer has to close after GOAWAY.
const GOAWAY_GRACE: Duration = Duration::from_secs(10);

/// Makes the service of one connection.
pub(super) type Make<S> = Box<dyn Fn(Arc<Peer>, Arc<ConnectionMemory>) -> S + Send + Sync>;

/// State that the connections of a server share.
pub(super) struct Serving<S> {
    pub(super) make: Make<S>,
    pub(super) transport: Transport,
    pub(super) unread: Arc<UnreadAnswers>,
}

impl<S: AnswerService> Serving<S> {
    /// Serves one connection until its peer closes it, it reaches its age limit, or the server ends it.
    pub(super) async fn serve(self: Arc<Self>, accepted: Accepted) {
        let Accepted { socket, origin, mut entry, mut stage } = accepted;
        let connection = NEXT_CONNECTION.fetch_add(1, Relaxed);
        let certificate_request = CertificateRequest::Unconfigured;
        let mut peer = Peer { connection, origin, proxy: None, certificate: None, certificate_request };
        debug!(connection, peer = %origin, "connection accepted");
        let established = match socket.into_stream() {
            Ok(stream) => tokio::select! {
                established = establish(stream, &mut peer, &mut entry, &self.transport) => established,
                // No call can be open yet.
                () = reached(&mut stage, Stage::GoAway) => return entry.close(Closed::GoAway),
            },
            Err(error) => Err(error.into()),
        };
        let reason = match established {
            Ok(stream) => self.speak(stream, Arc::new(peer), stage).await,
            Err(error) => {
                debug!(connection, peer = %peer.origin, %error, "connection not established");
                // A peer that only connects, such as a probe, needs no action of the operator.
                if error.reason == Closed::Tls && error.cause.kind() != io::ErrorKind::UnexpectedEof {
                    incidents::log("", "TLS_HANDSHAKE", || Incident {
                        what: "TLS handshakes failed",
                        peer: peer.origin.to_string(),
                        cause: error.to_string(),
                        ..Incident::default()
                    });
                }
                error.reason
            }
        };
        debug!(connection, reason = reason.as_str(), "connection closed");
        entry.close(reason);
    }

    /// Speaks HTTP. Returns the reason why the connection ended.
    async fn speak(&self, mut stream: Stream, peer: Arc<Peer>, stage: watch::Receiver<Stage>) -> Closed {
        let Transport { http2, connections, memory, stream_limit, .. } = &self.transport;
        let number = peer.connection;
        let is_http2 = stream.ahead().starts_with(PREFACE);
        let memory = memory.of(number);
        let stall = self.transport.memory.limits().stall;
        let calls = Calls::new(Arc::clone(&peer), stream_limit.clone(), stall, Arc::clone(&self.unread));
        let service = (self.make)(peer, Arc::clone(&memory));
        stream.bound(stall);
        let activity = stream.activity();
        let mut backlog = calls.backlog(activity.clone());
        let mut events = Events::new(connections, Arc::clone(&calls), stage);
        if !is_http2 {
            let connection = http1::connection(stream, http2, connections.preface_timeout, service, calls);
            let mut connection = pin!(connection);
            return events
                .until_the_end(number, &mut backlog, |cx, ends| {
                    if ends == Some(Stage::GoAway) {
                        connection.as_mut().graceful_shutdown();
                    }
                    connection.as_mut().poll(cx).map_err(Into::into)
                })
                .await;
        }
        let mut connection = match http2::Connection::handshake(stream, *http2, service, calls, memory).await {
            Ok(connection) => connection,
            Err(error) => return ending(number, Err(error.into()), Closed::Error),
        };
        if let Some(pings) = connection.ping_pong() {
            events.watch(pings, activity, *http2);
        }
        events
            .until_the_end(number, &mut backlog, |cx, ends| {
                match ends {
                    // Sends GOAWAY with the highest stream id and a PING, then GOAWAY with the last accepted id.
                    Some(Stage::GoAway) => connection.graceful_shutdown(),
                    // A peer that is far away, or busy, has not answered the PING: it learns which calls did not start.
                    Some(Stage::Cut) => connection.abrupt_shutdown(),
                    _ => {}
                }
                connection.poll(cx).map_err(Into::into)
            })
            .await
    }
}

/// Why a connection did not reach HTTP.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub(super) struct Unestablished {
    pub(super) reason: Closed,
    pub(super) cause: io::Error,
}

impl Unestablished {
    pub(super) fn new(reason: Closed, cause: impl Into<BoxError>) -> Self {
        Self { reason, cause: io::Error::other(cause) }
    }
}

impl From<io::Error> for Unestablished {
    fn from(cause: io::Error) -> Self {
        let is_end = matches!(cause.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset);
        Self { reason: if is_end { Closed::Peer } else { Closed::Error }, cause }
    }
}

/// Takes a connection through its stages. Each stage gets the stream, returns it with the rest unread, and may add
/// facts about the peer.
async fn establish(
    mut stream: Stream,
    peer: &mut Peer,
    entry: &mut Entry,
    transport: &Transport,
) -> Result<Stream, Unestablished> {
    let within = transport.connections.preface_timeout;
    let slow = |_| Unestablished::new(Closed::Slow, format!("no HTTP/2 preface within {within:?}"));
    let mut end = Instant::now() + within;
    // The PROXY header comes first.
    timeout_at(end, read_header(&mut stream, peer, &transport.proxies)).await.map_err(slow)??;
    if peer.proxy.is_some() && !entry.claim(&peer.origin) {
        return Err(Unestablished::new(Closed::PerAddress, "the limit of connections from this address is reached"));
    }
    // A peer that leaves before its first byte, such as a probe, only leaves, whatever it should have spoken.
    if stream.ahead().is_empty() {
        timeout_at(end, stream.read_ahead(PREFACE.len())).await.map_err(slow)??;
    }
    let mut http1 = transport.http1;
    if let Some(tls) = transport.tls.as_ref().filter(|_| peer.is_of_network()) {
        // The handshake has its own time limit, and ALPN selects the protocol.
        (stream, http1) = tls.accept(stream, peer).await?;
        end = Instant::now() + within;
    }
    timeout_at(end, preface(&mut stream, http1, transport.memory.limits().stall)).await.map_err(slow)??;
    Ok(stream)
}

/// Waits for the preface, without consuming it. If HTTP/1.1 is allowed, anything else passes too.
async fn preface(stream: &mut Stream, http1: bool, stall: Duration) -> Result<(), Unestablished> {
    loop {
        let known = stream.ahead().len().min(PREFACE.len());
        if stream.ahead()[..known] != PREFACE[..known] {
            if http1 {
                return Ok(());
            }
            if begins_http1(stream.ahead()) {
                stream.bound(stall);
                stream.write_all(WRONG_VERSION).await?;
                stream.shutdown().await?;
            }
            return Err(Unestablished::new(Closed::NotHttp2, "the peer does not speak HTTP/2"));
        }
        if known == PREFACE.len() {
            return Ok(());
        }
        stream.read_ahead(PREFACE.len()).await?;
    }
}

/// Whether the bytes may start an HTTP/1.1 request: a method in capitals, and a space.
fn begins_http1(bytes: &[u8]) -> bool {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    method > 0 && bytes.get(method).is_none_or(|byte| *byte == b' ')
}

/// Events that may end the connection. Each one is polled only when it is woken.
struct Events(FuturesUnordered<Pin<Box<dyn Future<Output = Event> + Send>>>);

/// An event from outside of the connection.
enum Event {
    /// The peer must open no more streams. The connection is cut after the grace, if there is one.
    GoAway(Closed, Option<Duration>),
    /// The connection is cut.
    Cut(Closed),
}

impl Events {
    fn new(limits: &ConnectionLimits, calls: Arc<Calls>, stage: watch::Receiver<Stage>) -> Self {
        let events = Self(FuturesUnordered::new());
        let (limits, mut going, mut cut) = (*limits, stage.clone(), stage);
        events.push(end_of_time(limits, calls));
        events.push(async move {
            reached(&mut going, Stage::GoAway).await;
            Event::GoAway(Closed::GoAway, None)
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
    fn watch(&self, pings: h2::PingPong, activity: Activity, http2: Http2) {
        self.push(async move {
            http2::unresponsive(pings, activity, http2).await;
            Event::Cut(Closed::Unresponsive)
        });
    }

    /// Polls the connection until it ends, and starts its shutdown at most once. The connection is polled before the
    /// events, so that ready data is written before a cut. It is told to go away, and that it is cut, with a poll.
    async fn until_the_end(
        &mut self,
        number: u64,
        backlog: &mut Backlog,
        mut connection: impl FnMut(&mut Context<'_>, Option<Stage>) -> Poll<Result<(), BoxError>>,
    ) -> Closed {
        let mut said = None;
        poll_fn(|cx| {
            let mut ends = None;
            loop {
                let polled = connection(cx, ends.take());
                backlog.update();
                if let Poll::Ready(ended) = polled {
                    return Poll::Ready(ending(number, ended, said.unwrap_or(Closed::Peer)));
                }
                match self.0.poll_next_unpin(cx) {
                    Poll::Ready(Some(Event::GoAway(reason, grace))) if said.is_none() => {
                        debug!(connection = number, reason = reason.as_str(), "closing the connection");
                        if let Some(grace) = grace {
                            self.cut_after(grace, reason);
                        }
                        (said, ends) = (Some(reason), Some(Stage::GoAway));
                    }
                    Poll::Ready(Some(Event::GoAway(..))) => {}
                    Poll::Ready(Some(Event::Cut(reason))) => {
                        let _ = connection(cx, Some(Stage::Cut));
                        return Poll::Ready(reason);
                    }
                    Poll::Ready(None) | Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    fn cut_after(&self, grace: Duration, reason: Closed) {
        self.push(async move {
            sleep(grace).await;
            Event::Cut(if reason == Closed::Age { Closed::AgeCut } else { reason })
        });
    }
}

/// Returns when the connection reaches its age limit, or has had no stream for too long.
async fn end_of_time(limits: ConnectionLimits, calls: Arc<Calls>) -> Event {
    let jitter = rand::random_range(0.9..=1.1);
    let mut age = pin!(sleep(limits.max_age.mul_f64(jitter)));
    let mut seen = calls.opened();
    loop {
        tokio::select! {
            biased;
            () = &mut age => return Event::GoAway(Closed::Age, Some(limits.max_age_grace)),
            () = sleep(limits.idle_timeout) => {}
        }
        let opened = calls.opened();
        if calls.open() == 0 && opened == seen {
            return Event::GoAway(Closed::Idle, Some(GOAWAY_GRACE));
        }
        seen = opened;
    }
}

fn ending(connection: u64, ended: Result<(), BoxError>, otherwise: Closed) -> Closed {
    match ended {
        Ok(()) => otherwise,
        Err(error) => {
            debug!(connection, %error, "connection failed");
            Closed::Error
        }
    }
}
