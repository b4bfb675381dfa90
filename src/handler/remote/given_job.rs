//! One job of an attached worker: how it gets a slot, and what becomes of it.

use std::sync::{Arc, atomic::Ordering};

use tokio::sync::mpsc;

use super::{LOSSES, Loss, RemoteWorkers, State, alone::Kept};
use crate::{
    handler::{
        Context,
        protocol::{Failed, ToWorker},
        worker_job::{JobEvent, WorkerJob},
    },
    model::{HandlerError, Job},
};

/// A job that was given to a worker.
pub(super) struct Given {
    pub(super) worker: u64,
    pub(super) id: u64,
    pub(super) events: mpsc::Receiver<JobEvent>,
    pub(super) loss: Arc<Loss>,
}

/// Whether a job waits for a free slot.
struct Turn<'a> {
    workers: &'a RemoteWorkers,
    waits: bool,
}

impl Turn<'_> {
    fn set(&mut self, state: &mut State, waits: bool) {
        state.waiting = state.waiting + usize::from(waits) - usize::from(self.waits);
        self.waits = waits;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.waits {
            self.workers.state.lock().waiting -= 1;
        }
    }
}

impl RemoteWorkers {
    /// Gives a job to a worker as soon as one has a free slot.
    pub(super) async fn begin(self: &Arc<Self>, job: &Job, cx: &Context) -> Result<RemoteJob, HandlerError> {
        let (mut kept, mut turn) = (Kept::nothing(self), Turn { workers: self, waits: false });
        let is_alone = cx.crashes() >= LOSSES;
        let give = || {
            let mut state = self.state.lock();
            // Unless the kinds are gone, another worker may attach.
            if state.is_closed && state.workers.is_empty() {
                return Err(HandlerError::Unavailable { message: "no worker is attached".to_owned() });
            }
            // A job that comes is behind those that wait.
            let is_next = is_alone || turn.waits || state.waiting == 0;
            let given = if is_next { state.give(job, cx, &mut kept) } else { None };
            turn.set(&mut state, given.is_none() && !is_alone);
            if given.is_some() && !state.free.is_empty() {
                self.freed.notify_one();
            }
            Ok(given)
        };
        let changed = if is_alone { &self.changed } else { &self.freed };
        let given = cx.wait_for(changed, job.queue_timeout, give).await?;
        Ok(RemoteJob { kept, given, is_answered: false })
    }

    /// Gives a job up. Its slot stays occupied until the worker answers.
    fn abandon(&self, worker: u64, id: u64) {
        let is_open =
            self.state.lock().workers.get_mut(&worker).and_then(|worker| worker.jobs.get_mut(&id)).map(Option::take);
        if is_open.is_some() {
            self.resized();
        }
    }
}

/// A job of an attached worker.
pub(super) struct RemoteJob {
    kept: Kept,
    given: Given,
    is_answered: bool,
}

impl WorkerJob for RemoteJob {
    async fn next(&mut self) -> Option<JobEvent> {
        let event = self.given.events.recv().await;
        self.is_answered = event.as_ref().is_none_or(JobEvent::is_answer);
        event
    }

    async fn stop(&mut self, reason: &str, cx: &Context) {
        let grace = *self.kept.workers.cancel_grace.lock();
        self.kept.workers.send(self.given.worker, ToWorker::cancel(self.given.id, reason, grace));
        // The pool's stop ladder limits this wait. If the pool does not stop the job, it is given up at once.
        while cx.is_cancelled() && !self.is_answered {
            if let Some(JobEvent::Piece(_)) = self.next().await {
                self.passed_on();
            }
        }
    }

    fn passed_on(&self) {
        self.kept.workers.send(self.given.worker, ToWorker::taken(self.given.id));
    }

    fn failed(&self, failed: Failed, _cx: &Context) -> HandlerError {
        failed.error("the worker")
    }

    fn lost(&self, cx: &Context) -> HandlerError {
        let Loss { worker, because, was_shared } = &*self.given.loss;
        if was_shared.load(Ordering::Relaxed) {
            cx.note_shared_crash();
        }
        let cause = because.get().map(|cause| format!(": {cause}")).unwrap_or_default();
        HandlerError::Lost { message: format!("{worker} is no longer attached{cause}") }
    }
}

impl Drop for RemoteJob {
    fn drop(&mut self) {
        if !self.is_answered {
            self.kept.workers.abandon(self.given.worker, self.given.id);
        }
    }
}
