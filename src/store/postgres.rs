//! The store in PostgreSQL: for replicas that share one backlog.

mod database_session;
mod hosts;
mod postgres_connection;
mod replica;
mod schema;
mod url;

use std::{
    path::PathBuf,
    sync::{Arc, mpsc::sync_channel},
    time::Duration,
};

use hosts::Hosts;
use postgres_connection::PostgresConnection;
use replica::Replica;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

pub use hosts::{read_authorities, read_password};
pub use url::{DatabaseUrl, InvalidDatabaseUrl};

use super::{
    Bounds, JobStore, StoreError,
    sql::{READERS, SqlStore},
};
use crate::task::spawn_thread;

/// Number of writing connections.
const WRITERS: usize = 2;

/// Address and bounds of a database.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// Address of the database, or of a pooler in front of it.
    pub url: DatabaseUrl,
    /// Address of the database itself, to listen to other replicas, where `url` is a pooler's that shares sessions.
    pub listen_url: Option<DatabaseUrl>,
    /// Whether statements are prepared once for each connection, which a pooler that shares sessions does not allow.
    pub prepared: bool,
    /// File with the password. `None` means the password of the URL.
    pub password_file: Option<PathBuf>,
    /// Certificate authorities that may sign the server's certificate. `None` means those of the system.
    pub ca_file: Option<PathBuf>,
    /// Maximum number of jobs and bytes. Each replica may exceed them by what it accepts between two counts.
    pub bounds: Bounds,
    /// Time without an answer, in whole seconds and at least one, after which the database counts as away. Default 5 s.
    pub patience: Duration,
}

impl PostgresOptions {
    /// Options with defaults, except for the URL.
    pub fn new(url: DatabaseUrl) -> Self {
        let (bounds, patience) = (Bounds::default(), Duration::from_secs(5));
        Self { url, listen_url: None, prepared: true, password_file: None, ca_file: None, bounds, patience }
    }
}

/// Connects to a database, and creates or migrates its schema `waterwheel`. Blocks meanwhile, for some seconds. A
/// separate thread drives the connections until the store is closed.
///
/// If the database is away, the store is opened as well, and its operations fail until the database is there.
///
/// # Errors
/// [`StoreError::Newer`], [`StoreError::File`], and [`StoreError::Database`] if the database refuses this server.
pub fn open_postgres(options: &PostgresOptions) -> Result<Arc<dyn JobStore>, StoreError> {
    let no_thread = |error: std::io::Error| StoreError::Unavailable(error.to_string());
    let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
    let (opened, store) = sync_channel(1);
    let options = options.clone();
    let serve = async move {
        let closed = CancellationToken::new();
        // The receiver waits below.
        match open(&options, closed.clone()).await {
            Ok((store, share)) => {
                let _ = opened.send(Ok(store));
                closed.run_until_cancelled(share).await;
            }
            Err(error) => drop(opened.send(Err(error))),
        }
    };
    spawn_thread("postgres".to_owned(), move || runtime.block_on(serve)).map_err(no_thread)?;
    store.recv().map_err(|_| StoreError::Closed)?
}

/// Opens the store, and exchanges notifications with other processes until it is closed.
async fn open(
    options: &PostgresOptions,
    closed: CancellationToken,
) -> Result<(Arc<dyn JobStore>, impl Future<Output = ()> + use<>), StoreError> {
    let hosts = Hosts::new(&options.url, options)?;
    let listened = options.listen_url.as_ref().map(|url| Hosts::new(url, options)).transpose()?;
    let listened = listened.or_else(|| options.prepared.then(|| hosts.clone()));
    let replica = Arc::new(Replica::new(hosts, listened));
    let first = match replica.reach().await {
        Ok(session) => {
            replica.count_first().await;
            Some(session)
        }
        Err(StoreError::Unavailable(_) | StoreError::DiskFull | StoreError::Conflict) => None,
        Err(error) => return Err(error),
    };
    let (shared, wakes) = (replica.clone(), replica.wakes.clone());
    let connection = move || Ok(PostgresConnection::new(replica.clone()));
    let writers = (0..WRITERS).map(|_| connection()).collect::<Result<_, _>>()?;
    let store = SqlStore::start(writers, Some(Arc::new(connection)), options.bounds, wakes, closed)?;
    Ok((Arc::new(store), async move { shared.share(first).await }))
}

/// Describes the server version and the state of the schema. Changes nothing.
///
/// # Errors
/// The errors of [`open_postgres`], and [`StoreError::Unavailable`].
pub async fn inspect_postgres(options: &PostgresOptions) -> Result<String, StoreError> {
    schema::inspect(&Hosts::new(&options.url, options)?).await
}
