//! What a connection goes through between its acceptance and HTTP/2: each stage in its turn and its time.

use std::{io, time::Duration};

use tokio::time::timeout;

use super::{connection::Transport, stream::Stream};
use crate::model::{Origin, Peer};

/// What every HTTP/2 client sends first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that is ready for HTTP/2.
#[derive(Debug)]
pub(super) struct Established {
    pub(super) stream: Stream,
    pub(super) peer: Peer,
}

/// Why a connection did not get as far as HTTP/2.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unestablished {
    #[error("no HTTP/2 preface within {0:?}")]
    Slow(Duration),
    #[error("the peer does not speak HTTP/2")]
    NotHttp2,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Brings a connection through its stages. A stage takes the stream and gives one back, which reads from where it
/// stopped, and may add to what is known of the peer.
pub(super) async fn establish(
    stream: Stream,
    connection: u64,
    origin: Origin,
    transport: &Transport,
) -> Result<Established, Unestablished> {
    let peer = Peer { connection, origin, proxy: None };
    let within = transport.preface_timeout;
    let opening = async {
        // Stages go here: the header of a proxy first, as it is in front of all else, then the handshake of TLS, which
        // has a time of its own.
        preface(stream, transport.http1).await
    };
    let stream = timeout(within, opening).await.map_err(|_| Unestablished::Slow(within))??;
    Ok(Established { stream, peer })
}

/// Waits for the preface, and leaves it in the stream. Where the peer may speak HTTP/1.1, whatever is no preface passes.
async fn preface(mut stream: Stream, http1: bool) -> Result<Stream, Unestablished> {
    while stream.ahead().len() < PREFACE.len() {
        let known = stream.ahead().len();
        if stream.ahead() != &PREFACE[..known] {
            return if http1 { Ok(stream) } else { Err(Unestablished::NotHttp2) };
        }
        stream.read_ahead(PREFACE.len()).await?;
    }
    if http1 || stream.ahead().starts_with(PREFACE) { Ok(stream) } else { Err(Unestablished::NotHttp2) }
}
