//! Workers that attach: a pool of remote kinds has as many workers as these have slots.

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

/// Most workers of a pool, of any sort.
const MAX_WORKERS: usize = 65_536;

/// Why a worker cannot attach.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Its kinds are not those of a pool.
    #[error("{0}")]
    Kinds(String),
    /// The pool would have too many workers.
    #[error("the pool would have more than {MAX_WORKERS} workers")]
    TooMany,
    /// The pool has ended, or is about to.
    #[error("the server is draining")]
    Draining,
}

impl Pools {
    /// Attaches a worker that runs `kinds`, and what it is to be sent.
    ///
    /// # Errors
    /// [`AttachError`], and then nothing has changed.
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

    /// The one pool of whose remote kinds some are named. All of them must be.
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
    /// The workers that attach for its kinds; `None` for a pool with workers of its own.
    pub(crate) fn remote_workers(&self) -> Option<Arc<RemoteWorkers>> {
        self.inner().remote_workers().cloned()
    }
}

impl PoolInner {
    /// The workers that attach for its kinds, which are all served by the same.
    pub(super) fn remote_workers(&self) -> Option<&Arc<RemoteWorkers>> {
        self.served().find_map(|(_, kind)| kind.remote_workers())
    }
}

impl Shared {
    /// Has as many workers as the attached ones have slots, from now on. Those that serve no kind any more are to leave.
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
            // Within the lock: of two changes at once, the last one counts.
            let slots = workers.slots();
            core.resize(now, Bounds { min: slots, max: slots }, WorkerHandlers::fresh, effects)
        });
        self.retire(gone);
    }

    /// Ends the calls of the workers, after the last job.
    pub(super) fn end_remote(&self) {
        for (_, kind) in &self.kinds {
            kind.remote_workers().into_iter().for_each(|workers| workers.end());
        }
    }
}
