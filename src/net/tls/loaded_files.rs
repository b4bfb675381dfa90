//! What was read from the TLS files, and when a changed file replaces it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_rustls::rustls::{
    DEFAULT_VERSIONS, ServerConfig, SupportedProtocolVersion,
    crypto::{CryptoProvider, aws_lc_rs},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};

use super::{
    ClientAuth, H2, HTTP1, TlsConfig, TlsErrors, TlsFile, TlsVersion,
    files::{Lifetime, identity, is_gone, verifier},
};
use crate::{
    model::CertificateRequest,
    reload::{Contents, Reloads, Seen},
};

/// Time between two warnings that the certificate ends.
const WARN_EVERY: Duration = Duration::from_secs(3600);
/// TLS versions without known weaknesses.
const ONLY_1_3: &[&SupportedProtocolVersion] = &[&TLS13];

/// What was read from the files. If a file is broken, only its part keeps the old contents.
pub(super) struct LoadedFiles {
    pub(super) identity: Arc<CertifiedKey>,
    seen_identity: Seen,
    /// Verifies client certificates, or requests none. `None` while the client CA is empty or missing.
    clients: Option<Arc<dyn ClientCertVerifier>>,
    seen_clients: Seen,
    provider: Arc<CryptoProvider>,
    /// When it was last logged that the certificate ends soon.
    pub(super) warned: Option<Instant>,
}

/// The settings for new connections.
pub(super) struct HandshakeSettings {
    pub(super) rustls: Arc<ServerConfig>,
    pub(super) certificate_request: CertificateRequest,
}

impl LoadedFiles {
    /// # Errors
    /// Every unusable file.
    pub(super) fn new(read: &[Contents], config: &TlsConfig) -> Result<Self, TlsErrors> {
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
    pub(super) fn warn_of_end(&mut self, config: &TlsConfig) {
        let lifetime = Lifetime::of(&self.identity);
        if !lifetime.is_nearly_over() || self.warned.is_some_and(|last| last.elapsed() < WARN_EVERY) {
            return;
        }
        self.warned = Some(Instant::now());
        let (cert, left_seconds) = (config.cert.display(), lifetime.seconds_left());
        tracing::warn!(%cert, left_seconds, "the certificate has expired, or less than a tenth of its time is left; renew it");
    }

    /// Replaces the certificate and its key if they have changed and are valid. Returns whether they were replaced.
    pub(super) fn update_identity(&mut self, own: &[Contents], config: &TlsConfig, reloads: &Reloads) -> bool {
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
    pub(super) fn update_client_ca(&mut self, read: &Contents, config: &TlsConfig, reloads: &Reloads) -> bool {
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
    pub(super) fn settings(&self, config: &TlsConfig) -> Option<HandshakeSettings> {
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
pub(super) fn read(config: &TlsConfig) -> Vec<Contents> {
    [TlsFile::Cert, TlsFile::Key, TlsFile::ClientCa].into_iter().filter_map(|file| file.read(config)).collect()
}
