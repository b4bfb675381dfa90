//! Checks the file of a store that no server has open.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::{
    MIGRATIONS, StoreError, beside,
    files::{Lock, real},
    scan::Scan,
    sqlite_error, verify_files, version_of,
};

/// The first bytes of each SQLite file that is not empty.
pub(super) const MAGIC: &[u8] = b"SQLite format 3\0";
/// Damages that are named.
pub(super) const MOST: usize = 100;

/// Facts about a store's file.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// What is damaged, at most 100 lines; empty if it is intact.
    pub damage: Vec<String>,
}

/// Checks a file that no server has open: its structure, its indexes, and each job with its payload. It changes no
/// file, and makes none. Blocks while it reads the whole file.
///
/// # Errors
/// The errors of [`open_sqlite`](super::open_sqlite), and [`StoreError::File`] if there is no file.
pub fn inspect_sqlite(path: &Path) -> Result<SqliteFacts, StoreError> {
    let path = &real(path);
    let file = require_sqlite(path)?;
    let _lock = Lock::take_to_read(path)?;
    let mut damage = Vec::new();
    if let Some(frame) = verify_files(path)? {
        damage.push(format!("the last transaction of the log is incomplete from frame {frame} on, and left out"));
    }
    let connection = open_unchanged(path).map_err(|error| sqlite_error(error, path))?;
    let version = version_of(&connection, path)?;
    let failed = |error| sqlite_error(error, path);
    let mut check = connection.prepare(&format!("pragma integrity_check({MOST})")).map_err(failed)?;
    let found = check.query_map((), |row| row.get::<_, String>(0)).map_err(failed)?;
    damage.extend(found.map(|line| line.unwrap_or_else(|error| error.to_string())).filter(|line| line != "ok"));
    let mut scan = Scan::new(&connection);
    while version > 0
        && damage.len() < MOST
        && let Some(found) = scan.next(&connection)
    {
        damage.extend(found.faults(&connection));
    }
    damage.truncate(MOST);
    let count = |sql| match version {
        0 => 0,
        _ => connection.query_row(sql, (), |row| row.get::<_, i64>(0)).unwrap_or_default().unsigned_abs(),
    };
    Ok(SqliteFacts {
        version,
        known: MIGRATIONS.len(),
        jobs: count("select count(*) from jobs"),
        unfinished: count("select count(*) from jobs where ended_at is null"),
        file_bytes: file.metadata().map_or(0, |file| file.len()),
        damage,
    })
}

/// Opens a file so that SQLite changes nothing beside it either: it keeps the index of the log in memory, takes no
/// locks, and leaves the log as it is. Without a log, it would make one, unless the file cannot change.
fn open_unchanged(path: &Path) -> rusqlite::Result<Connection> {
    let name: String = path.as_os_str().as_bytes().iter().map(|byte| format!("%{byte:02x}")).collect();
    let how = if beside(path, "-wal").exists() { "vfs=unix-none" } else { "immutable=1" };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(format!("file:{name}?{how}"), flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "locking_mode", "exclusive")?;
    Ok(connection)
}

/// The file, if it is one of SQLite, which the files beside it may belong to.
pub(super) fn require_sqlite(path: &Path) -> Result<File, StoreError> {
    let read = || -> io::Result<_> {
        let (mut file, mut magic) = (File::open(path)?, Vec::new());
        io::Read::by_ref(&mut file).take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        Ok((file, magic))
    };
    let (file, magic) =
        read().map_err(|error| StoreError::file(path, format!("{error}; name the file of `store.path`")))?;
    // A bit of it may be damaged.
    let differ = magic.iter().zip(MAGIC).filter(|(found, expected)| found != expected).count();
    if !magic.is_empty() && (differ > 1 || magic.len() < MAGIC.len()) {
        return Err(StoreError::file(path, "it is not an SQLite database; name the file of `store.path`"));
    }
    Ok(file)
}
