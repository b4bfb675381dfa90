//! Opens the file of a store: the lock, the guard of the log, the migrations, the settings.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{SqliteFacts, StoreError, wal};

/// Each is one step of the schema. They are never changed, only added to.
const MIGRATIONS: &[&str] = &[include_str!("0001.sql")];
const APPLICATION: i64 = 2_004_116_322;
/// Size of the log from the start, so that a commit need not grow the file.
const WAL_SIZE: usize = 16 << 20;
const STATEMENTS: usize = 64;
/// Memory for pages of the database, in KiB.
const CACHE_KIB: i64 = 32_768;

/// The writer's connection, and the lock that keeps others out while it is held.
pub(super) fn open(path: &Path) -> Result<(Connection, File), StoreError> {
    let lock = lock(path)?;
    let log = beside(path, "-wal");
    wal::verify(&log)?;
    if !path.exists() && log.exists() {
        return Err(StoreError::Damaged {
            path: path.to_owned(),
            detail: "its log is there, and it is not".to_owned(),
        });
    }
    let failed = |error| sqlite_error(error, path);
    let mut connection = Connection::open(path).map_err(failed)?;
    let found = check_version(&connection, path)?;
    set_up(&mut connection, found).map_err(failed)?;
    reserve(&log)?;
    Ok((connection, lock))
}

/// Looks at a file that no server has open, and changes nothing.
pub(super) fn inspect(path: &Path) -> Result<SqliteFacts, StoreError> {
    let file =
        path.metadata().map_err(|error| StoreError::File { path: path.to_owned(), detail: error.to_string() })?;
    let _lock = lock(path)?;
    wal::verify(&beside(path, "-wal"))?;
    let failed = |error| sqlite_error(error, path);
    let connection = Connection::open(path).map_err(failed)?;
    let version = check_version(&connection, path)?;
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

/// A further connection, which only reads.
pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// The version of the schema in the file; zero if it is new.
fn check_version(connection: &Connection, path: &Path) -> Result<usize, StoreError> {
    let number = |sql| connection.query_row(sql, (), |row| row.get(0)).map_err(|error| sqlite_error(error, path));
    let tables: i64 = number("select count(*) from sqlite_schema")?;
    if tables > 0 && number("pragma application_id")? != APPLICATION {
        let detail = "it is a database of another program".to_owned();
        return Err(StoreError::Damaged { path: path.to_owned(), detail });
    }
    if connection.is_readonly("main").map_err(|error| sqlite_error(error, path))? {
        return Err(StoreError::ReadOnly { path: path.to_owned() });
    }
    let (found, known) = (number("pragma user_version")?, MIGRATIONS.len() as i64);
    usize::try_from(found).ok().filter(|_| found <= known).ok_or(StoreError::Newer { found, known })
}

fn set_up(connection: &mut Connection, found: usize) -> rusqlite::Result<()> {
    for (step, sql) in MIGRATIONS.iter().enumerate().skip(found) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(sql)?;
        transaction.pragma_update(None, "user_version", step as i64 + 1)?;
        transaction.commit()?;
    }
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    // Empties the log.
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

/// Locks a file beside the database: SQLite's own locks would admit a second writer between transactions.
fn lock(path: &Path) -> Result<File, StoreError> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(beside(path, ".lock"));
    let file = file.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            let detail = "its directory does not exist; make it, or set another `store.path`".to_owned();
            StoreError::File { path: path.to_owned(), detail }
        }
        _ => super::io_error(&error, path),
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(super::io_error(&error, path)),
    }
}

/// Grows the empty log. SQLite takes a log without a header as empty, and writes over it from the start.
fn reserve(log: &Path) -> Result<(), StoreError> {
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).open(log)?;
        if file.metadata()?.len() == 0 {
            file.write_all(&vec![0; WAL_SIZE])?;
            file.sync_all()?;
        }
        Ok(())
    };
    write().map_err(|error| super::io_error(&error, log))
}

pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}
