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

/// What settings of connections are made of, each part from files of its own: what is broken keeps its own part from
/// being replaced, and no other.
pub(super) struct Parts {
    identity: Arc<CertifiedKey>,
    seen_identity: Seen,
    clients: Clients,
    seen_clients: Seen,
    provider: Arc<CryptoProvider>,
}

/// Which clients are trusted.
#[derive(Clone)]
enum Clients {
    /// They are not asked.
    Unasked,
    Verified(Arc<dyn ClientCertVerifier>),
    /// None, for the client CA is empty or gone.
    Nobody,
}

/// The settings of connections.
pub(super) struct Settings {
    pub(super) rustls: Arc<ServerConfig>,
    /// Whether clients would be asked for a certificate, had the client CA any root.
    pub(super) trusts_nobody: bool,
}

/// The contents of the files, in the order in which they are looked at.
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

    /// Takes over what is new and sound. Returns whether anything is.
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
                tracing::info!(cert = %config.cert.display(), "took over a new certificate and its key");
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
        // It counts from the second look: a file may be missing while it is replaced.
        if is_gone(read) && !is_new {
            if matches!(self.clients, Clients::Nobody) {
                return false;
            }
            self.clients = Clients::Nobody;
            reloads.count_done();
            tracing::error!(
                path = %path.display(),
                "the client CA is empty or gone: no client certificate is taken until it is back; put the roots there \
                 again, or take server.tls.client_ca out of the configuration"
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
                tracing::info!(path = %path.display(), "took over a new client CA");
                true
            }
            Err(error) => {
                reloads.count_failed();
                tracing::error!(%error, "kept the old client CA");
                false
            }
        }
    }

    /// The settings of connections; none where no client is trusted and each must be.
    pub(super) fn settings(&self, config: &TlsConfig) -> Option<Settings> {
        let (verifier, trusts_nobody) = match &self.clients {
            Clients::Verified(verifier) => (Arc::clone(verifier), false),
            Clients::Unasked => (WebPkiClientVerifier::no_client_auth(), false),
            Clients::Nobody => match config.client_auth {
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
            // A session that is resumed shows no certificate: one that has expired since would do.
            made.session_storage = Arc::new(NoServerSessionStorage {});
            made.send_tls13_tickets = 0;
        }
        Some(Settings { rustls: Arc::new(made), trusts_nobody })
    }
}

/// Without the versions that have known weaknesses.
const ONLY_1_3: &[&SupportedProtocolVersion] = &[&TLS13];

fn versions(min: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    match min {
        TlsVersion::V1_2 => DEFAULT_VERSIONS,
        TlsVersion::V1_3 => ONLY_1_3,
    }
}
