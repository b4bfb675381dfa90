//! Workers that attach from elsewhere, and are sent jobs as long as they stay.
//!
//! [`RemoteWorkers`] knows the workers of the remote kinds of one pool, and their slots. The pool has as many workers as
//! there are slots; a handler takes one of them, and follows its own job ([`job`]). The messages are those of `process`.
//! `src/rpc/attach.rs` speaks to the workers, and `src/pool/remote.rs` fits the pool.

use std::sync::Arc;

use super::{Context, Handler, Kind};
use crate::model::{HandlerError, Job, Output};

mod job;
mod workers;

pub use workers::{AttachedWorkerStats, NewWorker, RemoteWorkers};
pub(crate) use workers::{Attachment, Order};

/// Hands each job to a worker that has a free slot.
struct RemoteHandler {
    workers: Arc<RemoteWorkers>,
}

impl Handler for RemoteHandler {
    async fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        let run = self.workers.begin(&job, &cx).await?;
        drop(job);
        run.follow(&cx).await
    }
}

impl RemoteWorkers {
    /// A kind called `name` whose jobs these workers run.
    #[must_use]
    pub fn kind(self: &Arc<Self>, name: &str) -> Kind {
        let workers = Arc::clone(self);
        Kind::new(name, move || RemoteHandler { workers: Arc::clone(&workers) }).run_remotely(Arc::clone(self))
    }
}
