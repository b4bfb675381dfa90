//! Connects to the hosts of a URL.

use std::{
    error::Error as _,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio_postgres::{
    Client, Config, Connection, Socket,
    config::{Host, LoadBalanceHosts, TargetSessionAttrs},
    tls::MakeTlsConnect,
};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use zeroize::Zeroizing;

use super::{
    DatabaseUrl, PostgresOptions, StoreError,
    database_session::{LOOK_INTERVAL, Session, answered, told},
};
use crate::file;

/// Largest file with a password or with certificates.
const MAX_FILE: u64 = 1 << 20;

/// A stream that the driver encrypts, if the server can.
type Tls = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// The hosts of a database, of which one takes writes. Clones share what is known of them.
#[derive(Clone)]
pub(super) struct Hosts {
    configs: Vec<Config>,
    tls: MakeRustlsConnect,
    /// Whether statements are prepared once for each connection.
    pub(super) is_prepared: bool,
    /// Time without an answer, or an acknowledgement, after which a host counts as away. At least one look fits in it.
    pub(super) patience: Duration,
    /// Index of the host to try first: the one that answered last.
    first: Arc<AtomicUsize>,
}

impl Hosts {
    /// Reads the files of the password and the certificates.
    pub(super) fn new(url: &DatabaseUrl, options: &PostgresOptions) -> Result<Self, StoreError> {
        let password = options.password_file.as_deref().map(read_password).transpose()?;
        let patience = options.patience.max(LOOK_INTERVAL);
        let configs = url.hosts().iter().cloned().map(|mut config| {
            if let Some(password) = &password {
                config.password(password);
            }
            config.application_name("waterwheel").connect_timeout(patience).tcp_user_timeout(patience);
            // A standby is no help, and one address of a name may be mute.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite).load_balance_hosts(LoadBalanceHosts::Random);
            config
        });
        let (configs, tls) = (configs.collect(), tls(options.ca_file.as_deref())?);
        Ok(Self { configs, tls, is_prepared: options.prepared, patience, first: Arc::default() })
    }

    pub(super) async fn connect(&self) -> Result<Session, StoreError> {
        let (client, connection) = self.open().await?;
        Ok(Session::new(client, connection, self.is_prepared))
    }

    /// Connects to the first host that answers and takes writes.
    ///
    /// # Errors
    /// [`StoreError::Database`] if every host answers, and waiting does not mend it.
    pub(super) async fn open(&self) -> Result<(Client, Connection<Socket, Tls>), StoreError> {
        let (first, count) = (self.first.load(Relaxed), self.configs.len());
        let (mut faults, mut is_final) = (Vec::new(), true);
        for index in (first..first + count).map(|index| index % count) {
            let config = &self.configs[index];
            let opening = async { config.connect(self.tls.clone()).await.map_err(|error| cannot_connect(&error)) };
            // Its state is too large for the stack of a thread.
            match answered(self.patience, Box::pin(opening)).await {
                Ok(opened) => {
                    self.first.store(index, Relaxed);
                    return Ok(opened);
                }
                Err(error) => {
                    is_final &= matches!(error, StoreError::Database(_));
                    let (StoreError::Database(text) | StoreError::Unavailable(text)) = error else { return Err(error) };
                    faults.push(format!("{}: {text}", name(config)));
                }
            }
        }
        let text = faults.join("; ");
        Err(if is_final { StoreError::Database(text) } else { StoreError::Unavailable(text) })
    }

    /// Tries another host first, because this one stands still or takes no writes.
    pub(super) fn leave(&self) {
        self.first.fetch_add(1, Relaxed);
    }
}

fn name(config: &Config) -> String {
    match config.get_hosts() {
        [Host::Tcp(name), ..] => name.clone(),
        [Host::Unix(path), ..] => path.display().to_string(),
        [] => String::new(),
    }
}

/// A refused password or role, a missing database, and a certificate that is not trusted are for an operator to mend.
fn cannot_connect(error: &tokio_postgres::Error) -> StoreError {
    let class = error.code().map(|code| &code.code()[..2]);
    let io = error.source().and_then(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    match class {
        Some("28" | "3D") => StoreError::Database(told(error)),
        None if !error.is_closed() && io.is_none_or(|kind| kind == io::ErrorKind::InvalidData) => {
            let text = told(error);
            let is_unknown = text.contains("UnknownIssuer");
            let help = if is_unknown { "; store.ca_file names who signs for it, in PEM" } else { "" };
            StoreError::Database(text + help)
        }
        _ => StoreError::Unavailable(told(error)),
    }
}

/// The password in a file, without a line end.
///
/// # Errors
/// [`StoreError::File`].
pub fn read_password(path: &Path) -> Result<String, StoreError> {
    let text = read(path)?;
    let text = str::from_utf8(&text).map_err(|_| StoreError::file(path, "it is not UTF-8"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// The certificates in a file.
///
/// # Errors
/// [`StoreError::File`].
pub fn read_authorities(path: &Path) -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&read(path)?) {
        let certificate = certificate.map_err(|error| StoreError::file(path, error))?;
        roots.add(certificate).map_err(|error| StoreError::file(path, error))?;
    }
    if roots.is_empty() { Err(StoreError::file(path, "it contains no PEM certificate")) } else { Ok(roots) }
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, StoreError> {
    file::read(path, MAX_FILE).map(Zeroizing::new).map_err(|fault| StoreError::file(path, fault))
}

/// TLS that trusts the certificates of a file, or else those of the system.
fn tls(ca_file: Option<&Path>) -> Result<MakeRustlsConnect, StoreError> {
    let roots = if let Some(file) = ca_file {
        read_authorities(file)?
    } else {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    };
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| StoreError::Unavailable(error.to_string()))?;
    Ok(MakeRustlsConnect::new(config.with_root_certificates(roots).with_no_client_auth()))
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn however_short_the_patience_an_answer_gets_one_look() {
        let url: DatabaseUrl = "postgres://u@localhost/jobs".to_owned().try_into().expect("a URL");
        for patience in [Duration::ZERO, Duration::from_millis(10), Duration::from_secs(1)] {
            let options = PostgresOptions { patience, ..PostgresOptions::new(url.clone()) };
            let hosts = Hosts::new(&options.url, &options).expect("hosts");
            let answer = async {
                sleep(Duration::from_millis(900)).await;
                Ok(7)
            };
            assert_eq!(answered(hosts.patience, answer).await, Ok(7), "{patience:?}");
        }
    }
}
