//! TLS and token of a command's connection. `connect.rs` uses them.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use http::HeaderValue;
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
use zeroize::Zeroizing;

use super::{connect::Address, failure::Failure};
use crate::file::{self, FileFault};

/// Largest file with certificates, a private key or a token, in bytes.
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

/// TLS settings and the token, read from the files of [`AccessArgs`].
#[derive(Clone, Default)]
pub(crate) struct Access {
    tls: Option<Arc<ClientConfig>>,
    token: Option<HeaderValue>,
}

impl AccessArgs {
    /// Reads the files for a call to `address`.
    ///
    /// # Errors If a file cannot be used, a flag contradicts the address, or the token would be sent in plaintext. The
    /// contents are never quoted.
    pub(crate) fn load(&self, address: &Address) -> Result<Access, Failure> {
        let Self { tls, ca, cert, key: _, token_file } = self;
        let wants_tls = match address {
            Address::Tls(_) => true,
            Address::Tcp(_) => *tls || ca.is_some() || cert.is_some(),
            // The files are ignored: WATERWHEEL_CA and WATERWHEEL_CERT may be set for other servers.
            Address::Plain(_) | Address::Unix(_) if !tls => false,
            Address::Plain(_) => {
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
        Ok(Access { tls, token })
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

    /// Performs the TLS handshake with the server `host`. Without TLS, returns the socket unchanged.
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

fn read(path: &Path, max: u64) -> Result<Vec<u8>, Failure> {
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
mod tests {
    use std::fs;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        file
    }

    fn with_token(text: &str, address: &str) -> Result<Access, Failure> {
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
            let error = with_token(wrong, "127.0.0.1:1").unwrap_err().to_string();
            assert!(error.ends_with(" contains no token"), "{wrong}: {error}");
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
                assert_eq!(error.help().unwrap(), "write it to a regular file, and pass that file");
            }
        }
    }

    /// Made by OpenSSL 3.0, by `openssl x509 -req` without extensions.
    const VERSION_1: &str = "\
        -----BEGIN CERTIFICATE-----\n\
        MIIBGjCBwgIUf8It/duLbn6oNAw7v2lt7olmXYgwCgYIKoZIzj0EAwIwDTELMAkG\n\
        A1UEAwwCY2EwHhcNMjYxMTIzMjM0OTMyWhcNMjYxMjIzMjM0OTMyWjAUMRIwEAYD\n\
        VQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQARxLuZZRb\n\
        FshFyOlEhR1RGMrQPX3UeXq2ZZHEttc5N+0fNaOlzI76i+OW1XV8H0IdEQRDzhy4\n\
        RaeRFXUy/O9cMAoGCCqGSM49BAMCA0cAMEQCIAz6nc77Jf9GvNYDLvEHOXoDwqxc\n\
        8KgUzYrcZapwhu6FAiAkmhyfiuPuwMryYfQ1KC2HpYx3VgC/26CQ8Qs3kOr0Kw==\n\
        -----END CERTIFICATE-----\n";

    #[test]
    fn what_is_wrong_with_a_certificate_has_its_own_help() {
        let (key, other) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
        let new = file(&rcgen::CertificateParams::default().self_signed(&key).unwrap().pem());
        let (old, key) = (file(VERSION_1), file(&other.serialize_pem()));
        for (cert, key, help) in [
            (&old, &key, "issue the certificate anew, as X.509 version 3"),
            (&new, &key, "pass the key that the certificate was made for"),
            (&key, &key, "pass a file with a block BEGIN CERTIFICATE"),
            (&new, &new, "pass a file with a block BEGIN PRIVATE KEY"),
        ] {
            let [ca, cert, key] = [&new, cert, key].map(|file| Some(file.path().into()));
            let args = AccessArgs { ca, cert, key, ..AccessArgs::default() };
            let error = args.load(&"127.0.0.1:1".parse().unwrap()).unwrap_err();
            assert!(error.help().unwrap().starts_with(help), "{error:?}");
        }
    }

    #[test]
    fn an_address_without_tls_is_called_without_it() {
        for (address, help) in [
            ("http://127.0.0.1:1", "write https://127.0.0.1:1, or leave out --tls"),
            ("unix:/run/ww.sock", "leave out --tls"),
        ] {
            let address = address.parse().unwrap();
            let args = AccessArgs { tls: true, ..AccessArgs::default() };
            assert_eq!(args.load(&address).unwrap_err().help(), Some(help));
            let args = AccessArgs { ca: Some("/nowhere".into()), ..AccessArgs::default() };
            assert_eq!(args.load(&address).unwrap().scheme(), "http");
        }
    }

    #[test]
    fn a_token_does_not_travel_in_plaintext() {
        for local in ["localhost:1", "[::1]:1", "unix:/run/ww.sock"] {
            assert!(with_token("abc", local).is_ok(), "{local}");
        }
        for far in ["10.0.0.1:1", "host.example:1", "127.0.0.1.example:1"] {
            let error = with_token("abc", far).unwrap_err().to_string();
            assert_eq!(error, format!("the token would be sent to {far} in plaintext"));
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
