//! TLS and token of a command's connection. `connect.rs` uses them.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use http::HeaderValue;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};
use zeroize::Zeroizing;

use super::connect::Address;
use crate::file::{self, FileFault};

/// Largest file of certificates, of a private key and of a token, in bytes.
const MAX_CERTIFICATES: u64 = 4 << 20;
const MAX_KEY: u64 = 64 << 10;
const MAX_TOKEN: u64 = 64 << 10;

/// Flags for a server with TLS or authentication.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// Use TLS, as with https://HOST:PORT.
    #[arg(long)]
    pub(crate) tls: bool,
    /// Trust servers whose certificates come from these roots, in PEM [default: those of the system].
    #[arg(long, value_name = "FILE", env = "WATERWHEEL_CA")]
    pub(crate) ca: Option<PathBuf>,
    /// Client certificate, in PEM.
    #[arg(long, value_name = "FILE", env = "WATERWHEEL_CERT", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", env = "WATERWHEEL_KEY", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Send the bearer token in this file.
    #[arg(long, value_name = "FILE", env = "WATERWHEEL_TOKEN_FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

/// The contents of the files.
#[derive(Clone, Default)]
pub(crate) struct Access {
    tls: Option<Arc<ClientConfig>>,
    token: Option<HeaderValue>,
}

/// Why the files cannot be used. Their contents are never quoted.
#[derive(Debug, Error)]
pub(crate) enum AccessError {
    #[error("cannot read {}: {fault}", path.display())]
    Unread { path: PathBuf, fault: FileFault },
    #[error("{} contains no {what} in PEM", path.display())]
    NoPem { path: PathBuf, what: &'static str },
    #[error("the certificate and the key do not work together: {0}")]
    Unusable(String),
    #[error("this system has no root certificates")]
    NoRoots,
    #[error("{} contains no token", path.display())]
    NoToken { path: PathBuf },
    #[error("the token would be sent to {address} in plaintext")]
    Exposed { address: Address },
    #[error("TLS is not supported over the socket {address}")]
    NoTlsThere { address: Address },
}

impl AccessError {
    /// What to do about it.
    pub(crate) fn help(&self) -> &'static str {
        match self {
            Self::Unread { fault: FileFault::Unreadable { .. }, .. } => "pass a file that this user can read",
            Self::Unread { .. } => "write it to a regular file, and pass that file",
            Self::NoPem { .. } => "pass a file with a block BEGIN CERTIFICATE, or BEGIN PRIVATE KEY",
            Self::Unusable(_) => "pass the key that the certificate was made for",
            Self::NoRoots => "pass --ca with the roots of the server's certificate",
            Self::NoToken { .. } => "write a token of visible ASCII characters to the file, and nothing else",
            Self::Exposed { .. } => "pass --tls",
            Self::NoTlsThere { .. } => "leave out --tls, --ca and --cert",
        }
    }
}

impl AccessArgs {
    /// Reads the files for a call to `address`.
    ///
    /// # Errors
    /// [`AccessError`].
    pub(crate) fn load(&self, address: &Address) -> Result<Access, AccessError> {
        let Self { tls, ca, cert, key: _, token_file } = self;
        let wants_tls = *tls || ca.is_some() || cert.is_some() || matches!(address, Address::Tls(_));
        if wants_tls && matches!(address, Address::Unix(_)) {
            return Err(AccessError::NoTlsThere { address: address.clone() });
        }
        let token = token_file.as_deref().map(token).transpose()?;
        if token.is_some() && !wants_tls && !address.is_local() {
            return Err(AccessError::Exposed { address: address.clone() });
        }
        let tls = if wants_tls { Some(Arc::new(self.client_config()?)) } else { None };
        Ok(Access { tls, token })
    }

    fn client_config(&self) -> Result<ClientConfig, AccessError> {
        let unusable = |error: tokio_rustls::rustls::Error| AccessError::Unusable(error.to_string());
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
        let builder = builder.with_root_certificates(self.roots()?);
        let mut config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                builder.with_client_auth_cert(certificates(cert)?, private_key(key)?).map_err(unusable)?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    fn roots(&self) -> Result<RootCertStore, AccessError> {
        let mut roots = RootCertStore::empty();
        let found = match &self.ca {
            Some(path) => certificates(path)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        roots.add_parsable_certificates(found);
        if roots.is_empty() { Err(AccessError::NoRoots) } else { Ok(roots) }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("scheme", &self.scheme()).finish_non_exhaustive()
    }
}

impl Access {
    /// The value of `authorization`, if there is a token.
    pub(crate) fn token(&self) -> Option<&HeaderValue> {
        self.token.as_ref()
    }

    /// `https` or `http`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// The handshake with the server `host`; without TLS, the socket is returned unchanged.
    ///
    /// # Errors
    /// The error of the handshake, such as an untrusted certificate.
    pub(crate) async fn secure(&self, host: &str, socket: TcpStream) -> io::Result<Secured> {
        let Some(config) = &self.tls else { return Ok(Secured::Left(socket)) };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::clone(config)).connect(name, socket).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::other("the server does not speak HTTP/2 over TLS"));
        }
        Ok(Secured::Right(stream))
    }
}

/// A socket, with or without TLS.
pub(crate) type Secured = tokio_util::either::Either<TcpStream, TlsStream<TcpStream>>;

fn read(path: &Path, most: u64) -> Result<Vec<u8>, AccessError> {
    file::read(path, most).map_err(|fault| AccessError::Unread { path: path.into(), fault })
}

fn token(path: &Path) -> Result<HeaderValue, AccessError> {
    let no_token = || AccessError::NoToken { path: path.into() };
    let read = read(path, MAX_TOKEN).map(Zeroizing::new)?;
    let text = std::str::from_utf8(&read).map_err(|_| no_token())?.trim();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(no_token());
    }
    let header = Zeroizing::new(format!("Bearer {text}"));
    let mut value = HeaderValue::from_str(&header).map_err(|_| no_token())?;
    value.set_sensitive(true);
    Ok(value)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, AccessError> {
    let pem = read(path, MAX_CERTIFICATES)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| AccessError::NoPem { path: path.into(), what: "certificate" })
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, AccessError> {
    let pem = read(path, MAX_KEY).map(Zeroizing::new)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| AccessError::NoPem { path: path.into(), what: "private key" })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    fn with_token(text: &str, address: &str) -> Result<Access, AccessError> {
        let file = file(text);
        let args = AccessArgs { token_file: Some(file.path().into()), ..AccessArgs::default() };
        args.load(&address.parse().unwrap())
    }

    #[test]
    fn a_token_is_sent_as_it_stands_in_its_file_and_never_shown() {
        let access = with_token("abc.def.ghi\n", "127.0.0.1:1").unwrap();
        let token = access.token().unwrap();
        assert_eq!(token, "Bearer abc.def.ghi");
        assert_eq!(format!("{token:?}"), "Sensitive");
        for wrong in ["", "two words", "\u{e9}"] {
            assert!(matches!(with_token(wrong, "127.0.0.1:1"), Err(AccessError::NoToken { .. })), "{wrong}");
        }
    }

    /// Tokens, keys, certificates and CAs must be regular files: a FIFO would block.
    #[test]
    fn only_regular_files_of_a_sound_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (fifo, huge) = (dir.path().join("fifo"), dir.path().join("huge"));
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let valid = file(&rcgen::CertificateParams::default().self_signed(&key).unwrap().pem());
        let cases = [
            (&*fifo, ["it is a pipe, and only regular files are read"; 4]),
            (Path::new("/dev/zero"), ["it is a device, and only regular files are read"; 4]),
            (
                &*huge,
                [
                    "it is larger than 64 KiB",
                    "it is larger than 4 MiB",
                    "it is larger than 4 MiB",
                    "it is larger than 64 KiB",
                ],
            ),
        ];
        for (path, whats) in cases {
            let (path, valid) = (Some(path.to_path_buf()), Some(valid.path().to_path_buf()));
            let none = AccessArgs::default();
            let args = [
                AccessArgs { token_file: path.clone(), ..none.clone() },
                AccessArgs { ca: path.clone(), ..none.clone() },
                AccessArgs { ca: valid.clone(), cert: path.clone(), key: valid.clone(), ..none.clone() },
                AccessArgs { ca: valid.clone(), cert: valid, key: path.clone(), ..none },
            ];
            for (args, what) in args.into_iter().zip(whats) {
                let error = args.load(&"127.0.0.1:1".parse().unwrap()).err().unwrap();
                assert_eq!(error.to_string(), format!("cannot read {}: {what}", path.as_ref().unwrap().display()));
                assert_eq!(error.help(), "write it to a regular file, and pass that file");
            }
        }
    }

    #[test]
    fn a_token_does_not_travel_in_plaintext() {
        for local in ["localhost:1", "[::1]:1", "unix:/run/ww.sock"] {
            assert!(with_token("abc", local).is_ok(), "{local}");
        }
        for far in ["10.0.0.1:1", "host.example:1", "127.0.0.1.example:1"] {
            assert!(matches!(with_token("abc", far), Err(AccessError::Exposed { .. })), "{far}");
        }
    }

    #[test]
    fn contents_of_a_bad_file_are_not_quoted() {
        let secret = file("hunter2");
        let path = secret.path().to_path_buf();
        for args in [
            AccessArgs { ca: Some(path.clone()), ..AccessArgs::default() },
            AccessArgs { cert: Some(path.clone()), key: Some(path), ..AccessArgs::default() },
        ] {
            let error = args.load(&"127.0.0.1:1".parse().unwrap()).err().unwrap();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
