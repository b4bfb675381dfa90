//! The errors of a store, and what they say about a retry.

use std::path::{Path, PathBuf};

/// The error of a store. Acknowledged operations stay durable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The lease of the session has ended, and other sessions may run its jobs. Open a new session.
    #[error("the lease of the session has ended")]
    SessionLost,
    /// The disk is full, and the operation failed. Try again when the disk has space. If the server restarts before its
    /// next write, the operation may turn out to be stored.
    #[error("the disk of the store is full; make room on it")]
    DiskFull,
    /// The disk has only the room that is kept for ending existing jobs. Nothing was stored.
    #[error("the disk of the store has no room for new jobs; make room on it")]
    NoRoom,
    /// The file or its directory is not writable.
    #[error("{} cannot be written; set `store.path` to a file in a writable directory, or for a trial `store.memory`", path.display())]
    ReadOnly {
        /// File of the store.
        path: PathBuf,
    },
    /// Another process uses the file as its store.
    #[error("{} is in use by another server; give each its own `store.path`, or let them share a database by `store.url`", path.display())]
    InUse {
        /// File of the store.
        path: PathBuf,
    },
    /// The file, or its write-ahead log, is damaged. Opening it would silently lose acknowledged jobs.
    #[error("{path} is damaged: {detail}; `waterwheel store salvage {path} NEW_FILE` keeps what can be read", path = path.display())]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// The damage.
        detail: String,
    },
    /// An operation met a damaged part of the open file. Others may succeed.
    #[error("the file of the store is damaged: {0}; stop the server, and see `waterwheel store check`")]
    Corrupt(String),
    /// A newer version of the program wrote the store.
    #[error("the store has version {found}, and this program knows {known}; use a newer program")]
    Newer {
        /// Version of the store.
        found: i64,
        /// Newest version that this program knows.
        known: i64,
    },
    /// A file that the store needs is not usable.
    #[error("{}: {detail}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The database is not reachable, or refuses connections. Try again later.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// Another server changed the same rows at the same time. Try again.
    #[error("another server changed the same rows at the same time; try again")]
    Conflict,
    /// The database refused an operation.
    #[error("the database failed: {0}")]
    Database(String),
    /// Too many bytes of jobs are on their way into the store. Nothing was stored.
    #[error("too many bytes of jobs are on their way into the store")]
    Busy,
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// A file is not usable.
    pub(super) fn file(path: &Path, detail: impl ToString) -> Self {
        Self::File { path: path.to_owned(), detail: detail.to_string() }
    }

    /// Whether the store does not work for the time being, whatever it is asked. Wait, and ask again. Any other error
    /// refuses one operation or one row, and would refuse it again.
    pub fn is_outage(&self) -> bool {
        !matches!(self, Self::SessionLost | Self::Busy | Self::Corrupt(_) | Self::Database(_))
    }

    /// Whether the failed operation may have taken effect, or may still take it.
    pub fn is_doubtful(&self) -> bool {
        matches!(self, Self::DiskFull | Self::Unavailable(_))
    }
}
