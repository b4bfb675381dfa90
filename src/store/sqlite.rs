//! The store in SQLite: in one file, for a single server, or in memory. Opening a file locks it, checks the write-ahead
//! log, migrates the schema, and applies the settings.

mod backup;
mod check;
mod files;
mod readers;
mod salvage;
mod scan;
mod sqlite_connection;
#[cfg(test)]
mod tests;
mod wal;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use rusqlite::{ErrorCode, OpenFlags, config::DbConfig};
use sqlite_connection::SqliteConnection;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use backup::backup_sqlite;
pub use check::{SqliteFacts, inspect_sqlite};
use files::{Lock, Opened, beside, io_error, real};
pub use salvage::{Salvaged, salvage_sqlite};

use super::{Bounds, Clock, JobStore, StoreError, Timestamp, Wakes, engine::Engine, sql::SqlStore};
use crate::task::spawn_thread;

/// One entry per schema version. Entries are never changed; new ones are appended.
const MIGRATIONS: &[&str] = &[include_str!("sqlite/0001.sql")];
/// SQLite's `application_id` of a store.
const APPLICATION: i64 = 2_004_116_322;
/// Size of the log, so that commits need not grow the file, and to which it shrinks again.
const WAL_SIZE: usize = 16 << 20;
/// Prepared statements that a connection keeps.
const STATEMENTS: usize = 64;
/// Longest wait for another program that holds the file locked: after that, the store is away.
const BUSY: Duration = Duration::from_secs(1);
/// Page cache, in KiB.
const CACHE_KIB: i64 = 32_768;

/// Path and bounds of a store.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// The database file. Its log and its lock file are in the same directory.
    pub path: PathBuf,
    /// Maximum number of jobs and bytes.
    pub bounds: Bounds,
    /// Free disk space below which new jobs are refused, so that accepted ones can end. Default 64 MiB.
    pub reserve_bytes: u64,
}

impl SqliteOptions {
    /// Options with defaults, except for the path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), bounds: Bounds::default(), reserve_bytes: 64 << 20 }
    }
}

/// Opens or creates the file. Jobs that ran when the last server ended become ready, or are cancelled if that was
/// requested. Blocks for some tenths of a second.
///
/// # Errors
/// [`StoreError::File`], [`StoreError::ReadOnly`], [`StoreError::InUse`], [`StoreError::Damaged`],
/// [`StoreError::Newer`], [`StoreError::DiskFull`] and [`StoreError::Database`]. No job is lost.
pub fn open_sqlite(options: &SqliteOptions, clock: Clock) -> Result<Arc<dyn JobStore>, StoreError> {
    let options = &SqliteOptions { path: real(&options.path), ..options.clone() };
    start(options, clock).map_err(|error| match error {
        StoreError::Corrupt(detail) => StoreError::Damaged { path: options.path.clone(), detail },
        error => error,
    })
}

fn start(options: &SqliteOptions, clock: Clock) -> Result<Arc<dyn JobStore>, StoreError> {
    let (connection, lock) = open(&options.path)?;
    let figures = Arc::default();
    let writer = SqliteConnection::of_writer(connection, lock, options, clock.clone(), Arc::clone(&figures))?;
    // A session ends with its process.
    let mut engine = Engine::new(writer, options.bounds, Arc::default());
    engine.begin(None)?;
    engine.end_leases(Timestamp::from_millis(i64::MAX))?;
    let (wakes, closed) = (Arc::new(Wakes::default()), CancellationToken::new());
    wakes.announce(&engine.commit()?);
    let (path, opened) = (options.path.clone(), Opened::of(&options.path));
    let reader = move || {
        // SQLite finds the log by the name of the file. For another file of that name, it would remove the log.
        opened.require()?;
        Ok(SqliteConnection::new(open_to_read(&path)?, clock.clone()))
    };
    let mut store = SqlStore::start(vec![engine.rows], Some(Arc::new(reader)), options.bounds, wakes, closed)?;
    store.file = Some(figures);
    Ok(Arc::new(store))
}

/// A thread that is joined when this is dropped.
struct Thread(Option<JoinHandle<()>>);

impl Thread {
    fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<Self, StoreError> {
        let thread = spawn_thread(name.to_owned(), work);
        Ok(Self(Some(thread.map_err(|error| StoreError::Unavailable(error.to_string()))?)))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // A panic is logged where it happens.
        let _ = self.0.take().map(JoinHandle::join);
    }
}

fn open_to_read(path: &Path) -> rusqlite::Result<rusqlite::Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = rusqlite::Connection::open_with_flags(path, flags)?;
    keep_statements(&connection)?;
    Ok(connection)
}

/// Prepares each statement once. Otherwise SQLite prepares those with a parameter in `limit` again at each run.
fn keep_statements(connection: &rusqlite::Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// A store in memory. It ends with its process.
///
/// # Errors
/// [`StoreError::Database`] if the system has no memory.
pub fn open_memory(bounds: Bounds, clock: Clock) -> Result<Arc<dyn JobStore>, StoreError> {
    in_memory(bounds, clock, SqliteConnection::new)
}

/// A store in memory that several servers of one process share, for simulations: sessions end with their leases.
///
/// # Errors
/// [`StoreError::Database`] if the system has no memory.
pub fn open_shared_memory(bounds: Bounds, clock: Clock) -> Result<Arc<dyn JobStore>, StoreError> {
    in_memory(bounds, clock, SqliteConnection::shared)
}

fn in_memory(
    bounds: Bounds,
    clock: Clock,
    connect: fn(rusqlite::Connection, Clock) -> SqliteConnection,
) -> Result<Arc<dyn JobStore>, StoreError> {
    let mut connection = rusqlite::Connection::open_in_memory()?;
    migrate(&mut connection, 0)?;
    let (writers, wakes) = (vec![connect(connection, clock)], Arc::default());
    Ok(Arc::new(SqlStore::start(writers, None, bounds, wakes, CancellationToken::new())?))
}

/// Locks and checks a file, and makes it ready. Returns the writer's connection, and the lock that excludes other
/// processes.
fn open(path: &Path) -> Result<(rusqlite::Connection, Lock), StoreError> {
    let lock = Lock::take(path)?;
    if let Some(frame) = verify_files(path)? {
        warn!(
            frame,
            "the last transaction in the log of the store is incomplete, as after a power cut: it is left out"
        );
    }
    files::make_private(path)?;
    let failed = |error| sqlite_error(error, path);
    let mut connection = rusqlite::Connection::open(path).map_err(failed)?;
    let found = version_of(&connection, path)?;
    if connection.is_readonly("main").map_err(failed)? {
        return Err(StoreError::ReadOnly { path: path.to_owned() });
    }
    set_up(&mut connection, found).map_err(failed)?;
    files::preallocate_log(&beside(path, "-wal"), WAL_SIZE)?;
    Ok((connection, lock))
}

/// Checks the log before SQLite opens it: SQLite would silently drop a log that is damaged or has no database. Returns
/// the first frame of an incomplete last transaction.
fn verify_files(path: &Path) -> Result<Option<u64>, StoreError> {
    if fs::metadata(path).map_or(0, |file| file.len()) == 0 && beside(path, "-wal").exists() {
        return Err(StoreError::file(
            path,
            "its log exists, but the file does not, or is empty; restore it, or move the log away",
        ));
    }
    wal::verify(path)
}

/// The version of a file's schema: 0 if it is new.
fn version_of(connection: &rusqlite::Connection, path: &Path) -> Result<usize, StoreError> {
    let number = |sql| connection.query_row(sql, (), |row| row.get(0)).map_err(|error| sqlite_error(error, path));
    if number("select count(*) from sqlite_schema")? > 0 && number("pragma application_id")? != APPLICATION {
        return Err(StoreError::file(path, "it belongs to another program; set another `store.path`"));
    }
    let (found, known) = (number("pragma user_version")?, MIGRATIONS.len() as i64);
    usize::try_from(found).ok().filter(|_| found <= known).ok_or(StoreError::Newer { found, known })
}

fn migrate(connection: &mut rusqlite::Connection, found: usize) -> rusqlite::Result<()> {
    for (step, sql) in MIGRATIONS.iter().enumerate().skip(found) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(sql)?;
        transaction.pragma_update(None, "user_version", step as i64 + 1)?;
        transaction.commit()?;
    }
    keep_statements(connection)
}

fn set_up(connection: &mut rusqlite::Connection, found: usize) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    migrate(connection, found)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "journal_size_limit", WAL_SIZE as i64)?;
    // The log must be empty for `preallocate_log`.
    connection.query_row("pragma wal_checkpoint(truncate)", (), |_| Ok(()))
}

fn sqlite_error(error: rusqlite::Error, path: &Path) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::Damaged { path: path.to_owned(), detail: error.to_string() }
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            StoreError::ReadOnly { path: path.to_owned() }
        }
        _ => error.into(),
    }
}
