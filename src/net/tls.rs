//! TLS of listeners: certificates that change while connections stay, and client certificates.

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

use super::tracker::Closed;
use crate::{
    file::NamedFile,
    reload::{Contents, Reload, Reloads, keep_fresh},
};
use parts::{Parts, Read, Settings};

/// HTTP/2 in ALPN.
const H2: &[u8] = b"h2";
/// HTTP/1.1 in ALPN.
const HTTP1: &[u8] = b"http/1.1";

/// `[server.tls]`
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct TlsConfig {
    /// File with the certificate of the server, followed by the intermediate ones.
    pub cert: PathBuf,
    /// File with its private key.
    pub key: PathBuf,
    /// File with the roots of client certificates. Without it no client certificate is requested.
    pub client_ca: Option<PathBuf>,
    /// Whether clients need a certificate. Default required.
    pub client_auth: ClientAuth,
    /// Oldest accepted version. Default 1.3.
    pub min_version: TlsVersion,
    /// Time that a client has for the handshake. Default 5 s.
    pub handshake_timeout: Duration,
    /// How often the files are checked for changes. Default 5 s.
    pub reload: Duration,
    /// Whether clients may also choose HTTP/1.1, or send no ALPN, which means HTTP/1.1. Default no.
    #[serde(skip)]
    pub http1: bool,
}

/// Whether clients need a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// A client must have one.
    Required,
    /// A client may have one.
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

/// Performs TLS handshakes. Changed files are loaded; existing connections keep their settings.
pub struct Tls {
    config: TlsConfig,
    /// `None` while no client can be trusted.
    current: ArcSwapOption<Settings>,
    parts: Mutex<Parts>,
    reloads: Reloads,
}

/// A secured connection, with the results of its handshake.
pub(super) struct Secured<S> {
    pub(super) stream: TlsStream<S>,
    /// The client's verified certificate, in DER.
    pub(super) certificate: Option<Arc<[u8]>>,
    /// Whether no certificate could be requested, because the client CA is empty or missing.
    pub(super) is_unasked: bool,
    /// Whether the client speaks HTTP/1.1.
    pub(super) http1: bool,
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("no TLS handshake within {0:?}")]
    Slow(Duration),
    #[error("no client is trusted: the client CA is empty or missing; restore the file")]
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

    /// Loads the files when they change. It never returns.
    pub async fn keep_fresh(self: Arc<Self>) {
        let every = self.config.reload;
        keep_fresh(self, every).await;
    }

    /// Counts of reloads.
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
        Ok(Secured { stream, certificate, is_unasked: settings.trusts_no_client, http1 })
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
