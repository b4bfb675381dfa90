//! Copies the file of a store while a server has it open.

use std::{fs::OpenOptions, io, os::unix::fs::OpenOptionsExt as _, path::Path};

use rusqlite::{Connection, OpenFlags};

use super::{
    StoreError,
    check::require_sqlite,
    files::{io_error, real},
    sqlite_error, version_of,
};

/// Writes the state of a store at this moment to a new file, which only its owner may read. A server may have the store
/// open; its log grows until the copy is made. Blocks. Returns the number of jobs.
///
/// # Errors
/// [`StoreError::File`] if there is no store, or the new file exists; [`StoreError::DiskFull`] and
/// [`StoreError::Database`].
pub fn backup_sqlite(path: &Path, new: &Path) -> Result<u64, StoreError> {
    let path = &real(path);
    require_sqlite(path)?;
    let failed = |error| sqlite_error(error, path);
    let source = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(failed)?;
    if version_of(&source, path)? == 0 {
        return Err(StoreError::file(path, "it holds no store; name the file of `store.path`"));
    }
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new);
    made.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => StoreError::file(new, "it exists already; name a new file"),
        _ => io_error(&error, new),
    })?;
    let copy = || -> Result<u64, StoreError> {
        let name = new.to_str().ok_or_else(|| StoreError::file(new, "its name is not UTF-8; name another file"))?;
        source.execute("vacuum into ?1", [name]).map_err(failed)?;
        let made = Connection::open_with_flags(new, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let jobs: i64 = made.query_row("select count(*) from jobs", (), |row| row.get(0))?;
        Ok(jobs.unsigned_abs())
    };
    // A part of a copy must not look like one.
    copy().inspect_err(|_| drop(std::fs::remove_file(new)))
}
