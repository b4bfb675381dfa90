use std::{
    convert::Infallible,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{Request, Response};
use hyper::{body::Incoming, service::Service};
use hyper_util::rt::TokioIo;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::debug;

use super::{
    census::Closed,
    establish::{Stages, establish},
    limits::{ConnectionLimits, Transport},
    linger::Linger,
    listener::Accepted,
    protocol::{Failure, Graceful, protocol},
    proxy::Proxies,
    stage::{Stage, reached},
    stream::Stream,
    stream_deadline::{Noting, StreamExecutor, Streams},
    write_stall::WriteStall,
};
use crate::model::Peer;

/// Names connections, whatever listener they came by.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// Time that an idle peer has to say goodbye.
const FAREWELL: Duration = Duration::from_secs(10);

/// What the connections of a server share.
pub(super) struct Serving<M> {
    /// Makes the service of one connection.
    pub(super) make: M,
    pub(super) transport: Transport,
    pub(super) stages: Stages,
    pub(super) stage: watch::Sender<Stage>,
}

impl<M> Serving<M> {
    pub(super) fn new(make: M, transport: Transport, proxies: Proxies, stage: watch::Sender<Stage>) -> Self {
        let (preface_timeout, tls) = (transport.connections.preface_timeout, transport.tls.clone());
        let stages = Stages { preface_timeout, proxies, tls, http1: transport.http1 };
        Self { make, transport, stages, stage }
    }

    /// Serves one connection until its peer leaves, its time is over, or the server ends it.
    pub(super) async fn serve<S, B>(&self, accepted: Accepted, mut stage: watch::Receiver<Stage>)
    where
        M: Fn(Arc<Peer>) -> S,
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
        S::Future: Send + 'static,
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Accepted { socket, origin, mut entry } = accepted;
        let connection = NEXT_CONNECTION.fetch_add(1, Relaxed);
        let mut peer = Peer { connection, origin, proxy: None, certificate: None, is_unasked: false };
        debug!(connection, peer = %origin, "connection accepted");
        let established = match socket.into_stream() {
            Ok(stream) => tokio::select! {
                established = establish(stream, &mut peer, &mut entry, &self.stages) => established,
                // No call can be on it yet.
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

    /// Speaks HTTP. Returns why that ended.
    async fn speak<S, B>(&self, stream: Stream, peer: Arc<Peer>, mut stage: watch::Receiver<Stage>) -> Closed
    where
        M: Fn(Arc<Peer>) -> S,
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
        S::Future: Send + 'static,
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Transport { http2, connections, stream_limit, proxies: _, http_proxies: _, tls: _, http1: _ } =
            &self.transport;
        let number = peer.connection;
        let streams = Streams::default();
        let service = Noting { service: (self.make)(peer), limit: stream_limit.clone(), streams: streams.clone() };
        let executor = StreamExecutor::new(streams.clone());
        let stream = Linger::new(WriteStall::new(stream, http2.keepalive_interval + http2.keepalive_timeout));
        let connection = protocol(TokioIo::new(stream), service, executor, &self.transport);
        let mut connection = pin!(connection);
        // The connection first, each time: what is ready to be written is written before it is cut.
        let goodbye = tokio::select! {
            biased;
            ended = connection.as_mut() => return ending(number, ended, Closed::Peer),
            () = reached(&mut stage, Stage::GoAway) => Goodbye { reason: Closed::GoAway, grace: None },
            goodbye = end_of_time(connections, &streams) => goodbye,
        };
        debug!(connection = number, reason = goodbye.reason.as_str(), "saying goodbye");
        // Sends GOAWAY with the highest stream id and a PING, then GOAWAY with the last one that was taken.
        connection.as_mut().graceful_shutdown();
        let cut_at = goodbye.grace.and_then(|grace| Instant::now().checked_add(grace));
        tokio::select! {
            biased;
            ended = connection => ending(number, ended, goodbye.reason),
            () = reached(&mut stage, Stage::Cut) => Closed::Cut,
            () = until(cut_at) => if goodbye.reason == Closed::Age { Closed::AgeCut } else { goodbye.reason },
        }
    }
}

/// Why the server ends a connection, and how long its peer has from then on; without an end, until all are cut.
#[derive(Debug, Clone, Copy)]
struct Goodbye {
    reason: Closed,
    grace: Option<Duration>,
}

/// Returns when the connection is too old, or had no stream for too long.
async fn end_of_time(limits: &ConnectionLimits, streams: &Streams) -> Goodbye {
    let begin = Instant::now();
    let jitter = rand::random_range(0.9..=1.1);
    let old = begin.checked_add(limits.max_age.mul_f64(jitter));
    let mut seen = streams.opened();
    loop {
        let look = Instant::now().checked_add(limits.idle_timeout);
        let age_first = old.is_some_and(|old| look.is_none_or(|look| old <= look));
        until(if age_first { old } else { look }).await;
        if age_first {
            return Goodbye { reason: Closed::Age, grace: Some(limits.max_age_grace) };
        }
        let opened = streams.opened();
        if streams.open() == 0 && opened == seen {
            return Goodbye { reason: Closed::Idle, grace: Some(FAREWELL) };
        }
        seen = opened;
    }
}

/// An instant that cannot be told does not come.
async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

fn ending(connection: u64, ended: Result<(), Failure>, otherwise: Closed) -> Closed {
    let Err(error) = ended else { return otherwise };
    debug!(connection, %error, "connection failed");
    if error.downcast_ref().is_some_and(hyper::Error::is_timeout) { Closed::Unresponsive } else { Closed::Error }
}
