//! How workers attach to the pool of their kinds.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::{Pool, Pools};
use crate::{
    handler::{
        External, NewWorker, RemoteWorkers,
        remote::{Attachment, Order},
    },
    phase::Phase,
};

/// Largest number of workers of a pool.
const MAX_WORKERS: usize = 65_536;

/// Why a worker cannot attach.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AttachError {
    /// The named kinds are not all remote kinds of one pool.
    #[error("{0}")]
    Kinds(String),
    /// The pool would have too many workers.
    #[error("the pool would have more than {MAX_WORKERS} workers")]
    TooMany,
    /// The pool is draining or has ended.
    #[error("the server is draining")]
    Draining,
}

impl Pools {
    /// Attaches a worker that runs `kinds`. Returns its attachment, and the messages to send to it.
    ///
    /// # Errors
    /// [`AttachError`]; then nothing has changed.
    pub(crate) fn attach(
        &self,
        kinds: &[String],
        worker: NewWorker,
    ) -> Result<(Attachment, mpsc::Receiver<Order>), AttachError> {
        let (pool, workers) = self.runners(kinds).map_err(AttachError::Kinds)?;
        if pool.phase() >= Phase::Stopping {
            return Err(AttachError::Draining);
        }
        if workers.slots().unwrap_or(0) + worker.concurrency > MAX_WORKERS {
            return Err(AttachError::TooMany);
        }
        workers.attach(worker).ok_or(AttachError::Draining)
    }

    /// The pool whose remote kinds are named. All of its remote kinds must be named.
    fn runners(&self, kinds: &[String]) -> Result<(&Pool, Arc<RemoteWorkers>), String> {
        let named = |workers: &RemoteWorkers| workers.kinds().iter().any(|kind| kinds.contains(kind));
        let remote = self.all().iter().filter_map(|pool| Some((pool, pool.remote_workers()?)));
        let mut remote = remote.filter(|(_, workers)| named(workers));
        if kinds.is_empty() {
            return Err("name the kinds that the worker runs".to_owned());
        }
        let Some((pool, workers)) = remote.next() else {
            return Err(format!("no workers attach here for {}; set `remote = true` in [kind.NAME]", kinds.join(", ")));
        };
        if let Some((other, _)) = remote.next() {
            let (one, other) = (pool.name(), other.name());
            return Err(format!("they run in the pools {one} and {other}; attach to each with its own kinds"));
        }
        match workers.kinds().iter().find(|kind| !kinds.contains(kind)) {
            Some(missing) => Err(format!("workers of pool {} run {missing} too, which is not named", pool.name())),
            None => Ok((pool, workers)),
        }
    }
}

impl Pool {
    /// The attached workers of the pool; `None` for a pool with its own workers.
    pub(crate) fn remote_workers(&self) -> Option<Arc<RemoteWorkers>> {
        self.inner().served().find_map(|(_, kind)| kind.external_of())
    }
}
