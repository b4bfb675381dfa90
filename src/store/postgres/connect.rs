//! Connects to the database, and brings its schema up to date.

use std::{fs, path::Path, sync::Arc, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime};
use tokio_postgres::{Config, error::SqlState};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use super::{PostgresOptions, StoreError};
use crate::store::sql::READERS;

/// Each is one step of the schema. They are never changed, only added to.
const MIGRATIONS: &[&str] = &[include_str!("0001.sql")];
/// Number of the lock that keeps migrations of two processes apart.
const MIGRATION_LOCK: i64 = 0x7777_6d69_6772;
/// Longest wait for a connection, and for the server to answer on one.
const PATIENCE: Duration = Duration::from_secs(5);
/// Settings of each connection. Every statement has its index: without these, the planner reads whole tables while it
/// has no statistics yet.
const SETTINGS: &str = "-c search_path=waterwheel -c jit=off -c enable_seqscan=off -c enable_bitmapscan=off \
    -c enable_hashjoin=off -c enable_mergejoin=off -c statement_timeout=30s \
    -c idle_in_transaction_session_timeout=30s";

pub(super) fn config(url: &str) -> Result<Config, StoreError> {
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| StoreError::from(error))?;
    let options = [SETTINGS, config.get_options().unwrap_or_default()].join(" ");
    config.options(&options).application_name("waterwheel").connect_timeout(PATIENCE).tcp_user_timeout(PATIENCE);
    Ok(config)
}

pub(super) fn pool(options: &PostgresOptions, config: Config, tls: MakeRustlsConnect) -> Result<Pool, StoreError> {
    let manager = Manager::from_config(config, tls, ManagerConfig { recycling_method: RecyclingMethod::Fast });
    let size = options.writers + READERS + 2;
    let pool = Pool::builder(manager).max_size(size).runtime(Runtime::Tokio1);
    let pool = pool.wait_timeout(Some(PATIENCE)).create_timeout(Some(PATIENCE)).recycle_timeout(Some(PATIENCE));
    pool.build().map_err(|error| StoreError::Unavailable(error.to_string()))
}

/// TLS that trusts the certificates of a file, or else those of the system.
pub(super) fn tls(ca_file: Option<&Path>) -> Result<MakeRustlsConnect, StoreError> {
    let mut roots = RootCertStore::empty();
    let unreadable = |error: &dyn std::fmt::Display| StoreError::Unavailable(format!("certificates: {error}"));
    if let Some(path) = ca_file {
        let pem = fs::read(path).map_err(|error| unreadable(&error))?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| unreadable(&error))?;
            roots.add(certificate).map_err(|error| unreadable(&error))?;
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| unreadable(&error))?;
    Ok(MakeRustlsConnect::new(config.with_root_certificates(roots).with_no_client_auth()))
}

/// Runs the steps that are missing. A second process waits, and finds nothing to do.
pub(super) async fn migrate(pool: &Pool) -> Result<(), StoreError> {
    let mut client = pool.get().await?;
    let transaction = client.transaction().await?;
    transaction.execute("select pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
    let create = "create schema if not exists waterwheel; \
                  create table if not exists versions (version bigint not null)";
    transaction.batch_execute(create).await?;
    let row = transaction.query_one("select coalesce(max(version), 0) from versions", &[]).await?;
    let (found, known) = (row.try_get::<_, i64>(0)?, MIGRATIONS.len() as i64);
    if found > known {
        return Err(StoreError::Newer { found, known });
    }
    for (step, sql) in MIGRATIONS.iter().enumerate().skip(usize::try_from(found).unwrap_or(0)) {
        transaction.batch_execute(sql).await?;
        transaction.execute("insert into versions values ($1)", &[&(step as i64 + 1)]).await?;
    }
    Ok(transaction.commit().await?)
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
        let text = error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string);
        // Class 57 is "operator intervention", 53 "insufficient resources", 25006 a standby that took over.
        match error.code() {
            Some(code) if *code == SqlState::DISK_FULL => Self::DiskFull,
            Some(code) if *code == SqlState::READ_ONLY_SQL_TRANSACTION => Self::Unavailable(text),
            Some(code) if !["57", "53", "08"].contains(&&code.code()[..2]) => Self::Database(text),
            _ => Self::Unavailable(text),
        }
    }
}
