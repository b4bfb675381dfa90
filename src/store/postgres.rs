//! The store in PostgreSQL: for replicas that share one backlog.

mod connect;
mod connection;
mod replica;
mod signals;
mod url;

use std::{
    path::PathBuf,
    sync::{Arc, mpsc::sync_channel},
};

use async_trait::async_trait;
use connection::PostgresConnection;
use deadpool_postgres::Pool;
use replica::Replica;
use signals::Post;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

pub use connect::{read_authorities, read_password};
pub use url::{DatabaseUrl, InvalidDatabaseUrl};

use super::{
    Bounds, Capabilities, JobStore, StoreError, Wakes,
    sql::{Connection as _, Database, SqlRows, SqlStore},
};
use crate::task::{Tasks, spawn_thread};

/// Where a database is, and its bounds.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// Where it is.
    pub url: DatabaseUrl,
    /// File with the password. `None` means that of the URL.
    pub password_file: Option<PathBuf>,
    /// Certificates that the server's one is checked against. `None` means those of the system.
    pub ca_file: Option<PathBuf>,
    /// Most jobs and bytes. Each replica may exceed them by what it accepts between two counts.
    pub bounds: Bounds,
    /// Transactions that write at the same time. Default 2.
    pub writers: usize,
}

impl PostgresOptions {
    /// Defaults for the rest.
    #[must_use]
    pub fn new(url: DatabaseUrl) -> Self {
        Self { url, password_file: None, ca_file: None, bounds: Bounds::default(), writers: 2 }
    }
}

/// Connects to a database, and makes or updates the schema `waterwheel` in it. It blocks until that is done. The
/// connections are served on a thread of their own until the store is closed.
///
/// # Errors
/// [`StoreError::Unavailable`], [`StoreError::Newer`] and [`StoreError::File`].
pub fn open_postgres(options: &PostgresOptions) -> Result<Arc<dyn JobStore>, StoreError> {
    let no_thread = |error: std::io::Error| StoreError::Unavailable(error.to_string());
    let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
    let (opened, store) = sync_channel(1);
    let (options, stop) = (options.clone(), CancellationToken::new());
    let serve = async move {
        let store = open(&options, stop.clone()).await;
        let is_open = store.is_ok();
        // It is waited for below.
        let _ = opened.send(store);
        if is_open {
            stop.cancelled().await;
        }
    };
    spawn_thread("postgres".to_owned(), move || runtime.block_on(serve)).map_err(no_thread)?;
    store.recv().map_err(|_| StoreError::Closed)?
}

async fn open(options: &PostgresOptions, stop: CancellationToken) -> Result<Arc<dyn JobStore>, StoreError> {
    let (config, tls) = connect::config(options)?;
    let pool = connect::pool(options, config.clone(), tls.clone())?;
    connect::migrate(&pool).await?;
    let (replica, wakes, tasks) = (Arc::new(Replica::default()), Arc::new(Wakes::default()), Tasks::new());
    let post = Post { pool: pool.clone(), replica: replica.clone(), wakes: wakes.clone(), stop: stop.clone() };
    replica.set_size(post.size().await?);
    let post = Arc::new(post);
    tasks.spawn(post.clone().send());
    tasks.spawn(post.clone().count());
    tasks.spawn(post.receive(config, tls));
    let server = Server { pool, runtime: Handle::current(), replica, stop, tasks };
    let writers = (0..options.writers.max(1)).map(|_| SqlRows(server.connection())).collect();
    Ok(Arc::new(SqlStore::start(server, writers, options.bounds, wakes)?))
}

/// Version of the server and state of the schema, in words. It changes nothing.
///
/// # Errors
/// What [`open_postgres`] would fail with.
pub async fn inspect_postgres(options: &PostgresOptions) -> Result<String, StoreError> {
    let (config, tls) = connect::config(options)?;
    connect::inspect(&connect::pool(options, config, tls)?).await
}

struct Server {
    pool: Pool,
    runtime: Handle,
    replica: Arc<Replica>,
    stop: CancellationToken,
    tasks: Tasks,
}

impl Server {
    fn connection(&self) -> PostgresConnection {
        PostgresConnection::new(self.pool.clone(), self.runtime.clone(), self.replica.clone())
    }
}

#[async_trait]
impl Database for Server {
    type Connection = PostgresConnection;

    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "postgres", is_durable: true, is_shared: true }
    }

    fn reader(&self) -> Result<PostgresConnection, StoreError> {
        Ok(self.connection())
    }

    /// The server guards its own files; this looks for keys that are blocked without a holder.
    fn check(&self, reader: &mut PostgresConnection) -> Result<(), StoreError> {
        let sql = "select id from jobs where state = 2 and not exists (select 1 from jobs holder \
                   where holder.pool = jobs.pool and holder.ordering_key = jobs.ordering_key and holder.holds_key)";
        let lost = reader.query(sql, &[], |row| Ok(row.text(0)))?;
        match lost.into_iter().next() {
            Some(id) => Err(StoreError::Database(format!("job {id} waits for a key that no job holds"))),
            None => Ok(()),
        }
    }

    async fn close(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
        self.pool.close();
    }
}
