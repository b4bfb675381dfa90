//! One attached worker: passes its messages on to its jobs.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{IdleLeave, LOOK, Order, RemoteWorkers, State, Worker};
use crate::{
    handler::{
        protocol::{FromWorker, ToWorker},
        worker_job::{JobEvent, read_id},
    },
    model::HandlerError,
};

/// An attached worker. Dropping it removes its slots and ends its jobs.
pub(crate) struct Attachment {
    pub(super) workers: Arc<RemoteWorkers>,
    pub(super) id: u64,
    pub(super) orders: mpsc::Sender<Order>,
    pub(super) done: CancellationToken,
}

/// How a worker was lost, for its jobs.
#[derive(Default)]
pub(super) struct Loss {
    /// The worker as its callers see it: by name, without its address.
    pub(super) worker: String,
    pub(super) because: OnceLock<String>,
    /// Whether it had several jobs.
    pub(super) was_shared: AtomicBool,
}

impl Attachment {
    /// Passes a message of the worker on. Waits if the job reads its output slowly.
    ///
    /// # Errors
    /// How the message violates the protocol.
    pub(crate) async fn take(&self, message: FromWorker, bytes: Bytes) -> Result<(), &'static str> {
        let (id, event) = JobEvent::of(message, bytes).ok_or("it is ready twice")?;
        self.pass_on(read_id(&id), event).await
    }

    /// Handles a message with more than `limit` bytes: its job ends. Unless the message was its answer, the worker is
    /// asked to stop it.
    ///
    /// # Errors
    /// The same as for [`take`](Self::take).
    pub(crate) async fn refuse(&self, id: &str, limit: usize, is_answer: bool) -> Result<(), &'static str> {
        let error = HandlerError::OutputTooLarge { limit };
        self.pass_on(read_id(id), JobEvent::Unread { error, is_answer }).await
    }

    async fn pass_on(&self, id: u64, event: JobEvent) -> Result<(), &'static str> {
        let is_piece = matches!(event, JobEvent::Piece(_));
        let is_unread_piece = matches!(event, JobEvent::Unread { is_answer: false, .. });
        let Some(events) = self.events(id, &event)? else {
            // The handler of that job may wait for room.
            if is_piece {
                let _ = self.orders.try_send((ToWorker::taken(id), Bytes::new()));
            }
            return Ok(());
        };
        // A job that was given up has no receiver.
        let is_heard = match (events, event) {
            (None, _) => false,
            // Progress may be dropped if a job is behind.
            (Some(events), progress @ JobEvent::Progress { .. }) => events.try_send(progress).is_ok(),
            (Some(events), event) => events.send(event).await.is_ok(),
        };
        // A job with a receiver reports its own pieces as passed on.
        if is_unread_piece || is_piece && !is_heard {
            self.workers.send(self.id, ToWorker::taken(id));
        }
        Ok(())
    }

    /// Gives the worker no more jobs. `tell` says whether to send it a message about that.
    pub(crate) fn leave(&self, tell: bool) {
        let order = tell.then(|| ToWorker::leave(Duration::ZERO));
        if let Some(worker) = self.workers.state.lock().workers.get_mut(&self.id) {
            worker.leave(order);
        }
        self.workers.resized();
    }

    /// Jobs of other servers have so many of the worker's slots. The pool keeps its size: its jobs wait for a free
    /// slot, and this wait counts in its estimates.
    pub(crate) fn share(&self, elsewhere: usize) {
        let mut state = self.workers.state.lock();
        let Some(worker) = state.workers.get_mut(&self.id) else { return };
        (worker.elsewhere, worker.idle_since) = (elsewhere, Instant::now());
        let is_free = worker.has_free_slot();
        state.list(self.id);
        drop(state);
        if is_free {
            self.workers.has_freed();
        }
    }

    /// Asks the worker to leave if it has been idle for too long, and enough others stay. Returns when to ask again.
    pub(crate) fn leave_if_idle(&self, now: Instant) -> Duration {
        let mut state = self.workers.state.lock();
        let staying = |state: &State| state.workers.values().filter(|worker| !worker.is_leaving).count();
        let Some(IdleLeave { after, min }) = state.idle_leave else { return LOOK };
        let Some(worker) = state.workers.get(&self.id) else { return LOOK };
        let is_busy = worker.is_kept || worker.elsewhere > 0 || !worker.jobs.is_empty();
        let idle = if is_busy { Duration::ZERO } else { now.saturating_duration_since(worker.idle_since) };
        if idle < after {
            return (after - idle).min(LOOK);
        }
        if !worker.is_leaving && staying(&state) > min {
            state.workers.get_mut(&self.id).into_iter().for_each(|worker| worker.leave(Some(ToWorker::Idle)));
            drop(state);
            self.workers.resized();
        }
        after.min(LOOK)
    }

    /// Notes why the worker is about to be gone.
    pub(crate) fn lost(&self, cause: &str) {
        if let Some(worker) = self.workers.state.lock().workers.get(&self.id) {
            let _ = worker.loss.because.set(cause.to_owned());
        }
    }

    /// Returns when the server has no more work for the worker. Cancel safe.
    pub(crate) async fn done(&self) {
        self.done.cancelled().await;
    }

    /// Returns when no more messages can reach the worker. Cancel safe.
    pub(crate) async fn broken(&self) {
        self.orders.closed().await;
    }

    /// The sender for an event of a job, which is `None` if the job was given up. An answer frees the slot. Returns
    /// `None` for a message that comes late, and is dropped.
    fn events(&self, id: u64, event: &JobEvent) -> Result<Option<Events>, &'static str> {
        let mut state = self.workers.state.lock();
        let State { workers, last_job, late_messages, .. } = &mut *state;
        let worker = workers.get_mut(&self.id).ok_or(UNKNOWN)?;
        let job = if event.is_answer() { worker.jobs.remove(&id) } else { worker.jobs.get(&id).cloned() };
        let Some(events) = job else {
            // Ids only grow. What comes late about an answered job harms no other one, and neither does progress.
            let is_late = (1..=*last_job).contains(&id) || matches!(event, JobEvent::Progress { .. });
            *late_messages += u64::from(is_late);
            return if is_late { Ok(None) } else { Err(UNKNOWN) };
        };
        if !event.is_answer() {
            return Ok(Some(events));
        }
        worker.answered += 1;
        worker.idle_since = Instant::now();
        let is_resized = worker.is_leaving || events.is_none();
        if worker.is_leaving && worker.jobs.is_empty() {
            worker.done.cancel();
        }
        state.list(self.id);
        drop(state);
        if is_resized {
            self.workers.resized();
        }
        self.workers.has_freed();
        Ok(Some(events))
    }
}

/// The sender for the events of a job; `None` if the job was given up.
type Events = Option<mpsc::Sender<JobEvent>>;

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
        if let Some(Worker { jobs, loss, .. }) = worker {
            loss.was_shared.store(jobs.len() > 1, Ordering::Relaxed);
        }
        self.workers.freed.notify_waiters();
        self.workers.changed.notify_waiters();
    }
}
