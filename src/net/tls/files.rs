//! The TLS files: reads them, and describes why one cannot be used.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use tokio_rustls::rustls::{
    self, RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::CertifiedKey,
};
use x509_cert::{Certificate, der::Decode};

use super::{ClientAuth, TlsConfig};
use crate::{
    file::FileFault,
    reload::{self, Contents},
};

/// A file of the TLS configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFile {
    /// The certificate, followed by intermediate ones, at most 1 MiB.
    Cert,
    /// The private key of the certificate, at most 64 KiB.
    Key,
    /// The root certificates for client certificates, at most 4 MiB.
    ClientCa,
}

/// Why a file cannot be used. The file's contents are never quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {}: {fault}; {}", file.name(), path.display(), fault.help(*file))]
pub struct TlsError {
    /// The file.
    pub file: TlsFile,
    /// Its path.
    pub path: PathBuf,
    /// The fault.
    pub fault: TlsFault,
}

/// All unusable files, one line each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct TlsErrors(pub Vec<TlsError>);

/// The fault of a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// It cannot be read.
    #[error("cannot read it: {0}")]
    Unread(FileFault),
    /// It contains no PEM block of the expected type.
    #[error("it has no PEM block of the expected type")]
    Nothing,
    /// It is not PEM, or a block is damaged.
    #[error("it is not valid PEM")]
    Malformed,
    /// The key does not belong to the certificate.
    #[error("it is not the key of the certificate")]
    Mismatch,
    /// The certificate has expired.
    #[error("it expired at {0}")]
    Expired(String),
    /// The TLS library rejects it.
    #[error("TLS cannot use it: {0}")]
    Unusable(String),
}

impl TlsFile {
    /// Its path, if configured, and its largest size.
    fn path_and_max_size(self, config: &TlsConfig) -> Option<(&Path, u64)> {
        match self {
            Self::Cert => Some((&config.cert, 1 << 20)),
            Self::Key => Some((&config.key, 64 << 10)),
            Self::ClientCa => Some((config.client_ca.as_deref()?, 4 << 20)),
        }
    }

    /// Its contents, if configured.
    pub(super) fn read(self, config: &TlsConfig) -> Option<Contents> {
        self.path_and_max_size(config).map(|(path, max)| reload::read(path, max))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cert => "certificate",
            Self::Key => "private key",
            Self::ClientCa => "client CA",
        }
    }

    fn error(self, config: &TlsConfig, fault: TlsFault) -> TlsError {
        let path = self.path_and_max_size(config).map(|(path, _)| path.to_owned());
        TlsError { file: self, path: path.unwrap_or_default(), fault }
    }
}

impl TlsFault {
    /// How to correct the fault.
    pub fn help(&self, file: TlsFile) -> &'static str {
        match (self, file) {
            (Self::Unread(FileFault::Unreadable { .. }), _) => "correct the path, or let the server's user read it",
            (Self::Unread(_), _) => "put a regular file there, within the size limit",
            (Self::Mismatch, _) => "use the key that was made for the certificate",
            (Self::Expired(_), _) => "renew it, or correct the clock",
            (Self::Unusable(_), TlsFile::Key) => "use an ECDSA, RSA or Ed25519 key, and a certificate for it",
            (Self::Unusable(_), _) => "issue it anew, as X.509 version 3 with an ECDSA, RSA or Ed25519 key",
            (_, TlsFile::Key) => "put one PEM block PRIVATE KEY there",
            (_, TlsFile::Cert | TlsFile::ClientCa) => "put PEM blocks CERTIFICATE there",
        }
    }
}

/// The certificate and key of the server.
pub(super) fn identity(
    cert: &Contents,
    key: &Contents,
    config: &TlsConfig,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, TlsErrors> {
    let chain = certificates(cert).map_err(|fault| TlsFile::Cert.error(config, fault));
    let key = private_key(key).map_err(|fault| TlsFile::Key.error(config, fault));
    match (chain, key) {
        (Ok(chain), Ok(key)) => {
            let pair = CertifiedKey::from_der(chain, key, provider);
            let pair = pair.map_err(|error| TlsErrors(vec![unusable(&error, config)]))?;
            let end = Lifetime::of(&pair).end;
            if end <= now() {
                let fault = TlsFault::Expired(humantime::format_rfc3339_seconds(UNIX_EPOCH + end).to_string());
                return Err(TlsErrors(vec![TlsFile::Cert.error(config, fault)]));
            }
            Ok(Arc::new(pair))
        }
        (chain, key) => Err(TlsErrors(chain.err().into_iter().chain(key.err()).collect())),
    }
}

/// When a certificate is valid, as the time since the Unix epoch.
pub(super) struct Lifetime {
    begin: Duration,
    end: Duration,
}

impl Lifetime {
    pub(super) fn of(identity: &CertifiedKey) -> Self {
        let certificate = identity.cert.first().and_then(|der| Certificate::from_der(der).ok());
        // The TLS library has read it before. Without a lifetime, it never expires.
        let validity = certificate.map(|certificate| certificate.tbs_certificate.validity);
        validity.map_or(Self { begin: Duration::ZERO, end: Duration::MAX }, |validity| Self {
            begin: validity.not_before.to_unix_duration(),
            end: validity.not_after.to_unix_duration(),
        })
    }

    /// The time that is left, in seconds; negative after the end.
    pub(super) fn seconds_left(&self) -> i64 {
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        seconds(self.end) - seconds(now())
    }

    /// Whether less than a tenth is left, which a renewal should not wait for.
    pub(super) fn is_nearly_over(&self) -> bool {
        self.end.saturating_sub(now()) < self.end.saturating_sub(self.begin) / 10
    }
}

fn now() -> Duration {
    Duration::from_secs(UnixTime::now().as_secs())
}

/// The verifier of client certificates, from the contents of the client CA file.
pub(super) fn verifier(
    read: &Contents,
    config: &TlsConfig,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let fails = |fault| TlsFile::ClientCa.error(config, fault);
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

fn certificates(read: &Contents) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    let pem = read.as_ref().map_err(|fault| TlsFault::Unread(fault.clone()))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| pem_fault(&error))?;
    if found.is_empty() { Err(TlsFault::Nothing) } else { Ok(found) }
}

fn private_key(read: &Contents) -> Result<PrivateKeyDer<'static>, TlsFault> {
    let pem = read.as_ref().map_err(|fault| TlsFault::Unread(fault.clone()))?;
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| pem_fault(&error))
}

/// Whether a file is empty or missing. A file with text, but without a certificate, is faulty instead.
pub(super) fn is_gone(read: &Contents) -> bool {
    match read {
        Ok(text) => text.trim_ascii().is_empty(),
        Err(fault) => fault.is_missing(),
    }
}

fn pem_fault(error: &pem::Error) -> TlsFault {
    match error {
        pem::Error::NoItemsFound => TlsFault::Nothing,
        _ => TlsFault::Malformed,
    }
}

fn unusable(error: &rustls::Error, config: &TlsConfig) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => TlsFile::Key.error(config, TlsFault::Mismatch),
        // The library explains why a key is unusable, and never quotes the key.
        rustls::Error::General(text) => TlsFile::Key.error(config, TlsFault::Unusable(text.clone())),
        other => TlsFile::Cert.error(config, TlsFault::Unusable(other.to_string())),
    }
}
