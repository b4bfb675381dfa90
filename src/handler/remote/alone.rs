//! A worker that is kept for one job, which must run alone: the worker of that job was lost again and again.

use std::sync::Arc;

use super::{RemoteWorkers, State, Worker};

/// All slots of a worker, for one job. Dropping it gives them back.
pub(super) struct Kept {
    pub(super) workers: Arc<RemoteWorkers>,
    worker: Option<u64>,
}

impl Kept {
    pub(super) fn nothing(workers: &Arc<RemoteWorkers>) -> Self {
        Self { workers: Arc::clone(workers), worker: None }
    }
}

impl State {
    /// Keeps the worker with the fewest jobs, or another one if it can no longer be used. Returns it once it has no job
    /// that is awaited.
    pub(super) fn keep(&mut self, kept: &mut Kept) -> Option<u64> {
        let is_usable = |worker: &Worker| !worker.is_leaving && worker.slots() > 0;
        let known = kept.worker.and_then(|id| self.workers.get(&id));
        if !known.is_some_and(is_usable) {
            self.release(kept.worker.take());
            let others = self.workers.iter_mut().filter(|(_, worker)| is_usable(worker) && !worker.is_kept);
            let (id, worker) = others.min_by_key(|(_, worker)| worker.jobs.len())?;
            worker.is_kept = true;
            kept.worker = Some(*id);
        }
        kept.worker.filter(|id| self.workers.get(id).is_some_and(|worker| worker.jobs.len() == worker.abandoned()))
    }

    fn release(&mut self, worker: Option<u64>) {
        let Some((id, worker)) = worker.and_then(|id| Some((id, self.workers.get_mut(&id)?))) else { return };
        worker.is_kept = false;
        self.list(id);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.worker.is_some() {
            self.workers.state.lock().release(self.worker);
            self.workers.has_freed();
        }
    }
}
