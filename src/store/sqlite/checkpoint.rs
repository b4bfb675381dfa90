//! Moves pages from the log to the database. A thread does most of that while commits go on, and the writer waits for the
//! last pages only.

use std::{path::Path, sync::mpsc::sync_channel, thread::JoinHandle};

use rusqlite::{Connection, hooks::Wal};

use super::StoreError;
use crate::task::spawn_thread;

/// Pages in the log from which on the thread moves them. The log has room for 4,000.
const MOVE_BESIDE: i32 = 2500;
/// Pages in the log at which the writer moves what is left, so that the log starts anew.
const MOVE_ALL: i32 = 3500;

/// The thread, which ends once its writer's connection is closed.
pub(super) struct Checkpoints(Option<JoinHandle<()>>);

impl Checkpoints {
    /// Starts the thread for the connection that writes to this file.
    pub(super) fn start(writer: &mut Connection, path: &Path) -> Result<Self, StoreError> {
        let beside = Connection::open(path)?;
        let (requests, requested) = sync_channel(1);
        writer.wal_hook(Some(move |log: &mut Wal, pages| {
            // One that fails, or finds the other at work, is tried again with the next commit.
            if pages >= MOVE_ALL {
                let _ = log.checkpoint();
            } else if pages >= MOVE_BESIDE {
                let _ = requests.try_send(());
            }
            Ok(())
        }))?;
        let work = move || {
            for () in requested {
                let _ = beside.query_row("pragma wal_checkpoint(passive)", (), |_| Ok(()));
            }
        };
        let thread = spawn_thread("checkpoint".to_owned(), work);
        Ok(Self(Some(thread.map_err(|error| StoreError::Unavailable(error.to_string()))?)))
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        // A panic was told where it happened.
        let _ = self.0.take().map(JoinHandle::join);
    }
}
