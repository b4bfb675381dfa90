//! Attached workers: the size of a pool of remote kinds follows their slots.

use std::sync::Arc;

use tokio::{sync::mpsc, time::Instant};

use super::{Pool, Pools, inner::PoolInner, lease::WorkerHandlers, shard::Shared};
use crate::{
    handler::{
        NewWorker, RemoteWorkers,
        remote::{Attachment, Order},
    },
    phase::Phase,
    scheduler::Bounds,
};

/// Largest number of workers of a pool.
const MAX_WORKERS: usize = 65_536;

/// Why a worker cannot attach.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
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
        if workers.slots() + worker.concurrency > MAX_WORKERS {
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
        self.inner().remote_workers().cloned()
    }
}

impl PoolInner {
    /// The attached workers that run the pool's remote kinds.
    pub(super) fn remote_workers(&self) -> Option<&Arc<RemoteWorkers>> {
        self.served().find_map(|(_, kind)| kind.remote_workers())
    }
}

impl Shared {
    /// Adjusts the number of the pool's workers to the slots of attached workers, now and after each change. Workers
    /// that serve no kind any more are asked to leave.
    pub(super) fn follow_remote(&self) {
        for (index, kind) in &self.kinds {
            let Some(workers) = kind.remote_workers() else { continue };
            if !self.is_served(index) {
                if self.remote_workers().is_none_or(|served| !Arc::ptr_eq(served, workers)) {
                    workers.close();
                }
                continue;
            }
            let pool = self.downgrade();
            workers.on_resize(move || {
                if let Some(inner) = pool.upgrade() {
                    Self::from(inner).fit_to_remote();
                }
            });
        }
        self.fit_to_remote();
    }

    fn fit_to_remote(&self) {
        let Some(workers) = self.remote_workers() else { return };
        let now = Instant::now();
        let gone = self.drive(|core, effects| {
            // Read under the lock, so that the last of two concurrent changes wins.
            let slots = workers.slots();
            core.resize(now, Bounds { min: slots, max: slots }, WorkerHandlers::fresh, effects)
        });
        self.retire(gone);
    }

    /// Ends the calls of attached workers, after the last job.
    pub(super) fn end_remote(&self) {
        for (_, kind) in &self.kinds {
            kind.remote_workers().into_iter().for_each(|workers| workers.end());
        }
    }
}
