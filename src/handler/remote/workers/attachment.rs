//! One attached worker: what it says goes to its jobs.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Order, RemoteWorkers, State};
use crate::handler::{
    process::protocol::{Done, FromWorker, OfJob, ToldProgress},
    remote::job::JobNews,
};

/// An attached worker. Dropping it takes its slots away, and ends its jobs.
pub(crate) struct Attachment {
    pub(super) workers: Arc<RemoteWorkers>,
    pub(super) id: u64,
    pub(super) orders: mpsc::Sender<Order>,
    pub(super) done: CancellationToken,
}

impl Attachment {
    /// Passes on what the worker says. It waits for a job that is slow to take its output.
    ///
    /// # Errors
    /// How the message breaks the protocol.
    pub(crate) async fn take(&self, message: FromWorker, bytes: Bytes) -> Result<(), &'static str> {
        match message {
            FromWorker::Ready(_) => return Err("it is ready twice"),
            FromWorker::Output(OfJob { id }) => {
                let news = self.news(&id)?;
                // A job that was given up does not listen, here and below.
                let is_heard = match &news {
                    Some(news) => news.send(JobNews::Piece(bytes)).await.is_ok(),
                    None => false,
                };
                if !is_heard && let Ok(id) = id.parse() {
                    self.workers.took(self.id, id);
                }
            }
            FromWorker::Progress(ToldProgress { id, fraction, message }) => {
                if let Some(news) = self.news(&id)? {
                    // Advice: a job that is behind does without.
                    let _ = news.try_send(JobNews::Progress { fraction, message });
                }
            }
            FromWorker::Done(Done { id, content_type }) => {
                if let Some(news) = self.answer(&id)? {
                    let _ = news.send(JobNews::Done { content_type, last: bytes }).await;
                }
            }
            FromWorker::Failed(failed) => {
                if let Some(news) = self.answer(&failed.id)? {
                    let _ = news.send(JobNews::Failed(failed)).await;
                }
            }
        }
        Ok(())
    }

    /// Ends the job of a message that takes more than `limit` bytes. A job whose answer it was not is asked to stop.
    ///
    /// # Errors
    /// As for [`take`](Self::take).
    pub(crate) async fn refuse(&self, id: &str, limit: usize, is_answer: bool) -> Result<(), &'static str> {
        let news = if is_answer { self.answer(id) } else { self.news(id) }?;
        if let Some(news) = news {
            let _ = news.send(JobNews::TooLarge { limit, is_answer }).await;
        }
        if !is_answer && let Ok(id) = id.parse() {
            self.workers.took(self.id, id);
        }
        Ok(())
    }

    /// The worker gets no more jobs. It is told so, unless it said so itself.
    pub(crate) fn leave(&self, tell: bool) {
        self.workers.state.lock().workers.get_mut(&self.id).into_iter().for_each(|worker| worker.leave(tell));
        self.workers.resized();
    }

    /// Returns when the worker has nothing more to do here. Cancel safe.
    pub(crate) async fn done(&self) {
        self.done.cancelled().await;
    }

    /// Returns when nothing can be sent to the worker any more. Cancel safe.
    pub(crate) async fn broken(&self) {
        self.orders.closed().await;
    }

    fn news(&self, id: &str) -> Result<Option<mpsc::Sender<JobNews>>, &'static str> {
        let state = self.workers.state.lock();
        let worker = state.workers.get(&self.id).ok_or(UNKNOWN)?;
        id.parse().ok().and_then(|id: u64| worker.jobs.get(&id).cloned()).ok_or(UNKNOWN)
    }

    /// The same for the last time, which frees the slot.
    fn answer(&self, id: &str) -> Result<Option<mpsc::Sender<JobNews>>, &'static str> {
        let mut state = self.workers.state.lock();
        let State { workers, free, .. } = &mut *state;
        let worker = workers.get_mut(&self.id).ok_or(UNKNOWN)?;
        let was_full = !worker.has_free_slot();
        let news = id.parse().ok().and_then(|id: u64| worker.jobs.remove(&id)).ok_or(UNKNOWN)?;
        worker.answered += 1;
        if was_full && worker.has_free_slot() {
            free.push_back(self.id);
        }
        let is_resized = worker.is_leaving || news.is_none();
        if worker.is_leaving && worker.jobs.is_empty() {
            worker.done.cancel();
        }
        drop(state);
        if is_resized {
            self.workers.resized();
        }
        self.workers.freed.notify_waiters();
        Ok(news)
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
        // First the slots, then the jobs: none of these frees a slot for another job.
        self.workers.resized();
        drop(worker);
        self.workers.freed.notify_waiters();
    }
}
