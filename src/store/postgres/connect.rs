//! The URL of a database, its connections, and the migrations of its schema.

use std::{error::Error as _, path::Path, sync::Arc, time::Duration};

use deadpool_postgres::{GenericClient, Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime};
use tokio_postgres::{Config, error::SqlState};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use zeroize::Zeroizing;

use super::{PostgresOptions, StoreError, WRITERS};
use crate::{file, store::sql::READERS};

/// One entry per schema version. Entries are never changed; new ones are appended.
const MIGRATIONS: &[&str] = &[include_str!("0001.sql")];
/// Advisory lock: only one process migrates at a time.
const MIGRATION_LOCK: i64 = 0x7777_6d69_6772;
/// Timeout of connecting, and of an answer on a connection.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Largest file with a password or with certificates.
const MAX_FILE: u64 = 1 << 20;
/// Settings of each connection. Every statement has an index, but without statistics the planner would scan whole
/// tables.
const SETTINGS: &str = "-c search_path=waterwheel -c jit=off -c enable_seqscan=off -c enable_bitmapscan=off \
    -c enable_hashjoin=off -c enable_mergejoin=off -c statement_timeout=30s \
    -c idle_in_transaction_session_timeout=30s";

/// A URL such as `postgres://user:password@host/database?sslmode=require`. `sslmode` is `disable`, `prefer` or
/// `require`; the default uses TLS if the server supports it. TLS always checks the server's certificate.
///
/// `Debug` hides the password.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct DatabaseUrl(Config);

/// How to correct an invalid database URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidDatabaseUrl(String);

impl TryFrom<String> for DatabaseUrl {
    type Error = InvalidDatabaseUrl;

    fn try_from(text: String) -> Result<Self, InvalidDatabaseUrl> {
        let refuse = |help: &str| Err(InvalidDatabaseUrl(help.to_owned()));
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return refuse("begin with `postgres://`");
        }
        // Only the part before the host is hidden where a URL is shown.
        if text.split_once('?').is_some_and(|(_, options)| options.contains("password")) {
            return refuse("write the password before the host, or name a `store.password_file`");
        }
        match text.parse::<Config>() {
            Ok(config) if config.get_hosts().is_empty() => refuse("name a host, as in `postgres://user@host/database`"),
            Ok(config) => Ok(Self(config)),
            Err(error) => {
                let detail = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                Err(InvalidDatabaseUrl(format!("{detail}; `sslmode` is `disable`, `prefer` or `require`")))
            }
        }
    }
}

/// The connection settings. Reads the files of the password and the certificates.
pub(super) fn config(options: &PostgresOptions) -> Result<(Config, MakeRustlsConnect), StoreError> {
    let mut config = options.url.0.clone();
    if let Some(path) = &options.password_file {
        config.password(read_password(path)?);
    }
    let settings = [SETTINGS, config.get_options().unwrap_or_default()].join(" ");
    config.options(&settings).application_name("waterwheel").connect_timeout(TIMEOUT).tcp_user_timeout(TIMEOUT);
    Ok((config, tls(options.ca_file.as_deref())?))
}

/// The password in a file, without a line end.
///
/// # Errors
/// [`StoreError::File`].
pub fn read_password(path: &Path) -> Result<String, StoreError> {
    let text = read(path)?;
    let text = str::from_utf8(&text).map_err(|_| unusable(path, "it is not UTF-8"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// The certificates in a file.
///
/// # Errors
/// [`StoreError::File`].
pub fn read_authorities(path: &Path) -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&read(path)?) {
        let certificate = certificate.map_err(|error| unusable(path, error))?;
        roots.add(certificate).map_err(|error| unusable(path, error))?;
    }
    if roots.is_empty() { Err(unusable(path, "it contains no PEM certificate")) } else { Ok(roots) }
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, StoreError> {
    file::read(path, MAX_FILE).map(Zeroizing::new).map_err(|fault| unusable(path, fault))
}

fn unusable(path: &Path, detail: impl ToString) -> StoreError {
    StoreError::File { path: path.to_owned(), detail: detail.to_string() }
}

pub(super) fn pool(config: Config, tls: MakeRustlsConnect) -> Result<Pool, StoreError> {
    let manager = Manager::from_config(config, tls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    let size = WRITERS + READERS + 2;
    let pool = Pool::builder(manager).max_size(size).runtime(Runtime::Tokio1);
    let pool = pool.wait_timeout(Some(TIMEOUT)).create_timeout(Some(TIMEOUT)).recycle_timeout(Some(TIMEOUT));
    pool.build().map_err(|error| StoreError::Unavailable(error.to_string()))
}

/// TLS that trusts the certificates of a file, or else those of the system.
fn tls(ca_file: Option<&Path>) -> Result<MakeRustlsConnect, StoreError> {
    let system = || {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    };
    let roots = ca_file.map_or_else(|| Ok(system()), read_authorities)?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| StoreError::Unavailable(error.to_string()))?;
    Ok(MakeRustlsConnect::new(config.with_root_certificates(roots).with_no_client_auth()))
}

/// Applies the missing migrations. A second process waits, and finds nothing to do.
pub(super) async fn migrate(pool: &Pool) -> Result<(), StoreError> {
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    transaction.execute("select pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
    let found = version(&transaction).await?;
    if found == 0 {
        let create = "create schema if not exists waterwheel; \
                      create table if not exists versions (version bigint not null)";
        transaction.batch_execute(create).await?;
    }
    for (step, sql) in MIGRATIONS.iter().enumerate().skip(found) {
        transaction.batch_execute(sql).await?;
        transaction.execute("insert into versions values ($1)", &[&(step as i64 + 1)]).await?;
    }
    Ok(transaction.commit().await?)
}

/// Describes the server version and the state of the schema.
pub(super) async fn inspect(pool: &Pool) -> Result<String, StoreError> {
    let client = pool.get().await?;
    let server: String = client.query_one("select current_setting('server_version')", &[]).await?.try_get(0)?;
    let schema = match version(&client).await? {
        0 => "no schema yet; the server creates it".to_owned(),
        found if found < MIGRATIONS.len() => {
            format!("schema {found}; the server migrates it to {}", MIGRATIONS.len())
        }
        found => format!("schema {found}"),
    };
    let free = "select current_setting('max_connections')::bigint - count(*) from pg_stat_activity \
                where backend_type = 'client backend'";
    let free: i64 = client.query_one(free, &[]).await?.try_get(0)?;
    // One further connection listens for notifications.
    let taken = pool.status().max_size as i64 + 1;
    if free < taken {
        let detail = format!("{free} connections are free, but a server needs {taken}; raise `max_connections`");
        return Err(StoreError::Unavailable(detail));
    }
    Ok(format!("PostgreSQL {server}, {schema}, {free} connections free, of which a server takes {taken}"))
}

/// Version of the schema; 0 if there is none.
async fn version(client: &impl GenericClient) -> Result<usize, StoreError> {
    let exists = client.query_one("select to_regclass('waterwheel.versions') is not null", &[]).await?;
    if !exists.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let row = client.query_one("select coalesce(max(version), 0) from waterwheel.versions", &[]).await?;
    let (found, known) = (row.try_get::<_, i64>(0)?, MIGRATIONS.len() as i64);
    if found > known { Err(StoreError::Newer { found, known }) } else { Ok(usize::try_from(found).unwrap_or(0)) }
}

impl From<PoolError> for StoreError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => error.into(),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        let text = match (error.as_db_error(), error.source()) {
            (Some(told), _) => told.to_string(),
            (None, Some(cause)) => format!("{error}: {cause}"),
            (None, None) => error.to_string(),
        };
        // Classes 57 (operator intervention), 53 (insufficient resources), 58 (the server's disk) and 08 (connection)
        // pass by themselves, and so does 25006 (a standby, while a failover goes on). Class 40 is a deadlock.
        match error.code() {
            Some(code) if *code == SqlState::DISK_FULL => Self::DiskFull,
            Some(code) if *code == SqlState::READ_ONLY_SQL_TRANSACTION => Self::Unavailable(text),
            Some(code) if code.code().starts_with("40") => Self::Conflict,
            Some(code) if !["57", "53", "58", "08"].contains(&&code.code()[..2]) => Self::Database(text),
            _ => Self::Unavailable(text),
        }
    }
}
