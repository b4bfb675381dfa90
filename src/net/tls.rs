//! TLS in front of HTTP/2: certificates that can be changed while connections stay, and clients that show theirs.

mod files;

use std::{
    fmt, io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, server::TlsStream};

pub use files::{TlsError, TlsFault, TlsFile};

use super::census::Closed;
use crate::reload::{Reload, Reloads, keep_fresh};
use files::{Contents, Trust};

/// The one protocol that is spoken.
const ALPN: &[u8] = b"h2";

/// `[server.tls]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// File with the certificate of the server, then those between it and the root.
    pub cert: PathBuf,
    /// File with its private key.
    pub key: PathBuf,
    /// File with the roots of client certificates; without it no client is asked for one.
    pub client_ca: Option<PathBuf>,
    /// Whether a client may come without a certificate. Default required.
    pub client_auth: ClientAuth,
    /// Oldest version that is spoken. Default 1.3.
    pub min_version: TlsVersion,
    /// Time that a client has for the handshake. Default 5 s.
    pub handshake_timeout: Duration,
    /// Time between two looks at the files. Default 5 s.
    pub reload: Duration,
}

/// Whether a client must show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// It must.
    Required,
    /// It may.
    Optional,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// RFC 5246.
    V1_2,
    /// RFC 8446.
    V1_3,
}

/// Makes TLS of connections. The files behind it are followed; connections keep what they began with.
pub struct Tls {
    config: TlsConfig,
    /// `None` while no client can be trusted.
    current: ArcSwapOption<ServerConfig>,
    /// Whether the client CA was found to be empty or gone.
    trusts_nobody: AtomicBool,
    reloads: Reloads,
}

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("no TLS handshake within {0:?}")]
    Slow(Duration),
    #[error("no client is trusted: the client CA is empty or gone")]
    NobodyTrusted,
    #[error("the client does not offer HTTP/2 (ALPN h2)")]
    NotHttp2,
    #[error("TLS handshake: {0}")]
    Failed(#[from] io::Error),
}

impl HandshakeError {
    pub(super) fn reason(&self) -> Closed {
        match self {
            Self::Slow(_) => Closed::Slow,
            Self::NotHttp2 => Closed::NotHttp2,
            Self::NobodyTrusted | Self::Failed(_) => Closed::Tls,
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] where they cannot be used.
    pub fn open(config: TlsConfig) -> Result<Self, TlsError> {
        let contents = Contents::read(&config);
        let current = contents.server_config(&config, Trust::AsRead)?;
        let reloads = Reloads::new(contents.digest());
        Ok(Self { config, current: ArcSwapOption::new(current), trusts_nobody: AtomicBool::new(false), reloads })
    }

    /// Follows the files, for ever.
    pub async fn keep_fresh(self: Arc<Self>) {
        let every = self.config.reload;
        keep_fresh(self, every).await;
    }

    /// What became of new files.
    #[must_use]
    pub fn reloads(&self) -> &Reloads {
        &self.reloads
    }

    /// The handshake of one connection. Returns the certificate of the client, where it has shown one that is sound.
    pub(super) async fn accept<S>(&self, stream: S) -> Result<(TlsStream<S>, Option<Arc<[u8]>>), HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = self.current.load_full().ok_or(HandshakeError::NobodyTrusted)?;
        let within = self.config.handshake_timeout;
        let handshake = timeout(within, TlsAcceptor::from(config).accept(stream)).await;
        let stream = handshake.map_err(|_| HandshakeError::Slow(within))??;
        let (_, session) = stream.get_ref();
        if session.alpn_protocol() != Some(ALPN) {
            return Err(HandshakeError::NotHttp2);
        }
        let certificate = session.peer_certificates().and_then(|chain| chain.first());
        let certificate = certificate.map(|certificate| Arc::from(certificate.as_ref()));
        Ok((stream, certificate))
    }
}

impl Reload for Tls {
    fn reload(&self) {
        let contents = Contents::read(&self.config);
        let is_new = self.reloads.is_new(contents.digest());
        // A client CA that is gone counts from the second look: a file may be missing while it is replaced.
        let trust = if contents.trusts_nobody() && !is_new { Trust::Nobody } else { Trust::AsRead };
        let is_known = trust == Trust::AsRead || self.trusts_nobody.load(Relaxed);
        if !is_new && is_known {
            return;
        }
        match contents.server_config(&self.config, trust) {
            Ok(current) => {
                if trust == Trust::Nobody {
                    tracing::error!("the client CA is empty or gone: no client certificate is taken until it is back");
                }
                self.trusts_nobody.store(trust == Trust::Nobody, Relaxed);
                self.current.store(current);
                self.reloads.count_done();
                tracing::info!(cert = %self.config.cert.display(), "took over new files for TLS");
            }
            Err(error) => {
                self.reloads.count_failed();
                tracing::error!(%error, "kept the old files for TLS");
            }
        }
    }
}

#[cfg(test)]
mod tests;
