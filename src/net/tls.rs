//! TLS of listeners: server certificates that are reloaded without closing connections, and client certificates.

mod files;

use std::{path::PathBuf, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        DEFAULT_VERSIONS, ServerConfig, SupportedProtocolVersion,
        crypto::{CryptoProvider, aws_lc_rs},
        server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
        sign::{CertifiedKey, SingleCertAndKey},
        version::TLS13,
    },
};

use self::files::{Lifetime, identity, is_gone, verifier};
pub use self::files::{TlsError, TlsErrors, TlsFault, TlsFile};
use super::{connection::Unestablished, stream::Stream, tracker::Closed};
use crate::{
    model::{CertificateRequest, Peer},
    reload::{Contents, Reloads, Seen, keep_fresh},
};

/// Time between two warnings that the certificate ends.
const WARN_EVERY: Duration = Duration::from_secs(3600);
/// ALPN name of HTTP/2.
const H2: &[u8] = b"h2";
/// ALPN name of HTTP/1.1.
const HTTP1: &[u8] = b"http/1.1";
/// TLS versions without known weaknesses.
const ONLY_1_3: &[&SupportedProtocolVersion] = &[&TLS13];

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

/// What was read from the files. If a file is broken, only its part keeps the old contents.
struct LoadedFiles {
    identity: Arc<CertifiedKey>,
    seen_identity: Seen,
    /// Verifies client certificates, or requests none. `None` while the client CA is empty or missing.
    clients: Option<Arc<dyn ClientCertVerifier>>,
    seen_clients: Seen,
    provider: Arc<CryptoProvider>,
    /// When it was last logged that the certificate ends soon.
    warned: Option<Instant>,
}

/// The settings for new connections.
struct HandshakeSettings {
    rustls: Arc<ServerConfig>,
    certificate_request: CertificateRequest,
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
    #[must_use]
    pub fn certificate_seconds_left(&self) -> i64 {
        Lifetime::of(&self.files.lock().identity).seconds_left()
    }

    /// Counts of reloads.
    #[must_use]
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

impl LoadedFiles {
    /// # Errors
    /// Every unusable file.
    fn new(read: &[Contents], config: &TlsConfig) -> Result<Self, TlsErrors> {
        let (own, ca) = read.split_at(2);
        let provider = Arc::new(aws_lc_rs::default_provider());
        let clients = match ca {
            [] => Ok(WebPkiClientVerifier::no_client_auth()),
            [ca, ..] => verifier(ca, config, &provider),
        };
        match (identity(&own[0], &own[1], config, &provider), clients) {
            (Ok(identity), Ok(clients)) => Ok(Self {
                identity,
                seen_identity: Seen::new(own),
                clients: Some(clients),
                seen_clients: Seen::new(ca),
                provider,
                warned: None,
            }),
            (identity, clients) => {
                let of_identity = identity.err().into_iter().flat_map(|errors| errors.0);
                Err(TlsErrors(of_identity.chain(clients.err()).collect()))
            }
        }
    }

    /// Logs once an hour that the certificate ends soon, or has ended.
    fn warn_of_end(&mut self, config: &TlsConfig) {
        let lifetime = Lifetime::of(&self.identity);
        if !lifetime.is_nearly_over() || self.warned.is_some_and(|last| last.elapsed() < WARN_EVERY) {
            return;
        }
        self.warned = Some(Instant::now());
        let (cert, left_seconds) = (config.cert.display(), lifetime.seconds_left());
        tracing::warn!(%cert, left_seconds, "the certificate has expired, or less than a tenth of its time is left; renew it");
    }

    /// Replaces the certificate and its key if they have changed and are valid. Returns whether they were replaced.
    fn update_identity(&mut self, own: &[Contents], config: &TlsConfig, reloads: &Reloads) -> bool {
        if !self.seen_identity.is_new(own) {
            return false;
        }
        match identity(&own[0], &own[1], config, &self.provider) {
            Ok(identity) => {
                self.identity = identity;
                reloads.count_done();
                tracing::info!(cert = %config.cert.display(), "loaded a new certificate and its key");
                true
            }
            Err(TlsErrors(errors)) => {
                reloads.count_failed();
                for error in errors {
                    tracing::error!(%error, "kept the old certificate and key");
                }
                false
            }
        }
    }

    /// Replaces the client CA if it has changed and is valid, or is gone. Returns whether it was replaced.
    fn update_client_ca(&mut self, read: &Contents, config: &TlsConfig, reloads: &Reloads) -> bool {
        let is_new = self.seen_clients.is_new(std::slice::from_ref(read));
        let path = config.client_ca.clone().unwrap_or_default();
        // A file may be missing for a moment while it is replaced, so it counts as missing at the second check in a
        // row.
        if is_gone(read) && !is_new {
            if self.clients.take().is_none() {
                return false;
            }
            reloads.count_done();
            tracing::error!(
                path = %path.display(),
                "the client CA is empty or missing: client certificates are refused; restore the file, \
                 or remove server.tls.client_ca from the configuration"
            );
            return true;
        }
        if !is_new {
            return false;
        }
        match verifier(read, config, &self.provider) {
            Ok(verifier) => {
                self.clients = Some(verifier);
                reloads.count_done();
                tracing::info!(path = %path.display(), "loaded a new client CA");
                true
            }
            Err(error) => {
                reloads.count_failed();
                tracing::error!(%error, "kept the old client CA");
                false
            }
        }
    }

    /// The settings for new connections; `None` if client certificates are required but none is trusted.
    fn settings(&self, config: &TlsConfig) -> Option<HandshakeSettings> {
        let certificate_request = match (&config.client_ca, &self.clients) {
            (None, _) => CertificateRequest::Unconfigured,
            (Some(_), Some(_)) => CertificateRequest::Sent,
            (Some(_), None) => CertificateRequest::NoRoots,
        };
        let verifier = match (&self.clients, config.client_auth) {
            (Some(verifier), _) => Arc::clone(verifier),
            (None, ClientAuth::Required) => return None,
            (None, ClientAuth::Optional) => WebPkiClientVerifier::no_client_auth(),
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider));
        let versions = match config.min_version {
            TlsVersion::V1_2 => DEFAULT_VERSIONS,
            TlsVersion::V1_3 => ONLY_1_3,
        };
        let builder = builder.with_protocol_versions(versions).expect("the provider has them");
        let resolver = SingleCertAndKey::from(Arc::clone(&self.identity));
        let mut made = builder.with_client_cert_verifier(verifier).with_cert_resolver(Arc::new(resolver));
        let protocols: &[&[u8]] = if config.http1 { &[H2, HTTP1] } else { &[H2] };
        made.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        if config.client_ca.is_some() {
            // A resumed session sends no certificate, so an expired one would still be accepted.
            made.session_storage = Arc::new(NoServerSessionStorage {});
            made.send_tls13_tickets = 0;
        }
        Some(HandshakeSettings { rustls: Arc::new(made), certificate_request })
    }
}

/// The contents of the certificate, its key, and the client CA if there is one.
fn read(config: &TlsConfig) -> Vec<Contents> {
    [TlsFile::Cert, TlsFile::Key, TlsFile::ClientCa].into_iter().filter_map(|file| file.read(config)).collect()
}

#[cfg(test)]
mod tests;
