//! The files of a store: only their owner may read them, and only one process may write them.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions, Permissions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use super::StoreError;

/// Mode of all files: payloads are for their owner alone.
const PRIVATE: u32 = 0o600;

/// The files of a store as they were opened: device and inode of each. SQLite goes on in a file that was removed or
/// replaced, and what it stores there is lost with the process.
pub(super) struct Opened(Vec<(PathBuf, Identity)>);

type Identity = Option<(u64, u64)>;

impl Opened {
    pub(super) fn of(path: &Path) -> Self {
        let files = ["", "-wal", ".lock"].map(|suffix| beside(path, suffix));
        Self(files.map(|file| (file.clone(), identity(&file))).into())
    }

    /// Fails while one of the paths leads to another file, or to none.
    pub(super) fn require(&self) -> Result<(), StoreError> {
        let Some((path, _)) = self.0.iter().find(|(path, opened)| identity(path) != *opened) else { return Ok(()) };
        Err(StoreError::file(path, "it was removed or replaced while the server runs; stop the server, and restore it"))
    }
}

fn identity(path: &Path) -> Identity {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Resolves links: SQLite keeps its log in the directory of the real file.
pub(super) fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Locks a file beside the database: SQLite's own locks would let a second writer in between transactions.
pub(super) struct Lock(File);

impl Lock {
    pub(super) fn take(path: &Path) -> Result<Self, StoreError> {
        let file = create(&beside(path, ".lock")).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                StoreError::file(path, "its directory does not exist; make it, or set another `store.path`")
            }
            _ => io_error(&error, path),
        })?;
        Self::held(file.try_lock(), file, path)
    }

    /// The lock of a program that only reads: it keeps servers away. Without the lock's file, no server has the store
    /// open, and none is made.
    pub(super) fn take_to_read(path: &Path) -> Result<Option<Self>, StoreError> {
        match File::open(beside(path, ".lock")) {
            Ok(file) => Self::held(file.try_lock_shared(), file, path).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error(&error, path)),
        }
    }

    fn held(locked: Result<(), TryLockError>, file: File, path: &Path) -> Result<Self, StoreError> {
        match locked {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => Err(io_error(&error, path)),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A child process that is being started has a copy of the descriptor, which would keep the lock until then.
        let _ = self.0.unlock();
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(PRIVATE).open(path)
}

/// Creates the database file if there is none, and takes the files of the store from others. SQLite gives its log the
/// mode of the database.
pub(super) fn make_private(path: &Path) -> Result<(), StoreError> {
    if !path.exists() {
        create(path).map_err(|error| io_error(&error, path))?;
    }
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let file = beside(path, suffix);
        if fs::metadata(&file).is_ok_and(|found| found.permissions().mode() & 0o077 != 0) {
            // Fails only where another user owns the file, and decides about its mode.
            let _ = fs::set_permissions(&file, Permissions::from_mode(PRIVATE));
        }
    }
    Ok(())
}

/// Grows an empty log. SQLite treats a log without a header as empty, and overwrites it from the start.
pub(super) fn preallocate_log(log: &Path, size: usize) -> Result<(), StoreError> {
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).open(log)?;
        if file.metadata()?.len() == 0 {
            file.write_all(&vec![0; size])?;
            file.sync_all()?;
        }
        Ok(())
    };
    write().map_err(|error| io_error(&error, log))
}

pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

pub(super) fn io_error(error: &io::Error, path: &Path) -> StoreError {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            StoreError::ReadOnly { path: path.to_owned() }
        }
        io::ErrorKind::StorageFull => StoreError::DiskFull,
        _ => StoreError::Database(format!("{}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As while a child process is started, which has the descriptor until it runs its own program.
    #[test]
    fn a_lock_ends_with_its_owner_though_a_child_has_a_copy() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("jobs.db");
        let lock = Lock::take(&path).expect("a lock");
        let copy = lock.0.try_clone().expect("a copy");
        assert!(matches!(Lock::take(&path), Err(StoreError::InUse { .. })));
        drop(lock);
        Lock::take(&path).expect("a lock");
        drop(copy);
    }
}
