//! The stages of a connection between acceptance and HTTP: PROXY header, TLS, preface, each with its time limit.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::AsyncWriteExt,
    time::{Instant, timeout_at},
};

use super::{
    linger::Linger,
    proxy::{Proxies, read_header},
    stream::{Io, Stream},
    tls::{HandshakeError, Tls},
    tracker::{Closed, Entry},
};
use crate::model::Peer;

/// The first bytes of every HTTP/2 client.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The answer to a client that speaks HTTP/1.1 on a listener without it.
const WRONG_VERSION: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
connection: close\r\n\r\n\
this port speaks gRPC over HTTP/2, and no HTTP/1.1; a proxy in front of it must speak HTTP/2 to it too; \
pages of browsers may call by gRPC-Web where server.grpc_web_origins names them; \
metrics and health for HTTP/1.1 are on server.ops_listen\n";

/// Configuration of the stages.
#[derive(Debug, Clone)]
pub(super) struct Stages {
    /// Time for the PROXY header, and for the preface.
    pub(super) preface_timeout: Duration,
    pub(super) proxies: Proxies,
    /// Whether the peer may speak HTTP/1.1.
    pub(super) http1: bool,
    pub(super) tls: Option<Arc<Tls>>,
}

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
    #[error("{0}")]
    Tls(#[from] HandshakeError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Unestablished {
    pub(super) fn reason(&self) -> Closed {
        match self {
            Self::Slow(_) => Closed::Slow,
            Self::NotHttp2 => Closed::NotHttp2,
            Self::ProxyHeader => Closed::ProxyHeader,
            Self::PerAddress => Closed::PerAddress,
            Self::Tls(error) => error.reason(),
            Self::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => Closed::Peer,
            Self::Io(_) => Closed::Error,
        }
    }
}

/// Takes a connection through its stages. Each stage takes the stream, returns it at the point where it stopped
/// reading, and may add facts about the peer.
pub(super) async fn establish(
    mut stream: Stream,
    peer: &mut Peer,
    entry: &mut Entry,
    stages: &Stages,
) -> Result<Stream, Unestablished> {
    let within = stages.preface_timeout;
    let slow = |_| Unestablished::Slow(within);
    let mut end = Instant::now() + within;
    // The PROXY header comes first.
    timeout_at(end, read_header(&mut stream, peer, &stages.proxies)).await.map_err(slow)??;
    if peer.proxy.is_some() && !entry.claim(&peer.origin) {
        return Err(Unestablished::PerAddress);
    }
    let mut http1 = stages.http1;
    if let Some(tls) = stages.tls.as_ref().filter(|_| stream.is_of_network()) {
        // The handshake has a time limit of its own.
        let secured = tls.accept(stream).await?;
        (peer.certificate, peer.is_unasked) = (secured.certificate, secured.is_unasked);
        stream = Stream::new(Io::Tls(Box::new(secured.stream)));
        end = Instant::now() + within;
        // ALPN decided the protocol.
        http1 = secured.http1;
    }
    timeout_at(end, preface(&mut stream, http1)).await.map_err(slow)??;
    Ok(stream)
}

/// Waits for the preface, and leaves it in the stream. If HTTP/1.1 is allowed, anything that is not a preface passes.
async fn preface(stream: &mut Stream, http1: bool) -> Result<(), Unestablished> {
    loop {
        let known = stream.ahead().len().min(PREFACE.len());
        if stream.ahead()[..known] != PREFACE[..known] {
            if http1 {
                return Ok(());
            }
            if begins_http1(stream.ahead()) {
                let mut stream = Linger::new(stream);
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

/// Whether bytes may start an HTTP/1.1 request: its method, in capitals, and a space.
fn begins_http1(bytes: &[u8]) -> bool {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    method > 0 && bytes.get(method).is_none_or(|byte| *byte == b' ')
}
