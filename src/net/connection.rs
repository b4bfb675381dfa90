use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::Service};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tracing::debug;

use super::{
    establish::Established,
    protocol::{Graceful, protocol},
    stage::{Stage, reached},
    stream_deadline::{Noting, StreamExecutor, StreamLimit},
};
use crate::model::Peer;

/// What a connection may do.
#[derive(Debug, Clone)]
pub struct Transport {
    /// Most streams open at once on one connection. Default 256.
    pub max_concurrent_streams: u32,
    /// Most streams that a peer may make the server reset before the connection is cut. Default 1,024.
    pub max_local_error_reset_streams: usize,
    /// Most bytes of one header list. Default 16 KiB.
    pub max_header_list: u32,
    /// Receive window of one stream, in bytes. Default 64 KiB.
    pub stream_window: u32,
    /// Receive window of one connection, in bytes. Default 1 MiB.
    pub connection_window: u32,
    /// Time without a sign of the peer until it is asked for one. Default 30 s.
    pub keepalive_interval: Duration,
    /// Time that the peer has to answer. Default 10 s.
    pub keepalive_timeout: Duration,
    /// Time that a peer has for its first 24 bytes, and for the header of a proxy before them. Default 5 s.
    pub preface_timeout: Duration,
    /// How long a stream may last, whether its peer reads or not. Default for ever.
    pub stream_limit: Option<StreamLimit>,
    /// Whether peers may speak HTTP/1.1 too. Default no.
    pub http1: bool,
}

impl Default for Transport {
    fn default() -> Self {
        Self {
            max_concurrent_streams: 256,
            max_local_error_reset_streams: 1024,
            max_header_list: 16 << 10,
            stream_window: 64 << 10,
            connection_window: 1 << 20,
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
            preface_timeout: Duration::from_secs(5),
            stream_limit: None,
            http1: false,
        }
    }
}

impl Transport {
    pub(super) fn builder(&self) -> http2::Builder<StreamExecutor> {
        let mut builder = http2::Builder::new(StreamExecutor);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.max_concurrent_streams)
            .max_local_error_reset_streams(self.max_local_error_reset_streams)
            .max_header_list_size(self.max_header_list)
            .initial_stream_window_size(self.stream_window)
            .initial_connection_window_size(self.connection_window)
            .keep_alive_interval(self.keepalive_interval)
            .keep_alive_timeout(self.keepalive_timeout);
        builder
    }
}

/// Serves one connection until the peer leaves, or the listener's stage ends it.
pub(super) async fn serve<S, B>(
    established: Established,
    make: impl Fn(Arc<Peer>) -> S,
    transport: &Transport,
    mut stage: watch::Receiver<Stage>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Established { stream, peer } = established;
    let peer = Arc::new(peer);
    let service = Noting { service: make(Arc::clone(&peer)), limit: transport.stream_limit.clone() };
    let connection = protocol(TokioIo::new(stream), service, transport);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = reached(&mut stage, Stage::GoAway) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            // Sends GOAWAY with the highest stream id and a PING, then GOAWAY with the last one that was taken.
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = reached(&mut stage, Stage::Cut) => Ok(()),
            }
        }
    };
    if let Err(error) = ended {
        debug!(connection = peer.connection, peer = %peer.origin, %error, "connection ended");
    }
}
