use std::{sync::Arc, time::Duration};

use ipnet::IpNet;

use super::{call::StreamLimit, tls::Tls};
use crate::memory::Memory;

/// Most bytes of a stream that wait for the socket.
const SEND_BUFFER: usize = 256 << 10;

/// What a listener's connections may do.
#[derive(Debug, Clone, Default)]
pub struct Transport {
    /// Bounds of HTTP/2.
    pub http2: Http2,
    /// Bounds of connections: how many, and how long.
    pub connections: ConnectionLimits,
    /// Networks of proxies, whose connections begin with a PROXY header that names the peer. It is read from these
    /// only, and from these always. Default none.
    pub proxies: Vec<IpNet>,
    /// Networks of proxies without such a header. Theirs is not the address of one peer, so that
    /// [`ConnectionLimits::max_per_address`] does not bound it. Default none.
    pub http_proxies: Vec<IpNet>,
    /// TLS in front of HTTP/2, on listeners of a network. Default none.
    pub tls: Option<Arc<Tls>>,
    /// What callers make the server hold.
    pub memory: Memory,
    /// How long a stream may last, whether its peer reads or not. Default for ever.
    pub stream_limit: Option<StreamLimit>,
    /// Whether peers may speak HTTP/1.1 too; behind TLS, [`TlsConfig::http1`](super::TlsConfig::http1) says so. Default no.
    pub http1: bool,
}

/// Bounds of HTTP/2 on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub struct Http2 {
    /// Most streams open at once. Default 256.
    #[serde(skip)]
    pub max_concurrent_streams: u32,
    /// Most streams that a peer may make the server reset before the connection is cut. Default 1,024.
    pub max_local_resets: usize,
    /// Most streams that a peer may reset before the server has looked at them until the connection is cut.
    /// Default 20.
    pub max_pending_resets: usize,
    /// Most bytes of one header list that a service is to take, as RFC 9113 counts them. Up to twice as many are read,
    /// so that the service can say why it refuses them; more are answered with HTTP status 431. Default 16 KiB.
    pub max_header_list: u32,
    /// Receive window of one stream, in bytes. Default 1 MiB. While messages of its connection are held back it is 64 KiB.
    pub stream_window: u32,
    /// Receive window of one connection, in bytes. Default 4 MiB. With many connections it is less, so that a quarter of
    /// the memory for uploads is not exceeded by bytes that were received and not read.
    pub connection_window: u32,
    /// Time without a sign of the peer until it is asked for one. Default 30 s.
    pub keepalive_interval: Duration,
    /// Time that the peer has to answer. Default 10 s.
    pub keepalive_timeout: Duration,
}

/// Bounds of connections: how many, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub struct ConnectionLimits {
    /// Most connections open at once, over all listeners of a server. Default 4,096.
    pub max: usize,
    /// Most connections open at once from one address, and from one network of 64 bits of IPv6. Default 1,024.
    pub max_per_address: usize,
    /// Time that a peer has for its first 24 bytes, and for the header of a proxy before them. Default 5 s.
    pub preface_timeout: Duration,
    /// Age at which a peer is told to open no more streams, give or take a tenth, so that peers which came together do
    /// not leave together. Default 30 min.
    pub max_age: Duration,
    /// Time from then on until the connection is cut, whatever is on it. Default 1 h.
    pub max_age_grace: Duration,
    /// A connection without a stream for this long, or at most twice as long, is closed. Default 15 min.
    pub idle_timeout: Duration,
}

impl Default for Http2 {
    fn default() -> Self {
        Self {
            max_concurrent_streams: 256,
            max_local_resets: 1024,
            max_pending_resets: 20,
            max_header_list: 16 << 10,
            stream_window: 1 << 20,
            connection_window: 4 << 20,
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
        }
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max: 4096,
            max_per_address: 1024,
            preface_timeout: Duration::from_secs(5),
            max_age: Duration::from_secs(30 * 60),
            max_age_grace: Duration::from_secs(3600),
            idle_timeout: Duration::from_secs(15 * 60),
        }
    }
}

impl Http2 {
    pub(super) fn builder(&self) -> h2::server::Builder {
        let Self {
            max_concurrent_streams,
            max_local_resets,
            max_pending_resets,
            max_header_list,
            stream_window,
            connection_window,
            keepalive_interval: _,
            keepalive_timeout: _,
        } = *self;
        let mut builder = h2::server::Builder::new();
        builder
            .max_concurrent_streams(max_concurrent_streams)
            .max_local_error_reset_streams(Some(max_local_resets))
            .max_pending_accept_reset_streams(max_pending_resets)
            .max_header_list_size(max_header_list.saturating_mul(2))
            .initial_window_size(stream_window)
            .initial_connection_window_size(connection_window)
            .max_send_buffer_size(SEND_BUFFER);
        builder
    }
}
