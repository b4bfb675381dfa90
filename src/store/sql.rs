//! A store in a database: threads that write in groups, and connections that read in parallel.

mod record;
mod rows;

use std::{mem, sync::Arc, thread::JoinHandle, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub(super) use record::{Cell, Value, Values};
pub(super) use rows::{Bulk, Connection};

use super::{
    Action, BATCH, Bounds, Change, Claimed, Depth, Filter, Fired, JobRecord, JobState, JobStore, Room, SessionId,
    Settle, Size, StoreError, Submission, Submitted, Tick, Ticked, Token, Wakes,
    engine::{Engine, Select},
};
use crate::task::{off_thread, spawn_thread};

/// Operations that may wait for a writer.
const QUEUE: usize = 4096;
/// Connections that read at the same time.
pub(super) const READERS: usize = 4;
/// Maximum number of operations of one transaction.
const MAX_GROUP: usize = 1024;

/// A store in a database.
pub(super) struct SqlStore<C> {
    wakes: Arc<Wakes>,
    work: Work<C>,
}

/// Where operations run.
enum Work<C> {
    /// In the thread of the caller, for a store in memory: one connection reads and writes, and never waits.
    Here(Mutex<Writer<C>>),
    Threads(Threads<C>),
}

struct Threads<C> {
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
    /// A store whose only connection works in the threads of the callers.
    pub(super) fn here(connection: C, bounds: Bounds) -> Self {
        let wakes = Arc::<Wakes>::default();
        let writer = Writer { engine: Engine::new(connection, bounds, Arc::default()), wakes: wakes.clone() };
        Self { wakes, work: Work::Here(Mutex::new(writer)) }
    }

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
            let (writer, operations) = (Writer { engine, wakes: wakes.clone() }, operations.clone());
            spawn_thread("store".to_owned(), move || writer.run(&operations))
        };
        let threads = writers.into_iter().map(start).collect::<Result<_, _>>();
        let threads = Threads {
            operations: Mutex::new(Some(sender)),
            threads: Mutex::new(threads.map_err(|error| StoreError::Unavailable(error.to_string()))?),
            open: Arc::new(open),
            idle: Arc::default(),
            readers: Arc::new(Semaphore::new(READERS)),
            closed,
        };
        Ok(Self { wakes, work: Work::Threads(threads) })
    }

    async fn send<T>(&self, operation: impl FnOnce(Answer<T>) -> Operation<C>) -> Result<T, StoreError> {
        let (caller, mut answer) = oneshot::channel();
        let operation = operation(caller);
        match &self.work {
            Work::Here(writer) => {
                writer.lock().serve(vec![operation]);
                answer.try_recv().map_err(|_| StoreError::Closed)?
            }
            Work::Threads(threads) => {
                let operations = threads.operations.lock().clone().ok_or(StoreError::Closed)?;
                operations.send(operation).await.map_err(|_| StoreError::Closed)?;
                answer.await.map_err(|_| StoreError::Closed)?
            }
        }
    }

    /// Runs an operation in a transaction, and if that fails possibly again in another one. `needs_keys` says whether
    /// it may change jobs with ordering keys.
    async fn write<T: Send + 'static>(
        &self,
        needs_keys: bool,
        operation: impl FnMut(&mut Engine<C>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.send(|caller| Operation::other(needs_keys, operation, caller)).await
    }

    /// Runs a reading operation, in parallel with writing ones if there are threads.
    async fn read<T: Send + 'static>(
        &self,
        mut read: impl FnMut(&mut C) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Work::Threads(Threads { open, idle, readers, .. }) = &self.work else {
            return self.write(false, move |engine| read(&mut engine.rows)).await;
        };
        let permit = readers.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let (open, idle) = (open.clone(), idle.clone());
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
}

#[async_trait::async_trait]
impl<C: Connection> JobStore for SqlStore<C> {
    fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    async fn open_session(&self, lease: Duration) -> Result<SessionId, StoreError> {
        self.write(false, move |engine| engine.open_session(lease)).await
    }

    async fn submit(&self, submission: Submission) -> Result<Vec<Submitted>, StoreError> {
        self.send(|caller| Operation::Submit(submission, caller)).await
    }

    async fn claim(&self, room: Room) -> Result<Vec<Claimed>, StoreError> {
        self.write(false, move |engine| engine.claim(&room)).await
    }

    async fn settle(&self, ends: Vec<Settle>) -> Result<Vec<Option<JobState>>, StoreError> {
        self.send(|caller| Operation::Settle(ends, caller)).await
    }

    async fn extend_lease(&self, session: SessionId) -> Result<Vec<Token>, StoreError> {
        self.write(false, move |engine| engine.extend_lease(session)).await
    }

    async fn release(&self, session: SessionId, held: Vec<Token>) -> Result<(), StoreError> {
        self.write(true, move |engine| engine.release(session, &held)).await
    }

    async fn change(&self, ids: Vec<String>, action: Action) -> Result<Vec<Change>, StoreError> {
        self.write(true, move |engine| engine.change(&ids, action)).await
    }

    async fn purge(&self, filter: Filter) -> Result<usize, StoreError> {
        self.write(false, move |engine| engine.purge(&filter)).await
    }

    async fn get(&self, id: &str, with_payload: bool) -> Result<Option<JobRecord>, StoreError> {
        let id = id.to_owned();
        self.read(move |rows| rows.get(&id, with_payload)).await
    }

    async fn list(&self, filter: Filter, before: Option<i64>, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        let (states, before) = (filter.state_bits(), before.unwrap_or(i64::MAX));
        self.read(move |rows| rows.list(Select::Matching { filter: &filter, states, before }, limit.min(BATCH))).await
    }

    async fn keep_schedules(&self, names: Vec<String>) -> Result<(), StoreError> {
        self.write(false, move |engine| engine.rows.keep_schedules(&names)).await
    }

    async fn fire(&self, ticks: Vec<Tick>) -> Result<Vec<Fired>, StoreError> {
        self.write(true, move |engine| engine.fire(&ticks)).await
    }

    async fn tick(&self, end_leases: bool) -> Result<Ticked, StoreError> {
        self.write(true, move |engine| engine.tick(end_leases)).await
    }

    async fn depths(&self) -> Result<Vec<(String, Depth)>, StoreError> {
        self.read(C::depths).await
    }

    async fn size(&self) -> Result<Size, StoreError> {
        self.write(false, |engine| Ok(engine.rows.size())).await
    }

    async fn close(&self) {
        // A store in memory ends with its process.
        let Work::Threads(Threads { operations, threads, idle, readers, closed, .. }) = &self.work else { return };
        operations.lock().take();
        let reading = readers.acquire_many(READERS as u32).await;
        readers.close();
        drop(reading);
        idle.lock().clear();
        let threads = mem::take(&mut *threads.lock());
        // A panic of a thread is logged where it happens.
        let _ = off_thread(move || threads.into_iter().for_each(|thread| drop(thread.join()))).await;
        closed.cancel();
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

/// Runs the waiting operations in one transaction, and answers them after the commit, so that all of them share one
/// flush.
struct Writer<C> {
    engine: Engine<C>,
    wakes: Arc<Wakes>,
}

/// Results of the submissions and of the settlements of a group, each in order.
type Answers = (std::vec::IntoIter<Submitted>, std::vec::IntoIter<Option<JobState>>);

impl<C: Connection> Writer<C> {
    /// Runs until all senders are gone. Of several threads, only one waits for operations at a time.
    fn run(mut self, operations: &Mutex<mpsc::Receiver<Operation<C>>>) {
        let next_group = || {
            let mut operations = operations.lock();
            let mut group = vec![operations.blocking_recv()?];
            while group.len() < MAX_GROUP
                && let Ok(next) = operations.try_recv()
            {
                group.push(next);
            }
            Some(group)
        };
        while let Some(group) = next_group() {
            self.serve(group);
        }
    }

    fn serve(&mut self, mut group: Vec<Operation<C>>) {
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
