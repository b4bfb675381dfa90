//! One attached worker: passes its messages on to its jobs.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Order, RemoteWorkers, State};
use crate::handler::{
    protocol::{FromWorker, ToWorker},
    worker_job::JobEvent,
};

/// An attached worker. Dropping it removes its slots and ends its jobs.
pub(crate) struct Attachment {
    pub(super) workers: Arc<RemoteWorkers>,
    pub(super) id: u64,
    pub(super) orders: mpsc::Sender<Order>,
    pub(super) done: CancellationToken,
}

impl Attachment {
    /// Passes a message of the worker on. Waits if the job reads its output slowly.
    ///
    /// # Errors
    /// How the message violates the protocol.
    pub(crate) async fn take(&self, message: FromWorker, bytes: Bytes) -> Result<(), &'static str> {
        let (id, event) = JobEvent::of(message, bytes).ok_or("it is ready twice")?;
        self.pass_on(&id, event).await
    }

    /// Handles a message with more than `limit` bytes: the job ends. Unless the message was its answer, the worker is
    /// asked to stop it.
    ///
    /// # Errors
    /// The same as for [`take`](Self::take).
    pub(crate) async fn refuse(&self, id: &str, limit: usize, is_answer: bool) -> Result<(), &'static str> {
        self.pass_on(id, JobEvent::TooLarge { limit, is_answer }).await
    }

    async fn pass_on(&self, id: &str, event: JobEvent) -> Result<(), &'static str> {
        let events = if event.is_answer() { self.answer(id) } else { self.events(id) }?;
        let is_piece = matches!(event, JobEvent::Piece(_));
        let is_unread_piece = matches!(event, JobEvent::TooLarge { is_answer: false, .. });
        // A job that was given up has no receiver.
        let is_heard = match (events, event) {
            (None, _) => false,
            // Progress may be dropped if a job is behind.
            (Some(events), progress @ JobEvent::Progress { .. }) => events.try_send(progress).is_ok(),
            (Some(events), event) => events.send(event).await.is_ok(),
        };
        // A job with a receiver reports its own pieces as passed on.
        if is_unread_piece || is_piece && !is_heard {
            self.workers.send(self.id, ToWorker::Taken { id: id.to_owned() });
        }
        Ok(())
    }

    /// Gives the worker no more jobs. `tell` says whether to send it a message about that.
    pub(crate) fn leave(&self, tell: bool) {
        self.workers.state.lock().workers.get_mut(&self.id).into_iter().for_each(|worker| worker.leave(tell));
        self.workers.resized();
    }

    /// Returns when the server has no more work for the worker. Cancel safe.
    pub(crate) async fn done(&self) {
        self.done.cancelled().await;
    }

    /// Returns when no more messages can reach the worker. Cancel safe.
    pub(crate) async fn broken(&self) {
        self.orders.closed().await;
    }

    fn events(&self, id: &str) -> Result<Option<mpsc::Sender<JobEvent>>, &'static str> {
        let state = self.workers.state.lock();
        let worker = state.workers.get(&self.id).ok_or(UNKNOWN)?;
        id.parse().ok().and_then(|id: u64| worker.jobs.get(&id).cloned()).ok_or(UNKNOWN)
    }

    /// The sender for the last event of a job, which frees the slot.
    fn answer(&self, id: &str) -> Result<Option<mpsc::Sender<JobEvent>>, &'static str> {
        let mut state = self.workers.state.lock();
        let State { workers, free, .. } = &mut *state;
        let worker = workers.get_mut(&self.id).ok_or(UNKNOWN)?;
        let was_full = !worker.has_free_slot();
        let events = id.parse().ok().and_then(|id: u64| worker.jobs.remove(&id)).ok_or(UNKNOWN)?;
        worker.answered += 1;
        if was_full && worker.has_free_slot() {
            free.push_back(self.id);
        }
        let is_resized = worker.is_leaving || events.is_none();
        if worker.is_leaving && worker.jobs.is_empty() {
            worker.done.cancel();
        }
        drop(state);
        if is_resized {
            self.workers.resized();
        }
        self.workers.freed.notify_waiters();
        Ok(events)
    }
}

const UNKNOWN: &str = "it names a job that the worker does not have";

impl Drop for Attachment {
    fn drop(&mut self) {
        let worker = {
            let mut state = self.workers.state.lock();
            state.free.retain(|worker| *worker != self.id);
            state.workers.remove(&self.id)
        };
        // Slots are removed before jobs, so that ending these jobs frees no slot for another job.
        self.workers.resized();
        drop(worker);
        self.workers.freed.notify_waiters();
    }
}
