//! The store in SQLite: in one file, for a single server, or in memory. Opening a file locks it, checks the write-ahead
//! log, migrates the schema, and applies the settings.

mod sqlite_connection;
#[cfg(test)]
mod tests;
mod wal;

use std::{
    ffi::OsString,
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rusqlite::{ErrorCode, OpenFlags};
use sqlite_connection::SqliteConnection;
use tokio_util::sync::CancellationToken;

use super::{Bounds, Clock, JobStore, StoreError, Timestamp, Wakes, engine::Engine, sql::SqlStore};

/// One entry per schema version. Entries are never changed; new ones are appended.
const MIGRATIONS: &[&str] = &[include_str!("sqlite/0001.sql")];
/// The first bytes of each SQLite file that is not empty.
const MAGIC: &[u8] = b"SQLite format 3\0";
/// SQLite's `application_id` of a store.
const APPLICATION: i64 = 2_004_116_322;
/// Initial size of the log, so that commits need not grow the file.
const WAL_SIZE: usize = 16 << 20;
/// Prepared statements that a connection keeps.
const STATEMENTS: usize = 64;
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
    #[must_use]
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
    let (connection, lock) = open(&options.path)?;
    let writer = SqliteConnection::of_writer(connection, lock, options, clock.clone())?;
    // A session ends with its process.
    let mut engine = Engine::new(writer, options.bounds, Arc::default());
    engine.begin()?;
    engine.end_leases(Timestamp::from_millis(i64::MAX))?;
    let (wakes, closed) = (Arc::new(Wakes::default()), CancellationToken::new());
    wakes.announce(&engine.commit()?);
    let path = options.path.clone();
    let reader = move || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = rusqlite::Connection::open_with_flags(&path, flags)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        Ok(SqliteConnection::new(connection, clock.clone()))
    };
    Ok(Arc::new(SqlStore::start(vec![engine.rows], Some(Arc::new(reader)), options.bounds, wakes, closed)?))
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

/// Facts about a store's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqliteFacts {
    /// Version of its schema; 0 if the file is empty.
    pub version: usize,
    /// Newest version that this program knows.
    pub known: usize,
    /// All jobs, also ended ones.
    pub jobs: u64,
    /// Jobs that have not ended.
    pub unfinished: u64,
    /// Size of the file, without its log.
    pub file_bytes: u64,
}

/// Checks a file that no server has open. Changes no job and no schema, but may create the lock file and merge the log.
/// Blocks while it reads the whole file.
///
/// # Errors
/// The errors of [`open_sqlite`], and [`StoreError::File`] if there is no file.
pub fn inspect_sqlite(path: &Path) -> Result<SqliteFacts, StoreError> {
    let path = &real(path);
    let unusable = |detail: String| StoreError::File { path: path.to_owned(), detail };
    let read = || -> io::Result<_> {
        let (mut file, mut magic) = (File::open(path)?, Vec::new());
        io::Read::by_ref(&mut file).take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        Ok((file.metadata()?, magic))
    };
    let (file, magic) = read().map_err(|error| unusable(format!("{error}; name the file of `store.path`")))?;
    if !magic.is_empty() && magic != MAGIC {
        // Without this check, a lock would be left beside a file of another program.
        return Err(unusable("it is not an SQLite database; name the file of `store.path`".to_owned()));
    }
    let (connection, _lock, version) = open_as_it_is(path)?;
    let failed = |error| sqlite_error(error, path);
    let found: String = connection.query_row("pragma integrity_check(1)", (), |row| row.get(0)).map_err(failed)?;
    if found != "ok" {
        return Err(StoreError::Damaged { path: path.to_owned(), detail: found });
    }
    let count = |sql| match version {
        0 => Ok(0),
        _ => connection.query_row(sql, (), |row| row.get::<_, i64>(0)).map_err(failed),
    };
    Ok(SqliteFacts {
        version,
        known: MIGRATIONS.len(),
        jobs: count("select count(*) from jobs")?.unsigned_abs(),
        unfinished: count("select count(*) from jobs where ended_at is null")?.unsigned_abs(),
        file_bytes: file.len(),
    })
}

/// Resolves links: SQLite keeps its log in the directory of the real file.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The writer's connection, and the lock that excludes other processes.
fn open(path: &Path) -> Result<(rusqlite::Connection, File), StoreError> {
    let (mut connection, lock, found) = open_as_it_is(path)?;
    set_up(&mut connection, found).map_err(|error| sqlite_error(error, path))?;
    preallocate_log(&beside(path, "-wal"))?;
    Ok((connection, lock))
}

/// Locks and checks a file. Returns a connection and the version of its schema: 0 if the file is new.
fn open_as_it_is(path: &Path) -> Result<(rusqlite::Connection, File, usize), StoreError> {
    let lock = lock(path)?;
    let log = beside(path, "-wal");
    wal::verify(&log)?;
    let damaged = |detail: &str| StoreError::Damaged { path: path.to_owned(), detail: detail.to_owned() };
    if !path.exists() && log.exists() {
        return Err(damaged("its log exists, but the file does not"));
    }
    let failed = |error| sqlite_error(error, path);
    let connection = rusqlite::Connection::open(path).map_err(failed)?;
    let number = |sql| connection.query_row(sql, (), |row| row.get::<_, i64>(0)).map_err(failed);
    if number("select count(*) from sqlite_schema")? > 0 && number("pragma application_id")? != APPLICATION {
        return Err(damaged("it belongs to another program"));
    }
    if connection.is_readonly("main").map_err(failed)? {
        return Err(StoreError::ReadOnly { path: path.to_owned() });
    }
    let (found, known) = (number("pragma user_version")?, MIGRATIONS.len() as i64);
    let version = usize::try_from(found).ok().filter(|_| found <= known).ok_or(StoreError::Newer { found, known })?;
    Ok((connection, lock, version))
}

fn migrate(connection: &mut rusqlite::Connection, found: usize) -> rusqlite::Result<()> {
    for (step, sql) in MIGRATIONS.iter().enumerate().skip(found) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(sql)?;
        transaction.pragma_update(None, "user_version", step as i64 + 1)?;
        transaction.commit()?;
    }
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(())
}

fn set_up(connection: &mut rusqlite::Connection, found: usize) -> rusqlite::Result<()> {
    migrate(connection, found)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
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

/// Locks a file beside the database: SQLite's own locks would let a second writer in between transactions.
fn lock(path: &Path) -> Result<File, StoreError> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(beside(path, ".lock"));
    let file = file.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            let detail = "its directory does not exist; make it, or set another `store.path`".to_owned();
            StoreError::File { path: path.to_owned(), detail }
        }
        _ => io_error(&error, path),
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(io_error(&error, path)),
    }
}

/// Grows an empty log to [`WAL_SIZE`]. SQLite treats a log without a header as empty, and overwrites it from the start.
fn preallocate_log(log: &Path) -> Result<(), StoreError> {
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).open(log)?;
        if file.metadata()?.len() == 0 {
            file.write_all(&vec![0; WAL_SIZE])?;
            file.sync_all()?;
        }
        Ok(())
    };
    write().map_err(|error| io_error(&error, log))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
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
