//! What a connection goes through between its acceptance and HTTP/2: each stage in its turn and its time.

use std::{io, time::Duration};

use tokio::time::timeout;

use super::{
    census::{Closed, Entry},
    proxy::{Proxies, read_header},
    stream::Stream,
};
use crate::model::Peer;

/// What every HTTP/2 client sends first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What the stages need to know.
#[derive(Debug, Clone)]
pub(super) struct Stages {
    /// Time for the header of a proxy, and for the preface.
    pub(super) preface_timeout: Duration,
    pub(super) proxies: Proxies,
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
    Io(#[from] io::Error),
}

impl Unestablished {
    pub(super) fn reason(&self) -> Closed {
        match self {
            Self::Slow(_) => Closed::Slow,
            Self::NotHttp2 => Closed::NotHttp2,
            Self::ProxyHeader => Closed::ProxyHeader,
            Self::PerAddress => Closed::PerAddress,
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
    let opening = async {
        // The header of a proxy is in front of all else. The handshake of TLS belongs behind it, with a time of its
        // own.
        read_header(&mut stream, peer, &stages.proxies).await?;
        if peer.proxy.is_some() && !entry.claim(&peer.origin) {
            return Err(Unestablished::PerAddress);
        }
        preface(&mut stream).await
    };
    timeout(within, opening).await.map_err(|_| Unestablished::Slow(within))??;
    Ok(stream)
}

/// Waits for the preface, and leaves it in the stream.
async fn preface(stream: &mut Stream) -> Result<(), Unestablished> {
    loop {
        let known = stream.ahead().len().min(PREFACE.len());
        if stream.ahead()[..known] != PREFACE[..known] {
            return Err(Unestablished::NotHttp2);
        }
        if known == PREFACE.len() {
            return Ok(());
        }
        stream.read_ahead(PREFACE.len()).await?;
    }
}
