//! A store in a database: threads that write in groups, and connections that read in parallel.

mod record;
mod rows;

use std::{mem, sync::Arc, thread::JoinHandle};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub(super) use record::{Cell, Value, Values};
pub(super) use rows::{Bulk, Connection};

use super::{Backend, Bounds, JobState, Settle, StoreError, Submission, Submitted, Wakes, engine::Engine};
use crate::task::{off_thread, spawn_thread};

/// Operations that may wait for a writer.
const QUEUE: usize = 4096;
/// Connections that read at the same time.
pub(super) const READERS: usize = 4;
/// Most operations of one transaction.
const MAX_GROUP: usize = 1024;

/// A store in a database.
pub(super) struct SqlStore<C> {
    wakes: Arc<Wakes>,
    operations: Mutex<Option<mpsc::Sender<Operation<C>>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Opens another reading connection. Blocks.
    open: Arc<dyn Fn() -> Result<C, StoreError> + Send + Sync>,
    idle: Arc<Mutex<Vec<C>>>,
    readers: Arc<Semaphore>,
    /// Cancelled when the store has stopped completely.
    closed: CancellationToken,
}

impl<C: Connection> SqlStore<C> {
    /// Starts a thread for each of the writing connections. `open` makes reading ones.
    pub(super) fn start(
        writers: Vec<C>,
        open: impl Fn() -> Result<C, StoreError> + Send + Sync + 'static,
        bounds: Bounds,
        wakes: Arc<Wakes>,
        closed: CancellationToken,
    ) -> Result<Self, StoreError> {
        let (sender, operations) = mpsc::channel(QUEUE);
        let (operations, fair_order) = (Arc::new(Mutex::new(operations)), Arc::new(Mutex::default()));
        let start = |connection| {
            let engine = Engine::new(connection, bounds, fair_order.clone());
            let writer = Writer { engine, operations: operations.clone(), wakes: wakes.clone() };
            spawn_thread("store".to_owned(), || writer.run())
        };
        let threads = writers.into_iter().map(start).collect::<Result<_, _>>();
        let threads = threads.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Self {
            wakes,
            operations: Mutex::new(Some(sender)),
            threads: Mutex::new(threads),
            open: Arc::new(open),
            idle: Arc::default(),
            readers: Arc::new(Semaphore::new(READERS)),
            closed,
        })
    }

    async fn send<T>(&self, operation: impl FnOnce(Answer<T>) -> Operation<C>) -> Result<T, StoreError> {
        let (caller, answer) = oneshot::channel();
        let operations = self.operations.lock().clone().ok_or(StoreError::Closed)?;
        operations.send(operation(caller)).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }
}

impl<C: Connection> Backend for SqlStore<C> {
    type Rows = C;

    fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    async fn write<T: Send + 'static>(
        &self,
        needs_keys: bool,
        operation: impl FnMut(&mut Engine<C>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.send(|caller| Operation::other(needs_keys, operation, caller)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut C) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = self.readers.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let (open, idle) = (self.open.clone(), self.idle.clone());
        let work = move || {
            let _permit = permit;
            let reader = idle.lock().pop();
            let mut reader = reader.map_or_else(|| open(), Ok)?;
            let answer = read(&mut reader)?;
            // A failed connection is dropped.
            idle.lock().push(reader);
            Ok(answer)
        };
        off_thread(work).await.map_err(|_| StoreError::Closed)?
    }

    async fn submit(&self, submission: Submission) -> Result<Vec<Submitted>, StoreError> {
        self.send(|caller| Operation::Submit(submission, caller)).await
    }

    async fn settle(&self, ends: Vec<Settle>) -> Result<Vec<Option<JobState>>, StoreError> {
        self.send(|caller| Operation::Settle(ends, caller)).await
    }

    async fn close(&self) {
        self.operations.lock().take();
        let reading = self.readers.acquire_many(READERS as u32).await;
        self.readers.close();
        drop(reading);
        self.idle.lock().clear();
        let threads = mem::take(&mut *self.threads.lock());
        // A panic of a thread is logged where it happens.
        let _ = off_thread(move || threads.into_iter().for_each(|thread| drop(thread.join()))).await;
        self.closed.cancel();
    }
}

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// Runs in a transaction, and possibly a second time in another one. An error means that the transaction must be rolled
/// back.
type Run<C> = Box<dyn FnMut(&mut Engine<C>) -> Result<(), StoreError> + Send>;
/// Answers a caller, once the transaction is committed or rolled back.
type Finish = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// An operation that waits for its commit.
enum Operation<C> {
    Submit(Submission, Answer<Vec<Submitted>>),
    Settle(Vec<Settle>, Answer<Vec<Option<JobState>>>),
    Other {
        /// Whether it may change jobs that have ordering keys.
        needs_keys: bool,
        run: Run<C>,
        finish: Finish,
    },
}

/// A writing thread. It takes the waiting operations, runs them in one transaction, and answers them after the commit,
/// so that all of them share one flush.
struct Writer<C> {
    engine: Engine<C>,
    operations: Arc<Mutex<mpsc::Receiver<Operation<C>>>>,
    wakes: Arc<Wakes>,
}

/// Results of the submissions and of the settlements of a group, each in order.
type Answers = (std::vec::IntoIter<Submitted>, std::vec::IntoIter<Option<JobState>>);

impl<C: Connection> Writer<C> {
    /// Runs until all senders are gone.
    fn run(mut self) {
        while let Some(mut group) = self.next_group() {
            match self.transact(&mut group) {
                // An operation must not fail because of another one, so each is retried alone. Without a database, each
                // retry would wait for it.
                Err(error) if !matches!(error, StoreError::Unavailable(_)) => {
                    for operation in group {
                        let mut alone = vec![operation];
                        let answers = self.transact(&mut alone);
                        answer(alone, answers);
                    }
                }
                answers => answer(group, answers),
            }
        }
    }

    /// Waits for an operation, and takes all that wait. Of several threads, only one waits at a time.
    fn next_group(&self) -> Option<Vec<Operation<C>>> {
        let mut operations = self.operations.lock();
        let mut group = vec![operations.blocking_recv()?];
        while group.len() < MAX_GROUP
            && let Ok(next) = operations.try_recv()
        {
            group.push(next);
        }
        Some(group)
    }

    /// Runs a group in one transaction.
    fn transact(&mut self, group: &mut [Operation<C>]) -> Result<Answers, StoreError> {
        let answers = self.run_group(group);
        let changes = mem::take(&mut self.engine.changes);
        if answers.is_ok() {
            self.wakes.announce(&changes);
            self.engine.rows.publish(&changes);
        } else {
            self.engine.rows.roll_back();
        }
        answers
    }

    fn run_group(&mut self, group: &mut [Operation<C>]) -> Result<Answers, StoreError> {
        let engine = &mut self.engine;
        let now = engine.rows.begin()?;
        engine.start(now)?;
        if group.iter().any(Operation::needs_keys) {
            engine.rows.lock_keys()?;
        }
        let (mut submissions, mut ends) = (Vec::new(), Vec::new());
        let mut others = Vec::new();
        for operation in group {
            match operation {
                Operation::Submit(submission, _) => submissions.push(&*submission),
                Operation::Settle(settles, _) => ends.extend(settles.iter()),
                Operation::Other { run, .. } => others.push(run),
            }
        }
        // Ended jobs make room for new ones.
        let settled = if ends.is_empty() { Vec::new() } else { engine.settle(&ends)? };
        let submitted = if submissions.is_empty() { Vec::new() } else { engine.submit(&submissions)? };
        others.into_iter().try_for_each(|run| run(engine))?;
        engine.rows.commit()?;
        Ok((submitted.into_iter(), settled.into_iter()))
    }
}

impl<C: Connection> Operation<C> {
    fn needs_keys(&self) -> bool {
        match self {
            Self::Submit(submission, _) => submission.jobs.iter().any(|job| job.is_keyed()),
            Self::Settle(ends, _) => ends.iter().any(|end| end.token.is_keyed),
            Self::Other { needs_keys, .. } => *needs_keys,
        }
    }

    /// An operation that runs a function. Its value is returned after the commit.
    fn other<T: Send + 'static>(
        needs_keys: bool,
        mut function: impl FnMut(&mut Engine<C>) -> Result<T, StoreError> + Send + 'static,
        caller: Answer<T>,
    ) -> Self {
        let value = Arc::new(Mutex::new(None));
        let kept_value = value.clone();
        let run = move |engine: &mut Engine<C>| {
            *value.lock() = Some(function(engine)?);
            Ok(())
        };
        let finish = move |kept: Result<(), StoreError>| {
            let value = kept.and_then(|()| kept_value.lock().take().ok_or(StoreError::Closed));
            // The caller may have left.
            let _ = caller.send(value);
        };
        Self::Other { needs_keys, run: Box::new(run), finish: Box::new(finish) }
    }
}

/// Answers the callers of a group: each takes the next result of its sort.
fn answer<C>(group: Vec<Operation<C>>, answers: Result<Answers, StoreError>) {
    let (kept, (mut submitted, mut settled)) = match answers {
        Ok(answers) => (Ok(()), answers),
        Err(error) => (Err(error), Answers::default()),
    };
    for operation in group {
        let kept = kept.clone();
        // A caller may have left.
        match operation {
            Operation::Submit(submission, caller) => {
                let _ = caller.send(kept.map(|()| submitted.by_ref().take(submission.jobs.len()).collect()));
            }
            Operation::Settle(ends, caller) => {
                let _ = caller.send(kept.map(|()| settled.by_ref().take(ends.len()).collect()));
            }
            Operation::Other { finish, .. } => finish(kept),
        }
    }
}
