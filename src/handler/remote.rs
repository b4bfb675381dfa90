//! Attached workers: processes on other machines that connect to the server, and get jobs while they are connected.
//!
//! [`RemoteWorkers`] knows the workers of one pool's remote kinds, their slots and their jobs. The pool has as many
//! workers as there are slots. A handler takes a slot and [follows](follow) its own job. The messages are those of
//! `process`. `src/rpc/worker_service.rs` talks to the workers, and `src/pool/remote.rs` adjusts the size of the pool.

mod alone;
mod attachment;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, OnceLock, atomic::Ordering},
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
use self::{alone::Kept, attachment::Loss};
use super::{
    AttachedWorkerStats, Context, Handler, Kind, NewWorker, Runner,
    external::{External, ExternalStats},
    protocol::{Failed, Run, ToWorker},
    worker_job::{JobEvent, WorkerJob, follow},
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

/// A message to a worker, with the payload of a job.
pub(crate) type Order = (ToWorker, Bytes);

/// The workers that run the remote kinds of one pool.
#[derive(Default)]
pub(crate) struct RemoteWorkers {
    kinds: BTreeSet<String>,
    cancel_grace: Mutex<Duration>,
    state: Mutex<State>,
    /// Notified when a slot is free.
    freed: Notify,
    /// Called after the number of slots changed, without a lock.
    on_resize: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct State {
    last_worker: u64,
    last_job: u64,
    late_messages: u64,
    workers: BTreeMap<u64, Worker>,
    /// The workers with a free slot, each once; the next job goes to the first.
    free: VecDeque<u64>,
    is_closed: bool,
}

struct Worker {
    about: NewWorker,
    /// Name and address.
    shown: Arc<str>,
    orders: mpsc::Sender<Order>,
    /// The sender for the events of each job; `None` if the job was given up.
    jobs: FxHashMap<u64, Option<mpsc::Sender<JobEvent>>>,
    answered: u64,
    attached_at: Instant,
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
        !self.is_leaving && !self.is_kept && self.jobs.len() < self.about.concurrency
    }

    /// Gives the worker no more jobs. `tell` says whether to send it a message about that.
    fn leave(&mut self, tell: bool) {
        if std::mem::replace(&mut self.is_leaving, true) {
            return;
        }
        if tell {
            self.send((ToWorker::leave(Duration::ZERO), Bytes::new()));
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

    /// Sets the time between asking a job to stop and giving it up.
    pub(crate) fn set_cancel_grace(&self, cancel_grace: Duration) {
        *self.cancel_grace.lock() = cancel_grace;
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
        let done = CancellationToken::new();
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
            answered: 0,
            attached_at: Instant::now(),
            is_leaving: false,
            is_kept: false,
            done: done.clone(),
        };
        state.workers.insert(id, worker);
        state.free.push_back(id);
        drop(state);
        self.resized();
        self.freed.notify_waiters();
        Some((Attachment { workers: Arc::clone(self), id, orders, done }, to_send))
    }

    /// Asks all workers to leave, and accepts no more.
    fn leave(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.workers.values_mut().for_each(|worker| worker.leave(true));
        drop(state);
        self.resized();
    }

    /// Gives a job to a worker as soon as one has a free slot.
    async fn begin(self: &Arc<Self>, job: &Job, cx: &Context) -> Result<RemoteJob, HandlerError> {
        let mut kept = Kept::nothing(self);
        let give = || {
            let mut state = self.state.lock();
            // Unless the kinds are gone, another worker may attach.
            if state.is_closed && state.workers.is_empty() {
                return Err(HandlerError::Unavailable { message: "no worker is attached".to_owned() });
            }
            Ok(state.give(job, cx, &mut kept))
        };
        let given = cx.wait_for(&self.freed, job.queue_timeout, give).await?;
        Ok(RemoteJob { kept, given, is_answered: false })
    }

    fn send(&self, worker: u64, message: ToWorker) {
        if let Some(worker) = self.state.lock().workers.get(&worker) {
            worker.send((message, Bytes::new()));
        }
    }

    /// Gives a job up. Its slot stays occupied until the worker answers.
    fn abandon(&self, worker: u64, id: u64) {
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
        if worker.has_free_slot() {
            self.free.push_back(worker_id);
        }
        Some(Given { worker: worker_id, id: self.last_job, events, loss })
    }

    fn next_free(&mut self) -> Option<u64> {
        while let Some(id) = self.free.pop_front() {
            if self.workers.get(&id).is_some_and(Worker::has_free_slot) {
                return Some(id);
            }
        }
        None
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

/// A job that was given to a worker.
struct Given {
    worker: u64,
    id: u64,
    events: mpsc::Receiver<JobEvent>,
    loss: Arc<Loss>,
}

/// A job of an attached worker.
struct RemoteJob {
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
