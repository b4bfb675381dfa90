//! Why a store cannot be opened, or cannot answer.

use std::path::PathBuf;

/// A store failed. What it had acknowledged is kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The session's lease has ended, and another session may run its jobs. Open a new one.
    #[error("the lease of the session has ended")]
    SessionLost,
    /// The page token is not one that this store gave.
    #[error("the page token is not valid; list from the start")]
    InvalidPageToken,
    /// The disk is full. Try again when there is room: the operation was not kept. If the server restarts before it
    /// writes again, the operation may be found kept after all.
    #[error("the disk of the store is full; make room on it")]
    DiskFull,
    /// The file or its directory cannot be written.
    #[error("{} cannot be written; set `store.path` to a file in a writable directory, or for a trial `store.memory`", path.display())]
    ReadOnly {
        /// File of the store.
        path: PathBuf,
    },
    /// Another process has the file open as its store.
    #[error("{} is in use by another server; give each its own `store.path`, or let them share a database by `store.url`", path.display())]
    InUse {
        /// File of the store.
        path: PathBuf,
    },
    /// The file, or its write-ahead log, is damaged. Opening it would lose acknowledged jobs without a word.
    #[error("{} is damaged: {detail}; restore it from a backup, or move it away", path.display())]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// What was found.
        detail: String,
    },
    /// The store was written by a newer version of the program.
    #[error("the store has version {found}, and this program knows {known}; use a newer program")]
    Newer {
        /// Version of the store.
        found: i64,
        /// Newest version that this program knows.
        known: i64,
    },
    /// A file that the store needs cannot be used.
    #[error("{}: {detail}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The database cannot be reached, or refuses connections. Try again later.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The database refused an operation.
    #[error("the database failed: {0}")]
    Database(String),
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
}
