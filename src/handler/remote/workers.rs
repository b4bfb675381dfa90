//! The workers that are attached for the remote kinds of one pool: their slots, their jobs, and what they say.

mod attachment;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

pub(crate) use self::attachment::Attachment;
use super::job::{JobNews, RemoteJob};
use crate::{
    handler::{
        Context, Runner,
        process::protocol::{Cancel, Leave, OfJob, Run, ToWorker},
    },
    model::{HandlerError, Job},
};

/// Pieces of the output of one job that wait for it, and its end. Only a worker that sends more than it may is held up
/// by the slowest of its jobs.
const NEWS: usize = 5;

/// What a worker is sent, with the payload of a job.
pub(crate) type Order = (ToWorker, Bytes);

/// The workers that run the remote kinds of one pool.
#[derive(Default)]
pub struct RemoteWorkers {
    kinds: BTreeSet<String>,
    cancel_grace: Mutex<Duration>,
    state: Mutex<State>,
    /// Notified when a slot is free.
    freed: Notify,
    /// Called when the number of slots changed, without a lock.
    on_resize: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// What a worker says of itself when it attaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewWorker {
    /// Name and version, for people.
    pub name: String,
    /// Where it is, for people.
    pub peer: String,
    /// For people.
    pub labels: BTreeMap<String, String>,
    /// Jobs that it runs at once, at least one.
    pub concurrency: usize,
}

/// One attached worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedWorkerStats {
    /// What it said of itself.
    pub worker: NewWorker,
    /// Jobs that it has.
    pub running: usize,
    /// Jobs of these that were given up, and that it did not answer yet.
    pub abandoned: usize,
    /// Jobs that it answered.
    pub jobs: u64,
    /// Whether it gets no more jobs.
    pub is_leaving: bool,
}

#[derive(Default)]
struct State {
    last_worker: u64,
    last_job: u64,
    workers: BTreeMap<u64, Worker>,
    /// The workers with a free slot, each once; the next job goes to the first.
    free: VecDeque<u64>,
    is_closed: bool,
}

struct Worker {
    about: NewWorker,
    /// Its name and its peer.
    shown: Arc<str>,
    orders: mpsc::Sender<Order>,
    /// Where the news of each job goes; `None` for one that was given up.
    jobs: FxHashMap<u64, Option<mpsc::Sender<JobNews>>>,
    answered: u64,
    is_leaving: bool,
    /// Cancelled when the worker has nothing more to do here.
    done: CancellationToken,
}

impl Worker {
    fn abandoned(&self) -> usize {
        self.jobs.values().filter(|news| news.is_none()).count()
    }

    /// Workers that the pool may have for it.
    fn slots(&self) -> usize {
        if self.is_leaving { self.jobs.len() - self.abandoned() } else { self.about.concurrency - self.abandoned() }
    }

    fn has_free_slot(&self) -> bool {
        !self.is_leaving && self.jobs.len() < self.about.concurrency
    }

    /// Gives it no more jobs, and tells it so unless it knows.
    fn leave(&mut self, tell: bool) {
        if std::mem::replace(&mut self.is_leaving, true) {
            return;
        }
        if tell {
            self.send((ToWorker::Leave(Leave { grace_ms: 0 }), Bytes::new()));
        }
        if self.jobs.is_empty() {
            self.done.cancel();
        }
    }

    fn send(&self, order: Order) {
        // A worker that answers before it reads breaks the protocol: nothing else fills the channel.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.orders.try_send(order) {
            self.done.cancel();
        }
    }
}

impl RemoteWorkers {
    /// None yet, for these kinds. A job that is to stop is given up after `cancel_grace`.
    #[must_use]
    pub fn new(kinds: BTreeSet<String>, cancel_grace: Duration) -> Arc<Self> {
        Arc::new(Self { kinds, cancel_grace: Mutex::new(cancel_grace), ..Self::default() })
    }

    /// Changes the time between asking a job to stop and giving it up.
    pub fn set_cancel_grace(&self, cancel_grace: Duration) {
        *self.cancel_grace.lock() = cancel_grace;
    }

    /// The kinds that each of them runs.
    #[must_use]
    pub fn kinds(&self) -> &BTreeSet<String> {
        &self.kinds
    }

    /// Calls `resized` from now on when the number of slots changes. Only the first call counts.
    pub(crate) fn on_resize(&self, resized: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_resize.set(Box::new(resized));
    }

    /// Jobs that the workers can run at once.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.state.lock().workers.values().map(Worker::slots).sum()
    }

    /// A snapshot.
    #[must_use]
    pub fn stats(&self) -> Vec<AttachedWorkerStats> {
        let stats = |worker: &Worker| AttachedWorkerStats {
            worker: worker.about.clone(),
            running: worker.jobs.len(),
            abandoned: worker.abandoned(),
            jobs: worker.answered,
            is_leaving: worker.is_leaving,
        };
        self.state.lock().workers.values().map(stats).collect()
    }

    /// Adds a worker, and what it is to be sent. `None` where the workers are not needed any more.
    pub(crate) fn attach(self: &Arc<Self>, about: NewWorker) -> Option<(Attachment, mpsc::Receiver<Order>)> {
        // For each job its run, its cancel and its taken pieces, and one word to leave.
        let (orders, to_send) = mpsc::channel((2 + NEWS) * about.concurrency + 1);
        let done = CancellationToken::new();
        let mut state = self.state.lock();
        if state.is_closed {
            return None;
        }
        state.last_worker += 1;
        let id = state.last_worker;
        let shown = format!("{} at {}", about.name, about.peer).into();
        let (jobs, orders_too, done_too) = (FxHashMap::default(), orders.clone(), done.clone());
        state.workers.insert(
            id,
            Worker { about, shown, orders: orders_too, jobs, answered: 0, is_leaving: false, done: done_too },
        );
        state.free.push_back(id);
        drop(state);
        self.resized();
        self.freed.notify_waiters();
        Some((Attachment { workers: Arc::clone(self), id, orders, done }, to_send))
    }

    /// Asks all workers to leave, for good.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.workers.values_mut().for_each(|worker| worker.leave(true));
        drop(state);
        self.resized();
    }

    /// Ends the calls of all workers, for good.
    pub(crate) fn end(&self) {
        self.close();
        self.state.lock().workers.values().for_each(|worker| worker.done.cancel());
    }

    /// Gives a job to a worker, as soon as one has a free slot.
    pub(super) async fn begin(self: &Arc<Self>, job: &Job, cx: &Context) -> Result<RemoteJob, HandlerError> {
        loop {
            let freed = self.freed.notified();
            {
                let mut state = self.state.lock();
                if state.workers.is_empty() {
                    return Err(HandlerError::Unavailable { message: "no worker is attached any more".to_owned() });
                }
                if let Some((worker, id, news)) = state.give(job, cx) {
                    let shown = Arc::clone(&state.workers[&worker].shown);
                    cx.note_runner(Runner::Worker(Arc::clone(&shown)));
                    return Ok(RemoteJob::new(Arc::clone(self), worker, id, news, shown));
                }
            }
            tokio::select! {
                biased;
                _ = cx.cancelled() => return Err(HandlerError::Stopped),
                () = freed => {}
            }
        }
    }

    pub(super) fn cancel(&self, worker: u64, id: u64, reason: &str) {
        if let Some(worker) = self.state.lock().workers.get(&worker) {
            let grace_ms = u64::try_from(self.cancel_grace.lock().as_millis()).unwrap_or(u64::MAX);
            let cancel = Cancel { id: id.to_string(), reason: reason.to_owned(), grace_ms };
            worker.send((ToWorker::Cancel(cancel), Bytes::new()));
        }
    }

    pub(super) fn took(&self, worker: u64, id: u64) {
        if let Some(worker) = self.state.lock().workers.get(&worker) {
            worker.send((ToWorker::Taken(OfJob { id: id.to_string() }), Bytes::new()));
        }
    }

    /// Gives a job up. Its slot is not free before the worker has answered it.
    pub(super) fn abandon(&self, worker: u64, id: u64) {
        let is_open =
            self.state.lock().workers.get_mut(&worker).and_then(|worker| worker.jobs.get_mut(&id)).map(Option::take);
        if is_open.is_some() {
            self.resized();
        }
    }

    fn resized(&self) {
        if let Some(resized) = self.on_resize.get() {
            resized();
        }
    }
}

impl State {
    /// Gives a job to the first worker that has a free slot.
    fn give(&mut self, job: &Job, cx: &Context) -> Option<(u64, u64, mpsc::Receiver<JobNews>)> {
        while let Some(id) = self.free.pop_front() {
            let Some(worker) = self.workers.get_mut(&id).filter(|worker| worker.has_free_slot()) else { continue };
            self.last_job += 1;
            let (news, received) = mpsc::channel(NEWS);
            worker.jobs.insert(self.last_job, Some(news));
            worker.send((ToWorker::Run(Run::of(self.last_job, job, cx)), job.payload.clone()));
            if worker.has_free_slot() {
                self.free.push_back(id);
            }
            return Some((id, self.last_job, received));
        }
        None
    }
}
