//! TLS settings from their files, part by part. `files.rs` reads the files.

use std::sync::Arc;

use tokio_rustls::rustls::{
    DEFAULT_VERSIONS, ServerConfig, SupportedProtocolVersion,
    crypto::{CryptoProvider, aws_lc_rs},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};

use super::{
    ClientAuth, H2, HTTP1, TlsConfig, TlsVersion,
    files::{TlsErrors, TlsFile, identity, is_gone, verifier},
};
use crate::reload::{Contents, Reloads, Seen};

/// The parts of the TLS settings, each from its own files. A broken file keeps its own part from being replaced, and no
/// other part.
pub(super) struct Parts {
    identity: Arc<CertifiedKey>,
    seen_identity: Seen,
    clients: Clients,
    seen_clients: Seen,
    provider: Arc<CryptoProvider>,
}

/// Which client certificates are trusted.
#[derive(Clone)]
enum Clients {
    /// None is requested.
    Unasked,
    Verified(Arc<dyn ClientCertVerifier>),
    /// None: the client CA is empty or missing.
    Untrusted,
}

/// The settings for new connections.
pub(super) struct Settings {
    pub(super) rustls: Arc<ServerConfig>,
    /// Whether client certificates would be requested if the client CA had a root.
    pub(super) trusts_no_client: bool,
}

/// The contents of the files, in the order in which they are checked.
pub(super) struct Read {
    cert: Contents,
    key: Contents,
    client_ca: Option<Contents>,
}

impl Read {
    pub(super) fn new(contents: Vec<Contents>) -> Option<Self> {
        let mut contents = contents.into_iter();
        Some(Self { cert: contents.next()?, key: contents.next()?, client_ca: contents.next() })
    }
}

impl Parts {
    /// # Errors
    /// Every file that cannot be used.
    pub(super) fn new(read: &Read, config: &TlsConfig) -> Result<Self, TlsErrors> {
        let Read { cert, key, client_ca } = read;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let clients = client_ca.as_ref().map(|read| verifier(read, config, &provider)).transpose();
        let seen_clients = Seen::new(&client_ca.iter().collect::<Vec<_>>());
        match (identity(cert, key, config, &provider), clients) {
            (Ok(identity), Ok(clients)) => Ok(Self {
                identity,
                seen_identity: Seen::new(&[cert, key]),
                clients: clients.map_or(Clients::Unasked, Clients::Verified),
                seen_clients,
                provider,
            }),
            (identity, clients) => {
                let of_identity = identity.err().into_iter().flat_map(|errors| errors.0);
                Err(TlsErrors(of_identity.chain(clients.err()).collect()))
            }
        }
    }

    /// Loads the valid parts that changed. Returns whether there were any.
    pub(super) fn take(&mut self, read: &Read, config: &TlsConfig, reloads: &Reloads) -> bool {
        let identity = self.take_identity(read, config, reloads);
        let clients = read.client_ca.as_ref().is_some_and(|read| self.take_clients(read, config, reloads));
        identity || clients
    }

    fn take_identity(&mut self, Read { cert, key, .. }: &Read, config: &TlsConfig, reloads: &Reloads) -> bool {
        if !self.seen_identity.is_new(&[cert, key]) {
            return false;
        }
        match identity(cert, key, config, &self.provider) {
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

    fn take_clients(&mut self, read: &Contents, config: &TlsConfig, reloads: &Reloads) -> bool {
        let is_new = self.seen_clients.is_new(&[read]);
        let path = TlsFile::ClientCa.of(config).map(|file| file.path).unwrap_or_default();
        // It counts only the second time: a file may be missing while it is replaced.
        if is_gone(read) && !is_new {
            if matches!(self.clients, Clients::Untrusted) {
                return false;
            }
            self.clients = Clients::Untrusted;
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
                self.clients = Clients::Verified(verifier);
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

    /// The settings for new connections; `None` if client certificates are required and none is trusted.
    pub(super) fn settings(&self, config: &TlsConfig) -> Option<Settings> {
        let (verifier, trusts_no_client) = match &self.clients {
            Clients::Verified(verifier) => (Arc::clone(verifier), false),
            Clients::Unasked => (WebPkiClientVerifier::no_client_auth(), false),
            Clients::Untrusted => match config.client_auth {
                ClientAuth::Required => return None,
                ClientAuth::Optional => (WebPkiClientVerifier::no_client_auth(), true),
            },
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider));
        let builder = builder.with_protocol_versions(versions(config.min_version)).expect("the provider has them");
        let resolver = SingleCertAndKey::from(Arc::clone(&self.identity));
        let mut made = builder.with_client_cert_verifier(verifier).with_cert_resolver(Arc::new(resolver));
        made.alpn_protocols = vec![H2.to_vec()];
        if config.http1 {
            made.alpn_protocols.push(HTTP1.to_vec());
        }
        if config.client_ca.is_some() {
            // A resumed session has no certificate, so that an expired one would still be accepted.
            made.session_storage = Arc::new(NoServerSessionStorage {});
            made.send_tls13_tickets = 0;
        }
        Some(Settings { rustls: Arc::new(made), trusts_no_client })
    }
}

/// Versions without known weaknesses.
const ONLY_1_3: &[&SupportedProtocolVersion] = &[&TLS13];

fn versions(min: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    match min {
        TlsVersion::V1_2 => DEFAULT_VERSIONS,
        TlsVersion::V1_3 => ONLY_1_3,
    }
}
