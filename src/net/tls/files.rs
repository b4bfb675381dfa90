use std::{fmt, fs, io, path::PathBuf, sync::Arc};

use tokio_rustls::rustls::{
    self, DEFAULT_VERSIONS, RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    version::TLS13,
};
use zeroize::Zeroizing;

use super::{ALPN, ClientAuth, TlsConfig, TlsVersion};
use crate::reload::{self, Digest};

/// A file that TLS is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFile {
    /// The certificate.
    Cert,
    /// Its private key.
    Key,
    /// The roots of client certificates.
    ClientCa,
}

/// Why a file cannot be used. Nothing of what is in it is told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file} {}: {fault}; {}", path.display(), fault.help(*file))]
pub struct TlsError {
    /// Which one.
    pub file: TlsFile,
    /// Where it is.
    pub path: PathBuf,
    /// What is wrong.
    pub fault: TlsFault,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// The system does not let it be read.
    #[error("cannot read it: {0}")]
    Unreadable(io::ErrorKind),
    /// It has none of what it should have.
    #[error("there is none in it")]
    Nothing,
    /// It is not PEM, or what is in it is broken.
    #[error("it is not sound PEM")]
    Malformed,
    /// The key is another one's.
    #[error("it is not the key of the certificate")]
    Mismatch,
    /// TLS has no use for it.
    #[error("TLS cannot use it: {0}")]
    Unusable(String),
}

/// The files as they are, unread ones too.
pub(super) struct Contents {
    cert: io::Result<Vec<u8>>,
    key: io::Result<Zeroizing<Vec<u8>>>,
    client_ca: Option<io::Result<Vec<u8>>>,
}

/// Which clients are trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// Those of the file.
    AsRead,
    /// None, for the file is empty or gone.
    Nobody,
}

impl TlsFile {
    fn path(self, config: &TlsConfig) -> PathBuf {
        match self {
            Self::Cert => config.cert.clone(),
            Self::Key => config.key.clone(),
            Self::ClientCa => config.client_ca.clone().unwrap_or_default(),
        }
    }

    fn fails(self, config: &TlsConfig, fault: TlsFault) -> TlsError {
        TlsError { file: self, path: self.path(config), fault }
    }
}

impl fmt::Display for TlsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cert => "certificate",
            Self::Key => "private key",
            Self::ClientCa => "client CA",
        })
    }
}

impl TlsFault {
    /// What to do about it.
    #[must_use]
    pub fn help(&self, file: TlsFile) -> &'static str {
        match (self, file) {
            (Self::Unreadable(_), _) => "correct the path, or let the server's user read it",
            (Self::Mismatch, _) => "put the key beside the certificate that was made for it",
            (Self::Unusable(_), _) => "issue it anew, as X.509 version 3 with an ECDSA, RSA or Ed25519 key",
            (_, TlsFile::Key) => "it needs one block PRIVATE KEY in PEM",
            (_, TlsFile::Cert | TlsFile::ClientCa) => "it needs blocks CERTIFICATE in PEM",
        }
    }
}

impl Contents {
    pub(super) fn read(config: &TlsConfig) -> Self {
        Self {
            cert: fs::read(&config.cert),
            key: fs::read(&config.key).map(Zeroizing::new),
            client_ca: config.client_ca.as_ref().map(fs::read),
        }
    }

    pub(super) fn digest(&self) -> Digest {
        let client_ca = self.client_ca.as_ref().and_then(|read| read.as_ref().ok());
        reload::digest(&[
            self.cert.as_deref().ok(),
            self.key.as_deref().map(Vec::as_slice).ok(),
            client_ca.map(Vec::as_slice),
        ])
    }

    /// Whether the client CA is empty or gone.
    pub(super) fn trusts_nobody(&self) -> bool {
        match &self.client_ca {
            Some(Ok(pem)) => CertificateDer::pem_slice_iter(pem).next().is_none(),
            Some(Err(error)) => error.kind() == io::ErrorKind::NotFound,
            None => false,
        }
    }

    /// The settings of connections; `None` where no client is trusted and each must be.
    pub(super) fn server_config(
        &self,
        config: &TlsConfig,
        trust: Trust,
    ) -> Result<Option<Arc<ServerConfig>>, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let clients = match &self.client_ca {
            Some(_) if trust == Trust::Nobody => match config.client_auth {
                ClientAuth::Required => return Ok(None),
                ClientAuth::Optional => WebPkiClientVerifier::no_client_auth(),
            },
            Some(read) => verifier(read, config, &provider)?,
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let (chain, key) = (self.chain(config)?, self.key(config)?);
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(versions(config.min_version)).expect("the provider has them");
        let made = builder.with_client_cert_verifier(clients).with_single_cert(chain, key);
        let mut made = made.map_err(|error| unusable(&error, config))?;
        made.alpn_protocols = vec![ALPN.to_vec()];
        if self.client_ca.is_some() {
            // A session that is resumed shows no certificate: one that has expired since would do.
            made.session_storage = Arc::new(NoServerSessionStorage {});
            made.send_tls13_tickets = 0;
        }
        Ok(Some(Arc::new(made)))
    }

    fn chain(&self, config: &TlsConfig) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        certificates(&self.cert).map_err(|fault| TlsFile::Cert.fails(config, fault))
    }

    fn key(&self, config: &TlsConfig) -> Result<PrivateKeyDer<'static>, TlsError> {
        let fails = |fault| TlsFile::Key.fails(config, fault);
        let pem = self.key.as_ref().map_err(|error| fails(TlsFault::Unreadable(error.kind())))?;
        PrivateKeyDer::from_pem_slice(pem).map_err(|error| fails(pem_fault(&error)))
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

fn verifier(
    read: &io::Result<Vec<u8>>,
    config: &TlsConfig,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let fails = |fault| TlsFile::ClientCa.fails(config, fault);
    let mut roots = RootCertStore::empty();
    for root in certificates(read).map_err(fails)? {
        roots.add(root).map_err(|error| fails(TlsFault::Unusable(error.to_string())))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let builder = match config.client_auth {
        ClientAuth::Required => builder,
        ClientAuth::Optional => builder.allow_unauthenticated(),
    };
    builder.build().map_err(|error| fails(TlsFault::Unusable(error.to_string())))
}

fn certificates(read: &io::Result<Vec<u8>>) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    let pem = read.as_ref().map_err(|error| TlsFault::Unreadable(error.kind()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| pem_fault(&error))?;
    if found.is_empty() { Err(TlsFault::Nothing) } else { Ok(found) }
}

fn pem_fault(error: &pem::Error) -> TlsFault {
    match error {
        pem::Error::NoItemsFound => TlsFault::Nothing,
        _ => TlsFault::Malformed,
    }
}

fn unusable(error: &rustls::Error, config: &TlsConfig) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => TlsFile::Key.fails(config, TlsFault::Mismatch),
        // The library says what it cannot do with a key, and never what the key is.
        rustls::Error::General(text) => TlsFile::Key.fails(config, TlsFault::Unusable(text.clone())),
        other => TlsFile::Cert.fails(config, TlsFault::Unusable(other.to_string())),
    }
}
