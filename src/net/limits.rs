//! Limits of connections and of HTTP/2. `src/config/keys_and_defaults.rs` has the defaults of `serve`.

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;

use super::{call::StreamLimit, tls::Tls};
use crate::memory::Memory;

/// Maximum bytes of a stream that wait for the socket.
const SEND_BUFFER: usize = 256 << 10;
/// Budget for small unread DATA frames of a connection, in bytes. For each frame below 256 bytes, h2 charges the
/// difference to 256. Python's client sends each message of a stream in its own frame, of 13 bytes or more.
const SMALL_FRAMES: usize = 20 << 20;

/// Settings of a listener's connections.
#[derive(Clone, Default)]
pub struct Transport {
    /// Limits of HTTP/2.
    pub http2: Http2,
    /// Limits of connections: their number and age.
    pub connections: ConnectionLimits,
    /// Networks of proxies whose connections must begin with a PROXY header, which has the client's address. Other
    /// peers must not send one. Default none.
    pub proxies: Vec<IpNet>,
    /// Networks of proxies without that header. Their address represents many peers, so
    /// [`ConnectionLimits::max_per_address`] does not apply. Default none.
    pub http_proxies: Vec<IpNet>,
    /// TLS in front of HTTP, on network listeners. Default none.
    pub tls: Option<Arc<Tls>>,
    /// Limits of incomplete messages and unread answers.
    pub memory: Memory,
    /// Time limit of a stream, whether or not its peer reads. Default none.
    pub stream_limit: Option<StreamLimit>,
    /// Whether peers may also speak HTTP/1.1. With TLS, [`TlsConfig::http1`](super::TlsConfig::http1) decides instead.
    /// Default no.
    pub http1: bool,
}

/// Limits of HTTP/2 on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub struct Http2 {
    /// Maximum number of streams open at once.
    #[serde(skip)]
    pub max_concurrent_streams: u32,
    /// Streams that a peer may make the server reset. With more, the connection is cut.
    pub max_local_resets: usize,
    /// Streams that a peer may reset before the server has accepted them. With more, the connection is cut.
    pub max_pending_resets: usize,
    /// Largest header list, in bytes as RFC 9113 counts them. Twice as much is read, so that the service can explain
    /// its refusal; beyond that, the answer is HTTP status 431.
    pub max_header_list: u32,
    /// Receive window of one stream, in bytes. It shrinks to 64 KiB while messages of its connection wait, or while its
    /// incomplete messages use more than an eighth of the memory of a connection.
    pub stream_window: u32,
    /// Receive window of one connection, in bytes. With many connections it is smaller, so that received but unread
    /// bytes stay within a quarter of the memory for uploads.
    pub connection_window: u32,
    /// Time without activity after which a peer is pinged.
    pub keepalive_interval: Duration,
    /// Time limit for the answer to a ping.
    pub keepalive_timeout: Duration,
}

/// Limits of connections: their number and age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub struct ConnectionLimits {
    /// Maximum number of connections open at once, over all listeners of a server.
    pub max: usize,
    /// Maximum number of connections open at once from one IPv4 address, or from one 64-bit network of IPv6.
    pub max_per_address: usize,
    /// Time limit for the PROXY header and the HTTP/2 preface together. A TLS handshake has its own limit; after it,
    /// the preface gets the whole time again.
    pub preface_timeout: Duration,
    /// Age at which a peer is asked, by GOAWAY, to open no more streams. It varies by a tenth, so that peers that
    /// connected together do not leave together.
    pub max_age: Duration,
    /// Time from that GOAWAY until the connection is cut, even with open streams.
    pub max_age_grace: Duration,
    /// A connection without a stream is closed after this time, or up to twice this time.
    pub idle_timeout: Duration,
}

impl Default for Http2 {
    fn default() -> Self {
        Self {
            max_concurrent_streams: 256,
            max_local_resets: 1024,
            max_pending_resets: 20,
            max_header_list: 16 << 10,
            stream_window: 8 << 20,
            connection_window: 8 << 20,
            keepalive_interval: Duration::from_secs(5),
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
            // The default follows the connection's window, which is small if there are many connections. A burst of
            // small calls would then end the connection.
            .data_frame_budget(SMALL_FRAMES)
            .max_send_buffer_size(SEND_BUFFER);
        builder
    }
}
