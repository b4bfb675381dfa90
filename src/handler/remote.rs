//! Attached workers: processes on other machines that connect to the server, and get jobs while they are connected.
//!
//! [`RemoteWorkers`] knows the workers of one pool's remote kinds, their slots and their jobs. The pool has as many
//! workers as there are slots. A handler takes a slot and [follows](follow) its own job. The messages are those of
//! `process`. `src/rpc/worker_service.rs` talks to the workers, and `src/pool/remote.rs` adjusts the size of the pool.

mod alone;
mod attachment;
mod given_job;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::attachment::Attachment;
use self::{alone::Kept, attachment::Loss, given_job::Given};
use super::{
    AttachedWorkerStats, Context, Handler, Kind, NewWorker, Runner,
    external::{External, ExternalStats},
    protocol::{Run, ToWorker},
    worker_job::{JobEvent, follow},
};
use crate::{
    model::{HandlerError, Job, Output},
    task::Tasks,
};

/// Output pieces of one job that a worker may send ahead. One that respects this limit never waits for a slow job.
const UNTAKEN_PIECES: usize = 4;
/// These pieces, and the end of the job.
const EVENTS: usize = UNTAKEN_PIECES + 1;

/// Losses in a row after which a job runs alone on a worker. One says little: a connection breaks for many reasons, and
/// all jobs of a large worker would wait for each other.
const LOSSES: u32 = 2;

/// Time after which a worker looks at its pool's settings again, which a reload changes.
const LOOK: Duration = Duration::from_secs(10);

/// When workers that idle are asked to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleLeave {
    /// Time without a job.
    pub after: Duration,
    /// Number of workers that stay.
    pub min: usize,
}

/// A message to a worker, with the payload of a job.
pub(crate) type Order = (ToWorker, Bytes);

/// The workers that run the remote kinds of one pool.
#[derive(Default)]
pub(crate) struct RemoteWorkers {
    kinds: BTreeSet<String>,
    cancel_grace: Mutex<Duration>,
    state: Mutex<State>,
    /// Notified when a slot is free: one job that waits for any.
    freed: Notify,
    /// Notified when a worker changed: all jobs that wait for one alone.
    changed: Notify,
    /// Called after the number of slots changed, without a lock.
    on_resize: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct State {
    last_worker: u64,
    last_job: u64,
    late_messages: u64,
    workers: BTreeMap<u64, Worker>,
    /// The workers that had a free slot when they were listed, each once.
    free: VecDeque<u64>,
    /// Jobs that wait for a free slot.
    waiting: usize,
    is_closed: bool,
    idle_leave: Option<IdleLeave>,
}

struct Worker {
    about: NewWorker,
    /// Name and address.
    shown: Arc<str>,
    orders: mpsc::Sender<Order>,
    /// The sender for the events of each job; `None` if the job was given up.
    jobs: FxHashMap<u64, Option<mpsc::Sender<JobEvent>>>,
    /// Slots with jobs of other servers.
    elsewhere: usize,
    /// Whether it is listed as free.
    is_listed: bool,
    answered: u64,
    attached_at: Instant,
    /// When its last job ended, of this server or another one.
    idle_since: Instant,
    is_leaving: bool,
    /// Whether it is [kept](Kept) for one job.
    is_kept: bool,
    /// Cancelled when the server has no more work for the worker.
    done: CancellationToken,
    loss: Arc<Loss>,
}

impl Worker {
    fn abandoned(&self) -> usize {
        self.jobs.values().filter(|events| events.is_none()).count()
    }

    /// Number of slots for the pool.
    fn slots(&self) -> usize {
        if self.is_leaving { self.jobs.len() - self.abandoned() } else { self.about.concurrency - self.abandoned() }
    }

    fn has_free_slot(&self) -> bool {
        !self.is_leaving && !self.is_kept && self.jobs.len() + self.elsewhere < self.about.concurrency
    }

    /// Gives the worker no more jobs, and sends it what tells it so.
    fn leave(&mut self, order: Option<ToWorker>) {
        if std::mem::replace(&mut self.is_leaving, true) {
            return;
        }
        if let Some(order) = order {
            self.send((order, Bytes::new()));
        }
        if self.jobs.is_empty() {
            self.done.cancel();
        }
    }

    fn send(&self, order: Order) {
        // Only a worker that sends answers without reading can fill the channel, which breaks the protocol.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.orders.try_send(order) {
            self.done.cancel();
        }
    }
}

impl RemoteWorkers {
    /// A kind called `name` whose jobs these workers run.
    pub(crate) fn kind(self: &Arc<Self>, name: &str) -> Kind {
        let workers = Arc::clone(self);
        Kind::new(name, move || RemoteHandler { workers: Arc::clone(&workers) }).run_by(Arc::clone(self))
    }

    /// Serves `kinds`, without workers yet. A job that must stop is given up after `cancel_grace`.
    pub(crate) fn new(kinds: BTreeSet<String>, cancel_grace: Duration) -> Arc<Self> {
        Arc::new(Self { kinds, cancel_grace: Mutex::new(cancel_grace), ..Self::default() })
    }

    /// Sets the time between asking a job to stop and giving it up, and when idle workers leave.
    pub(crate) fn set(&self, cancel_grace: Duration, idle_leave: Option<IdleLeave>) {
        *self.cancel_grace.lock() = cancel_grace;
        self.state.lock().idle_leave = idle_leave;
    }

    /// The kinds that each worker runs.
    pub(crate) fn kinds(&self) -> &BTreeSet<String> {
        &self.kinds
    }

    /// Adds a worker. Returns its attachment and the messages to send to it. `None` if the workers are no longer
    /// needed.
    pub(crate) fn attach(self: &Arc<Self>, about: NewWorker) -> Option<(Attachment, mpsc::Receiver<Order>)> {
        // For each job: `run`, `cancel` and a `taken` per piece. For the worker: one `leave`.
        let (orders, to_send) = mpsc::channel((2 + EVENTS) * about.concurrency + 1);
        let (done, now) = (CancellationToken::new(), Instant::now());
        let mut state = self.state.lock();
        if state.is_closed {
            return None;
        }
        state.last_worker += 1;
        let id = state.last_worker;
        let worker = Worker {
            shown: format!("{} at {}", about.name, about.peer).into(),
            loss: Arc::new(Loss { worker: format!("worker {}", about.name).trim_end().to_owned(), ..Loss::default() }),
            about,
            orders: orders.clone(),
            jobs: FxHashMap::default(),
            elsewhere: 0,
            is_listed: false,
            answered: 0,
            attached_at: now,
            idle_since: now,
            is_leaving: false,
            is_kept: false,
            done: done.clone(),
        };
        state.workers.insert(id, worker);
        state.list(id);
        drop(state);
        self.resized();
        self.has_freed();
        Some((Attachment { workers: Arc::clone(self), id, orders, done }, to_send))
    }

    /// Asks all workers to leave, and accepts no more.
    fn leave(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.workers.values_mut().for_each(|worker| worker.leave(Some(ToWorker::leave(Duration::ZERO))));
        drop(state);
        self.resized();
    }

    fn send(&self, worker: u64, message: ToWorker) {
        if let Some(worker) = self.state.lock().workers.get(&worker) {
            worker.send((message, Bytes::new()));
        }
    }

    fn has_freed(&self) {
        self.freed.notify_one();
        self.changed.notify_waiters();
    }

    fn resized(&self) {
        if let Some(resized) = self.on_resize.get() {
            resized();
        }
    }
}

impl External for RemoteWorkers {
    fn fit(&self, _tasks: &Tasks, workers: Option<usize>) {
        if workers.is_none() {
            self.leave();
        }
    }

    fn slots(&self) -> Option<usize> {
        Some(self.state.lock().workers.values().map(Worker::slots).sum())
    }

    fn on_resize(&self, resized: Box<dyn Fn() + Send + Sync>) {
        let _ = self.on_resize.set(resized);
    }

    /// Ends the calls of all workers for good.
    fn close(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        self.leave();
        self.state.lock().workers.values().for_each(|worker| worker.done.cancel());
        None
    }

    fn stats(&self) -> ExternalStats {
        let stats = |worker: &Worker| AttachedWorkerStats {
            worker: worker.about.clone(),
            running: worker.jobs.len(),
            abandoned: worker.abandoned(),
            jobs: worker.answered,
            is_leaving: worker.is_leaving,
            attached_at: worker.attached_at,
        };
        let state = self.state.lock();
        let workers = state.workers.values().map(stats).collect();
        ExternalStats::Attached { workers, late_messages: state.late_messages }
    }
}

impl State {
    /// Gives a job to the first worker with a free slot, or to one on which it is alone.
    fn give(&mut self, job: &Job, cx: &Context, kept: &mut Kept) -> Option<Given> {
        let worker_id = if cx.crashes() < LOSSES { self.next_free()? } else { self.keep(kept)? };
        let worker = self.workers.get_mut(&worker_id)?;
        self.last_job += 1;
        let (sender, events) = mpsc::channel(EVENTS);
        worker.jobs.insert(self.last_job, Some(sender));
        worker.send((ToWorker::Run(Run::of(self.last_job, job, cx)), job.payload.clone()));
        cx.note_runner(Runner::Worker(Arc::clone(&worker.shown)));
        let loss = Arc::clone(&worker.loss);
        self.list(worker_id);
        Some(Given { worker: worker_id, id: self.last_job, events, loss })
    }

    /// All workers in turn; or the last one that was used, where others are to become idle.
    fn next_free(&mut self) -> Option<u64> {
        let packs = self.idle_leave.is_some();
        while let Some(id) = if packs { self.free.pop_back() } else { self.free.pop_front() } {
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            worker.is_listed = false;
            if worker.has_free_slot() {
                return Some(id);
            }
        }
        None
    }

    /// Lists a worker as free, if it is.
    fn list(&mut self, id: u64) {
        if let Some(worker) = self.workers.get_mut(&id).filter(|worker| worker.has_free_slot() && !worker.is_listed) {
            worker.is_listed = true;
            self.free.push_back(id);
        }
    }
}

/// Sends each job to a worker with a free slot.
struct RemoteHandler {
    workers: Arc<RemoteWorkers>,
}

impl Handler for RemoteHandler {
    async fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        let run = self.workers.begin(&job, &cx).await?;
        drop(job);
        follow(run, &cx).await
    }
}
