//! The stages of a connection before HTTP: PROXY header, TLS and preface, each with a time limit.

use std::{io, time::Duration};

use tokio::{
    io::AsyncWriteExt,
    time::{Instant, timeout_at},
};

use super::{
    limits::Transport,
    proxy::read_header,
    stream::{BoundedStream, Stream},
    tracker::{Closed, Entry},
};
use crate::model::{Origin, Peer};

/// The first bytes of every HTTP/2 client.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The answer to a client that speaks HTTP/1.1 on a listener without it.
const WRONG_VERSION: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
connection: close\r\n\r\n\
this port speaks gRPC over HTTP/2, not HTTP/1.1; a proxy in front of it must also use HTTP/2; \
web pages may call by gRPC-Web if server.grpc_web_origins lists their origin; \
metrics and health for HTTP/1.1 are on server.ops_listen\n";

/// Why a connection did not reach HTTP.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unestablished {
    #[error("no HTTP/2 preface within {0:?}")]
    Slow(Duration),
    #[error("the peer does not speak HTTP/2")]
    NotHttp2,
    #[error("the peer is a proxy, but sent no PROXY header")]
    ProxyHeader,
    #[error("the bound of connections from this address is reached")]
    PerAddress,
    #[error("no TLS handshake within {0:?}")]
    SlowHandshake(Duration),
    #[error("no client is trusted: the client CA is empty or missing; restore the file")]
    NoTrustedClients,
    #[error("the client does not offer HTTP/2 (ALPN h2), or HTTP/1.1 if web pages may call")]
    Alpn,
    #[error("TLS handshake: {0}")]
    Handshake(io::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Unestablished {
    pub(super) fn reason(&self) -> Closed {
        match self {
            Self::Slow(_) | Self::SlowHandshake(_) => Closed::Slow,
            Self::NotHttp2 | Self::Alpn => Closed::NotHttp2,
            Self::NoTrustedClients | Self::Handshake(_) => Closed::Tls,
            Self::ProxyHeader => Closed::ProxyHeader,
            Self::PerAddress => Closed::PerAddress,
            Self::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => Closed::Peer,
            Self::Io(_) => Closed::Error,
        }
    }

    /// Whether an operator may have to act: a peer that only connects, such as a probe, is none of that.
    pub(super) fn is_worth_a_line(&self) -> bool {
        match self {
            Self::Handshake(error) => error.kind() != io::ErrorKind::UnexpectedEof,
            _ => self.reason() == Closed::Tls,
        }
    }
}

/// Takes a connection through its stages. Each stage gets the stream, returns it with the rest unread, and may add
/// facts about the peer.
pub(super) async fn establish(
    mut stream: Stream,
    peer: &mut Peer,
    entry: &mut Entry,
    transport: &Transport,
) -> Result<Stream, Unestablished> {
    let within = transport.connections.preface_timeout;
    let slow = |_| Unestablished::Slow(within);
    let mut end = Instant::now() + within;
    // The PROXY header comes first.
    timeout_at(end, read_header(&mut stream, peer, &transport.proxies)).await.map_err(slow)??;
    if peer.proxy.is_some() && !entry.claim(&peer.origin) {
        return Err(Unestablished::PerAddress);
    }
    let mut http1 = transport.http1;
    // A Unix socket stays on the machine.
    let is_of_network = matches!(peer.origin, Origin::Address(_));
    if let Some(tls) = transport.tls.as_ref().filter(|_| is_of_network) {
        // The handshake has its own time limit.
        let secured = tls.accept(stream).await?;
        (peer.certificate, peer.certificate_request) = (secured.certificate, secured.certificate_request);
        stream = Stream::new(secured.stream);
        end = Instant::now() + within;
        // ALPN selected the protocol.
        http1 = secured.http1;
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
                let mut stream = BoundedStream::new(stream, stall);
                stream.write_all(WRONG_VERSION).await?;
                stream.shutdown().await?;
            }
            return Err(Unestablished::NotHttp2);
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
