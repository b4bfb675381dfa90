//! How a command reaches a server: its address, TLS and the token. `connect.rs` connects.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use clap::Args;
use http::{HeaderValue, Uri, uri::Authority};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, Error, RootCertStore,
        crypto::aws_lc_rs,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};
use tokio_util::either::Either;
use zeroize::Zeroizing;

use super::{connect::Target, failure::Failure};
use crate::file::{self, FileFault};

/// Largest file with certificates, a private key or a token, in bytes.
const MAX_CERTIFICATES: u64 = 4 << 20;
const MAX_KEY: u64 = 64 << 10;
const MAX_TOKEN: u64 = 64 << 10;

/// The flag that names the server.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// Address of the server: HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH.
    #[arg(long, value_name = "ADDR", env = "WATERWHEEL_SERVER", default_value = "127.0.0.1:7070")]
    pub(crate) server: Address,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// Flags of a command that only reads. It asks the operators' listener, or with `--server` that of callers.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReadArgs {
    /// Address of the operators' listener; https:// is for a proxy in front of it.
    #[arg(long, value_name = "ADDR", env = "WATERWHEEL_OPS", default_value = "127.0.0.1:7071")]
    pub(crate) ops: Address,
    /// Address of the callers' listener, to ask that one. Only this flag chooses it.
    #[arg(long, value_name = "ADDR")]
    pub(crate) server: Option<Address>,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

impl Target for ServerArgs {
    fn address(&self) -> &Address {
        &self.server
    }

    fn access(&self) -> AccessArgs {
        self.access.clone()
    }
}

impl Target for ReadArgs {
    fn address(&self) -> &Address {
        self.server.as_ref().unwrap_or(&self.ops)
    }

    fn access(&self) -> AccessArgs {
        if self.server.is_some() { self.access.clone() } else { self.operators_access() }
    }
}

impl ReadArgs {
    /// How to reach the operators' listener, which has no TLS of its own.
    pub(crate) fn operators_access(&self) -> AccessArgs {
        match self.ops {
            Address::Tcp { tls: Some(true), .. } => self.access.clone(),
            _ => AccessArgs { token_file: self.access.token_file.clone(), ..AccessArgs::default() },
        }
    }
}

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A host and a port; with or without TLS, if the address says so.
    Tcp { authority: Authority, tls: Option<bool> },
    /// A socket file.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = &'static str;

    /// The error says what to pass instead.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const MALFORMED: &str = "not an address; pass HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH";
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.strip_prefix("//").unwrap_or(path) {
                "" => Err("no path after unix:; pass unix:PATH"),
                path => Ok(Self::Unix(path.into())),
            };
        }
        let (tls, text) = match text.split_once("://") {
            Some(("https", text)) => (Some(true), text),
            Some(("http", text)) => (Some(false), text),
            _ => (None, text),
        };
        let text = text.strip_suffix('/').unwrap_or(text);
        let authority = Authority::from_str(text).map_err(|_| MALFORMED)?;
        if authority.host().is_empty() || text.contains('@') {
            Err(MALFORMED)
        } else if authority.port_u16().is_none() {
            Err("no port; pass HOST:PORT, such as 127.0.0.1:7070")
        } else {
            Ok(Self::Tcp { authority, tls })
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { authority, tls: Some(true) } => write!(f, "https://{authority}"),
            Self::Tcp { authority, .. } => write!(f, "{authority}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// Whether the address is on this machine.
    fn is_local(&self) -> bool {
        let Self::Tcp { authority, .. } = self else { return true };
        let host = without_brackets(authority.host());
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// A host as in a URL, but an IPv6 address without its brackets.
fn without_brackets(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

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

/// A server, with TLS settings and the token that were read from the files of [`AccessArgs`].
#[derive(Clone)]
pub(crate) struct Access {
    pub(super) address: Address,
    tls: Option<Arc<ClientConfig>>,
    /// The value of `authorization`.
    pub(super) token: Option<HeaderValue>,
}

impl AccessArgs {
    /// Reads the files for a call to `address`.
    ///
    /// # Errors
    /// If a file cannot be used, a flag contradicts the address, or the token would be sent in plaintext. The contents
    /// are never quoted.
    pub(crate) fn load(&self, address: &Address) -> Result<Access, Failure> {
        let Self { tls, ca, cert, key: _, token_file } = self;
        let wants_tls = match address {
            Address::Tcp { tls: Some(true), .. } => true,
            Address::Tcp { tls: None, .. } => *tls || ca.is_some() || cert.is_some(),
            // The files are ignored: WATERWHEEL_CA and WATERWHEEL_CERT may be set for other servers.
            _ if !tls => false,
            Address::Tcp { .. } => {
                let help = format!("write https://{address}, or leave out --tls");
                return Err(Failure::usage(format!("http://{address} is without TLS, which --tls asks for"), help));
            }
            Address::Unix(_) => {
                let what = format!("TLS is not supported over the socket {address}");
                return Err(Failure::usage(what, "leave out --tls"));
            }
        };
        let token = token_file.as_deref().map(token).transpose()?;
        if token.is_some() && !wants_tls && !address.is_local() {
            return Err(Failure::usage(format!("the token would be sent to {address} in plaintext"), "pass --tls"));
        }
        let tls = if wants_tls { Some(Arc::new(self.client_config()?)) } else { None };
        Ok(Access { address: address.clone(), tls, token })
    }

    fn client_config(&self) -> Result<ClientConfig, Failure> {
        let unusable = |error: Error| {
            let help = match error {
                Error::InconsistentKeys(_) => "pass the key that the certificate was made for",
                _ => "issue the certificate anew, as X.509 version 3 with an ECDSA, RSA or Ed25519 key",
            };
            Failure::usage(format!("TLS cannot use the certificate with its key: {error}"), help)
        };
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

    fn roots(&self) -> Result<RootCertStore, Failure> {
        let mut roots = RootCertStore::empty();
        let found = match &self.ca {
            Some(path) => certificates(path)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        roots.add_parsable_certificates(found);
        if roots.is_empty() {
            let help = "pass --ca with the roots of the server's certificate";
            return Err(Failure::usage("this system has no root certificates", help));
        }
        Ok(roots)
    }
}

impl Access {
    /// Whether calls are secured by TLS.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The origin of all calls.
    pub(crate) fn origin(&self) -> Uri {
        let authority = match &self.address {
            Address::Tcp { authority, .. } => authority.clone(),
            Address::Unix(_) => Authority::from_static("localhost"),
        };
        let scheme = if self.has_tls() { "https" } else { "http" };
        let origin = Uri::builder().scheme(scheme).authority(authority).path_and_query("/").build();
        origin.expect("scheme, authority and path make a URI")
    }

    /// Performs the TLS handshake with the server `host`. Without TLS, returns the socket unchanged.
    ///
    /// # Errors
    /// The error of the handshake, such as an untrusted certificate.
    pub(crate) async fn secure(
        &self,
        host: &str,
        socket: TcpStream,
    ) -> io::Result<Either<TcpStream, TlsStream<TcpStream>>> {
        let Some(config) = &self.tls else { return Ok(Either::Left(socket)) };
        let name = ServerName::try_from(without_brackets(host).to_owned()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::clone(config)).connect(name, socket).await?;
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::other("the server does not speak HTTP/2 over TLS"));
        }
        Ok(Either::Right(stream))
    }
}

/// Reads a file that a flag names.
pub(super) fn read(path: &Path, max: u64) -> Result<Vec<u8>, Failure> {
    file::read(path, max).map_err(|fault| {
        let help = match fault {
            FileFault::Unreadable { .. } => "pass a file that this user can read",
            _ => "write it to a regular file, and pass that file",
        };
        Failure::usage(format!("cannot read {}: {fault}", path.display()), help)
    })
}

fn token(path: &Path) -> Result<HeaderValue, Failure> {
    let no_token = || {
        let help = "write a token of visible ASCII characters to the file, and nothing else";
        Failure::usage(format!("{} contains no token", path.display()), help)
    };
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

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let pem = read(path, MAX_CERTIFICATES)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| no_pem(path, "certificate"))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Failure> {
    let pem = read(path, MAX_KEY).map(Zeroizing::new)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| no_pem(path, "private key"))
}

fn no_pem(path: &Path, what: &str) -> Failure {
    let help = format!("pass a file with a block BEGIN {}", what.to_uppercase());
    Failure::usage(format!("{} contains no {what} in PEM", path.display()), help)
}

#[cfg(test)]
#[path = "tests/access.rs"]
mod tests;
