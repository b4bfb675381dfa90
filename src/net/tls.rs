//! TLS of listeners: server certificates that are reloaded without closing connections, and client certificates.

mod files;
mod loaded_files;

use std::{path::PathBuf, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

pub use self::files::{TlsError, TlsErrors, TlsFault, TlsFile};
use self::{
    files::Lifetime,
    loaded_files::{HandshakeSettings, LoadedFiles, read},
};
use super::{connection::Unestablished, stream::Stream, tracker::Closed};
use crate::{
    model::Peer,
    reload::{Reloads, keep_fresh},
};

/// ALPN name of HTTP/2.
const H2: &[u8] = b"h2";
/// ALPN name of HTTP/1.1.
const HTTP1: &[u8] = b"http/1.1";

/// `[server.tls]`
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct TlsConfig {
    /// File with the certificate of the server, followed by the intermediate ones.
    pub cert: PathBuf,
    /// File with its private key.
    pub key: PathBuf,
    /// File with the root certificates for client certificates. If `None`, no client certificate is requested.
    pub client_ca: Option<PathBuf>,
    /// Whether clients need a certificate.
    pub client_auth: ClientAuth,
    /// Oldest accepted version.
    pub min_version: TlsVersion,
    /// Time limit of the handshake.
    pub handshake_timeout: Duration,
    /// How often the files are checked for changes.
    pub reload: Duration,
    /// Whether clients may also select HTTP/1.1. A client without ALPN speaks HTTP/1.1. Default no.
    #[serde(skip)]
    pub http1: bool,
}

/// Whether clients need a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// A client must have a certificate.
    Required,
    /// A client may have a certificate.
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

/// Performs TLS handshakes. Changed files are reloaded; existing connections keep their settings.
pub struct Tls {
    config: TlsConfig,
    /// `None` while client certificates are required, but the client CA is missing or empty: each handshake is refused.
    current: ArcSwapOption<HandshakeSettings>,
    files: Mutex<LoadedFiles>,
    reloads: Reloads,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsErrors`], with every unusable file.
    pub fn open(config: TlsConfig) -> Result<Self, TlsErrors> {
        let files = LoadedFiles::new(&read(&config), &config)?;
        let current = ArcSwapOption::from_pointee(files.settings(&config));
        Ok(Self { config, current, files: Mutex::new(files), reloads: Reloads::default() })
    }

    /// Loads the files when they change. It never returns.
    pub async fn keep_fresh(self: Arc<Self>) {
        let every = self.config.reload;
        keep_fresh(every, move || self.reload_if_changed()).await;
    }

    fn reload_if_changed(&self) {
        let Self { config, reloads, .. } = self;
        let read = read(config);
        let (own, ca) = read.split_at(2);
        let mut files = self.files.lock();
        files.warn_of_end(config);
        let has_identity = files.update_identity(own, config, reloads);
        let has_clients = ca.first().is_some_and(|read| files.update_client_ca(read, config, reloads));
        if has_identity || has_clients {
            self.current.store(files.settings(config).map(Arc::new));
        }
    }

    /// Seconds until the certificate expires; negative if it has expired.
    pub fn certificate_seconds_left(&self) -> i64 {
        Lifetime::of(&self.files.lock().identity).seconds_left()
    }

    /// Counts of reloads.
    pub fn reloads(&self) -> &Reloads {
        &self.reloads
    }

    /// Performs the handshake of one connection, and adds its results to `peer`. Also returns whether the client speaks
    /// HTTP/1.1.
    pub(super) async fn accept(&self, stream: Stream, peer: &mut Peer) -> Result<(Stream, bool), Unestablished> {
        let settings = self.current.load_full().ok_or_else(|| {
            let cause = "no client is trusted: the client CA is empty or missing; restore the file";
            Unestablished::new(Closed::Tls, cause)
        })?;
        let within = self.config.handshake_timeout;
        let acceptor = TlsAcceptor::from(Arc::clone(&settings.rustls));
        let stream = timeout(within, acceptor.accept(stream)).await;
        let slow = |_| Unestablished::new(Closed::Slow, format!("no TLS handshake within {within:?}"));
        let stream = stream.map_err(slow)?.map_err(|cause| Unestablished { reason: Closed::Tls, cause })?;
        let (_, session) = stream.get_ref();
        let http1 = match session.alpn_protocol() {
            Some(H2) => false,
            Some(HTTP1) | None if self.config.http1 => true,
            _ => {
                let cause = "the client does not offer HTTP/2 (ALPN h2), or HTTP/1.1 if web pages may call";
                return Err(Unestablished::new(Closed::NotHttp2, cause));
            }
        };
        let certificate = session.peer_certificates().and_then(|chain| chain.first());
        peer.certificate = certificate.map(|der| Arc::from(der.as_ref()));
        peer.certificate_request = settings.certificate_request;
        Ok((Stream::new(stream), http1))
    }
}

#[cfg(test)]
mod tests;
