//! The store in one SQLite file: the default of one machine.

mod checkpoint;
mod connection;
mod open;
#[cfg(test)]
mod tests;
mod wal;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use connection::SqliteConnection;

use super::{
    Bounds, Capabilities, Clock, JobStore, StoreError, Timestamp, Wakes,
    engine::Engine,
    sql::{Connection as _, Database, SqlRows, SqlStore},
};

/// Where a store is, and its bounds.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// The database file. Its log and its lock are beside it.
    pub path: PathBuf,
    /// Most jobs and bytes.
    pub bounds: Bounds,
    /// Room on the disk below which new jobs are refused, so that accepted ones can end. Default 64 MiB.
    pub reserve_bytes: u64,
}

impl SqliteOptions {
    /// Defaults for the rest.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), bounds: Bounds::default(), reserve_bytes: 64 << 20 }
    }
}

/// Opens the file, or makes it. Jobs that ran when it was last closed are ready again. Blocks for some tenths of a
/// second.
///
/// # Errors
/// [`StoreError::ReadOnly`], [`StoreError::InUse`], [`StoreError::Damaged`], [`StoreError::Newer`] and
/// [`StoreError::DiskFull`], each before anything is changed.
pub fn open_sqlite(options: &SqliteOptions, clock: Clock) -> Result<Arc<dyn JobStore>, StoreError> {
    let options = &SqliteOptions { path: real(&options.path), ..options.clone() };
    let (connection, lock) = open::open(&options.path)?;
    let writer = SqliteConnection::of_writer(connection, lock, options, clock.clone())?;
    // Sessions end with their process.
    let mut engine = Engine::new(SqlRows(writer), options.bounds, Arc::default());
    engine.rows.0.begin()?;
    let now = engine.rows.0.now()?;
    engine.start(now)?;
    engine.end_leases(Timestamp::from_millis(i64::MAX))?;
    engine.rows.0.commit()?;
    let file = SqliteFile { path: options.path.clone(), clock };
    Ok(Arc::new(SqlStore::start(file, vec![engine.rows], options.bounds, Arc::new(Wakes::default()))?))
}

/// What is in the file of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqliteFacts {
    /// Version of its schema; zero if it is empty.
    pub version: usize,
    /// Newest version that this program knows.
    pub known: usize,
    /// Jobs.
    pub jobs: u64,
    /// Jobs that have not ended.
    pub unfinished: u64,
    /// Size of the file, without its log.
    pub file_bytes: u64,
}

/// Checks a file that no server has open, and changes nothing. Blocks while it reads all of it.
///
/// # Errors
/// Those of [`open_sqlite`], and [`StoreError::File`] where there is no file.
pub fn inspect_sqlite(path: &Path) -> Result<SqliteFacts, StoreError> {
    open::inspect(&real(path))
}

/// SQLite keeps its log beside the file that a link names.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

struct SqliteFile {
    path: PathBuf,
    clock: Clock,
}

#[async_trait]
impl Database for SqliteFile {
    type Connection = SqliteConnection;

    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "sqlite", is_durable: true, is_shared: false }
    }

    fn reader(&self) -> Result<SqliteConnection, StoreError> {
        Ok(SqliteConnection::of_reader(open::open_reader(&self.path)?, self.clock.clone()))
    }

    fn check(&self, reader: &mut SqliteConnection) -> Result<(), StoreError> {
        let found = reader.query("pragma integrity_check(1)", &[], |row| Ok(row.text(0)))?;
        match found.into_iter().next() {
            Some(detail) if detail != "ok" => Err(StoreError::Damaged { path: self.path.clone(), detail }),
            _ => Ok(()),
        }
    }

    async fn close(&self) {}
}

fn io_error(error: &io::Error, path: &Path) -> StoreError {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            StoreError::ReadOnly { path: path.to_owned() }
        }
        io::ErrorKind::StorageFull => StoreError::DiskFull,
        _ => StoreError::Database(format!("{}: {error}", path.display())),
    }
}
