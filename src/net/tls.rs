//! TLS in front of HTTP: certificates that can be changed while connections stay, and clients that show theirs.

mod files;
mod parts;

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

pub use files::{TlsError, TlsErrors, TlsFault, TlsFile};

use super::census::Closed;
use crate::{
    file::NamedFile,
    reload::{Contents, Reload, Reloads, keep_fresh},
};
use parts::{Parts, Read, Settings};

/// HTTP/2, as ALPN names it.
const H2: &[u8] = b"h2";
/// HTTP/1.1.
const HTTP1: &[u8] = b"http/1.1";

/// `[server.tls]`
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
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
    /// Whether clients may choose HTTP/1.1, too, or choose nothing, which stands for it. Default no.
    #[serde(skip)]
    pub http1: bool,
}

/// Whether a client must show a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// It must.
    Required,
    /// It may.
    Optional,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum TlsVersion {
    /// RFC 5246.
    #[serde(rename = "1.2")]
    V1_2,
    /// RFC 8446.
    #[serde(rename = "1.3")]
    V1_3,
}

/// Makes TLS of connections. The files behind it are followed; connections keep what they began with.
pub struct Tls {
    config: TlsConfig,
    /// `None` while no client can be trusted.
    current: ArcSwapOption<Settings>,
    parts: Mutex<Parts>,
    reloads: Reloads,
}

/// A connection that is secured, and what the handshake told of its client.
pub(super) struct Secured<S> {
    pub(super) stream: TlsStream<S>,
    /// The certificate that the client has shown and that is sound, in DER.
    pub(super) certificate: Option<Arc<[u8]>>,
    /// Whether it could show none, for the client CA is empty or gone.
    pub(super) is_unasked: bool,
    /// Whether it speaks HTTP/1.1.
    pub(super) http1: bool,
}

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("no TLS handshake within {0:?}")]
    Slow(Duration),
    #[error("no client is trusted: the client CA is empty or gone; put the roots there again")]
    NobodyTrusted,
    #[error("the client does not offer HTTP/2 (ALPN h2), nor HTTP/1.1 where pages may call")]
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
    /// [`TlsErrors`], with every file that cannot be used.
    pub fn open(config: TlsConfig) -> Result<Self, TlsErrors> {
        let read = files(&config).iter().map(NamedFile::read).collect();
        let parts = Parts::new(&Read::new(read).expect("there are two files at least"), &config)?;
        let current = ArcSwapOption::from_pointee(parts.settings(&config));
        Ok(Self { config, current, parts: Mutex::new(parts), reloads: Reloads::default() })
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

    /// The handshake of one connection.
    pub(super) async fn accept<S>(&self, stream: S) -> Result<Secured<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let settings = self.current.load_full().ok_or(HandshakeError::NobodyTrusted)?;
        let within = self.config.handshake_timeout;
        let acceptor = TlsAcceptor::from(Arc::clone(&settings.rustls));
        let stream = timeout(within, acceptor.accept(stream)).await.map_err(|_| HandshakeError::Slow(within))??;
        let (_, session) = stream.get_ref();
        let http1 = match session.alpn_protocol() {
            Some(H2) => false,
            Some(HTTP1) | None if self.config.http1 => true,
            _ => return Err(HandshakeError::NotHttp2),
        };
        let certificate = session.peer_certificates().and_then(|chain| chain.first());
        let certificate = certificate.map(|certificate| Arc::from(certificate.as_ref()));
        Ok(Secured { stream, certificate, is_unasked: settings.trusts_nobody, http1 })
    }
}

impl Reload for Tls {
    fn files(&self) -> Vec<NamedFile> {
        files(&self.config)
    }

    fn reload(&self, contents: Vec<Contents>) {
        let read = Read::new(contents).expect("as many as there are files");
        let mut parts = self.parts.lock();
        if parts.take(&read, &self.config, &self.reloads) {
            self.current.store(parts.settings(&self.config).map(Arc::new));
        }
    }
}

fn files(config: &TlsConfig) -> Vec<NamedFile> {
    [TlsFile::Cert, TlsFile::Key, TlsFile::ClientCa].into_iter().filter_map(|file| file.of(config)).collect()
}

#[cfg(test)]
mod tests;
