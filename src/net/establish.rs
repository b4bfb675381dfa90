//! What a connection goes through between its acceptance and HTTP/2: each stage in its turn and its time.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::AsyncWriteExt,
    time::{Instant, timeout_at},
};

use super::{
    census::{Closed, Entry},
    linger::Linger,
    proxy::{Proxies, read_header},
    stream::{Io, Stream},
    tls::{HandshakeError, Tls},
};
use crate::model::Peer;

/// What every HTTP/2 client sends first.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a peer reads that speaks HTTP/1.1 where HTTP/2 alone is spoken.
const WRONG_VERSION: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\
connection: close\r\n\r\n\
this port speaks gRPC over HTTP/2, and no HTTP/1.1; a proxy in front of it must speak HTTP/2 to it too; \
pages of browsers may call by gRPC-Web where server.grpc_web_origins names them; \
metrics and health for HTTP/1.1 are on server.ops_listen\n";

/// What the stages need to know.
#[derive(Debug, Clone)]
pub(super) struct Stages {
    /// Time for the header of a proxy, and for the preface.
    pub(super) preface_timeout: Duration,
    pub(super) proxies: Proxies,
    /// Whether the peer may speak HTTP/1.1.
    pub(super) http1: bool,
    pub(super) tls: Option<Arc<Tls>>,
}

/// Why a connection did not get as far as HTTP/2.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unestablished {
    #[error("no HTTP/2 preface within {0:?}")]
    Slow(Duration),
    #[error("the peer does not speak HTTP/2")]
    NotHttp2,
    #[error("the peer is a proxy, and does not begin with a PROXY header")]
    ProxyHeader,
    #[error("there are as many connections from this address as there may be")]
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

/// Brings a connection through its stages. A stage takes the stream and leaves one that reads from where it stopped,
/// and may add to what is known of the peer.
pub(super) async fn establish(
    mut stream: Stream,
    peer: &mut Peer,
    entry: &mut Entry,
    stages: &Stages,
) -> Result<Stream, Unestablished> {
    let within = stages.preface_timeout;
    let slow = |_| Unestablished::Slow(within);
    let mut end = Instant::now() + within;
    // The header of a proxy is in front of all else.
    timeout_at(end, read_header(&mut stream, peer, &stages.proxies)).await.map_err(slow)??;
    if peer.proxy.is_some() && !entry.claim(&peer.origin) {
        return Err(Unestablished::PerAddress);
    }
    let mut http1 = stages.http1;
    if let Some(tls) = stages.tls.as_ref().filter(|_| stream.is_of_network()) {
        // It has a time of its own.
        let secured = tls.accept(stream).await?;
        (peer.certificate, peer.is_unasked) = (secured.certificate, secured.is_unasked);
        stream = Stream::new(Io::Tls(Box::new(secured.stream)));
        end = Instant::now() + within;
        // What was agreed on is spoken.
        http1 = secured.http1;
    }
    timeout_at(end, preface(&mut stream, http1)).await.map_err(slow)??;
    Ok(stream)
}

/// Waits for the preface, and leaves it in the stream. Where the peer may speak HTTP/1.1, whatever is no preface passes.
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

/// Whether bytes may begin a request of HTTP/1.1: its method, in capitals, and a space.
fn begins_http1(bytes: &[u8]) -> bool {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    method > 0 && bytes.get(method).is_none_or(|byte| *byte == b' ')
}
