//! A store in a database: threads that write in groups, and connections that read in parallel.

mod buckets;
mod filtered;
mod group_counts;
mod limit_counts;
mod record;
mod rows;
mod statements;
mod writer;

use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::{OnceCell, Semaphore, mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub(super) use buckets::{
    KeyBucket, LimitKey, first_key_looks, key_buckets, lock_bucket, lock_key_buckets, remove_key_bucket, save_bucket,
    save_key_buckets,
};
pub(super) use group_counts::{MemberChange, due_jobs, mark_started, open_group, save_members};
pub(super) use limit_counts::{Slots, running, slots, waiting_after};
pub(super) use record::{COLUMNS, Cell, Value, Values, read_record, text};
pub(super) use rows::Connection;
pub(super) use statements::{BLOCKED, Bulk, COLUMN_LIST, READY, RUNNING, Select};

use super::{
    Action, BATCH, Bounds, Change, Claimed, Demand, Depth, Extent, Figures, Filter, Fired, Groups, JobName, JobRecord,
    JobState, JobStore, Members, Order, Page, Room, SessionId, Settle, Size, StoreError, StoredLimits, StoredQuotas,
    Submission, Submitted, Suspended, Tick, Ticked, Timestamp, Token, Wakes,
    engine::{Engine, Shared, next_start},
};
use crate::{
    model::Durations,
    task::{off_thread, spawn_thread},
};
use filtered::{group, list};
use writer::{Answer, Operation, Turn, Writer};

/// Operations that may wait for a writer.
const QUEUE: usize = 4096;
/// Connections that read at the same time.
pub(super) const READERS: usize = 4;

/// Lists and groups that read at the same time. They leave connections for other reads, and cores for serving.
const LISTS: usize = 1;
/// Leases are not ended by an operation that waited for so long: their owners may have waited, too.
const MAX_TICK_WAIT: Duration = Duration::from_secs(5);

/// Opens another reading connection. Blocks.
pub(super) type Open<C> = Arc<dyn Fn() -> Result<C, StoreError> + Send + Sync>;

/// Sizes of the file of a store.
#[derive(Default)]
pub(super) struct FileFigures {
    /// Bytes of its log that are not merged into it.
    pub(super) log_bytes: AtomicU64,
    /// Bytes that are free on its disk.
    pub(super) free_bytes: AtomicU64,
}

/// A store in a database.
pub(super) struct SqlStore<C> {
    wakes: Arc<Wakes>,
    shared: Arc<Shared>,
    /// `None` if it is no file here.
    pub(super) file: Option<Arc<FileFigures>>,
    commits: Arc<Mutex<Durations>>,
    operations: Mutex<Option<mpsc::Sender<Operation<C>>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// `None` if the only connection writes.
    open: Option<Open<C>>,
    idle: Arc<Mutex<Vec<C>>>,
    readers: Arc<Semaphore>,
    lists: Semaphore,
    /// Read once, because it stays the same.
    secret: OnceCell<Bytes>,
    /// Cancelled when the store has stopped completely.
    closed: CancellationToken,
}

impl<C: Connection> SqlStore<C> {
    /// Starts a thread for each of the writing connections. Without `open`, they also read.
    pub(super) fn start(
        writers: Vec<C>,
        open: Option<Open<C>>,
        bounds: Bounds,
        wakes: Arc<Wakes>,
        closed: CancellationToken,
    ) -> Result<Self, StoreError> {
        let (sender, operations) = mpsc::channel(QUEUE);
        let (operations, shared) = (Arc::new(Mutex::new(operations)), Arc::<Shared>::default());
        let commits = Arc::<Mutex<Durations>>::default();
        let start = |connection| {
            let engine = Engine::new(connection, bounds, shared.clone());
            let writer = Writer { engine, wakes: wakes.clone(), commits: commits.clone() };
            let operations = operations.clone();
            spawn_thread("store".to_owned(), move || writer.run(&operations))
        };
        let threads = writers.into_iter().map(start).collect::<Result<_, _>>();
        let threads = Mutex::new(threads.map_err(|error| StoreError::Unavailable(error.to_string()))?);
        let (operations, idle) = (Mutex::new(Some(sender)), Arc::default());
        let (readers, lists) = (Arc::new(Semaphore::new(READERS)), Semaphore::new(LISTS));
        let secret = OnceCell::new();
        let file = None;
        Ok(Self { wakes, shared, file, commits, operations, threads, open, idle, readers, lists, secret, closed })
    }

    async fn send<T>(&self, operation: impl FnOnce(Answer<T>) -> Operation<C>) -> Result<T, StoreError> {
        let (caller, answer) = oneshot::channel();
        let operations = self.operations.lock().clone().ok_or(StoreError::Closed)?;
        operations.send(operation(caller)).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Unavailable("its thread has ended".to_owned()))?
    }

    /// Runs an operation in a transaction, and if that is rolled back possibly again in another one.
    async fn write<T: Send + 'static>(
        &self,
        turn: Turn,
        mut operation: impl FnMut(&mut Engine<C>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let result = Arc::new(Mutex::new(None));
        let last = result.clone();
        let run = move |engine: &mut Engine<C>| {
            *last.lock() = Some(operation(engine)?);
            Ok(())
        };
        self.send(|caller| Operation::Other(turn, Box::new(run), caller)).await?;
        let result = result.lock().take();
        result.ok_or(StoreError::Closed)
    }

    /// Runs a reading operation beside writing ones. It is interrupted if this future is dropped.
    async fn read<T: Send + 'static>(
        &self,
        mut read: impl FnMut(&mut C) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let Some(open) = self.open.clone() else {
            return self.write(Turn::Any, move |engine| read(&mut engine.rows)).await;
        };
        let permit = self.readers.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let (idle, gone) = (self.idle.clone(), CancellationToken::new());
        let _gone = gone.clone().drop_guard();
        let work = move || {
            let _permit = permit;
            let reader = idle.lock().pop();
            let mut reader = reader.map_or_else(|| open(), Ok)?;
            reader.interrupt_on(gone);
            let answer = read(&mut reader)?;
            // A failed connection is dropped.
            idle.lock().push(reader);
            Ok(answer)
        };
        off_thread(work).await.map_err(|_| StoreError::Closed)?
    }

    /// Runs a reading operation that looks at many rows.
    async fn read_many<T: Send + 'static>(
        &self,
        read: impl FnMut(&mut C) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _list = self.lists.acquire().await.map_err(|_| StoreError::Closed)?;
        self.read(read).await
    }
}

#[async_trait::async_trait]
impl<C: Connection> JobStore for SqlStore<C> {
    fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    fn set_quotas(&self, quotas: StoredQuotas) {
        self.shared.quotas.store(Arc::new(quotas));
    }

    fn set_limits(&self, limits: StoredLimits) {
        self.shared.set_limits(limits);
    }

    async fn open_session(&self, lease: Duration) -> Result<SessionId, StoreError> {
        self.write(Turn::Any, move |engine| engine.open_session(lease)).await
    }

    async fn submit(&self, submission: Submission) -> Result<Vec<Submitted>, StoreError> {
        self.send(|caller| Operation::Submit(submission, caller)).await
    }

    async fn claim(&self, room: Room) -> Result<Vec<Claimed>, StoreError> {
        self.write(Turn::Any, move |engine| engine.claim(&room)).await
    }

    async fn settle(&self, ends: Vec<Settle>) -> Result<Vec<Option<JobState>>, StoreError> {
        self.send(|caller| Operation::Settle(ends, caller)).await
    }

    async fn extend_lease(&self, session: SessionId) -> Result<Vec<Token>, StoreError> {
        self.write(Turn::Lease, move |engine| engine.extend_lease(session)).await
    }

    async fn share_demand(&self, session: SessionId, own: Demand) -> Result<Vec<Demand>, StoreError> {
        self.write(Turn::Lease, move |engine| engine.share_demand(session, &own)).await
    }

    async fn leased(&self, session: SessionId) -> Result<Vec<Token>, StoreError> {
        self.read(move |rows| rows.leased(session)).await
    }

    async fn release(&self, session: SessionId, tokens: Vec<Token>) -> Result<(), StoreError> {
        let ids = tokens.iter().map(|token| token.id.clone()).collect();
        self.write(Turn::Keys(ids), move |engine| engine.release(session, &tokens)).await
    }

    async fn change(&self, jobs: Vec<JobName>, action: Action) -> Result<Vec<Change>, StoreError> {
        let ids = jobs.iter().map(|job| job.id.clone()).collect();
        self.write(Turn::Keys(ids), move |engine| engine.change(&jobs, action)).await
    }

    async fn get(&self, id: &str, extent: Extent) -> Result<Option<JobRecord>, StoreError> {
        let id = id.to_owned();
        self.read(move |rows| rows.get(&id, extent)).await
    }

    async fn key_holder(&self, tenant: &str, key: &str) -> Result<Option<String>, StoreError> {
        let (tenant, key) = (tenant.to_owned(), key.to_owned());
        self.read(move |rows| rows.key_holder((&tenant, &key))).await
    }

    async fn next_start(&self, kind: &str, key: &str) -> Result<Option<Timestamp>, StoreError> {
        let (kind, key, rate) = (kind.to_owned(), key.to_owned(), self.shared.limit(kind).key_rate);
        self.read(move |rows| next_start(rows, rate, (&kind, &key))).await
    }

    async fn output(&self, row: i64, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.read(move |rows| rows.output(row, offset, length)).await
    }

    async fn list(&self, filter: Filter, order: Order, after: Option<i64>, limit: usize) -> Result<Page, StoreError> {
        let after = after.unwrap_or(if order == Order::Newest { i64::MAX } else { i64::MIN });
        self.read_many(move |rows| list(rows, &filter, order, after, limit.min(BATCH))).await
    }

    async fn group(&self, filter: Filter) -> Result<Groups, StoreError> {
        self.read_many(move |rows| group(rows, &filter)).await
    }

    async fn members(&self, row: i64) -> Result<Option<Members>, StoreError> {
        self.read(move |rows| group_counts::read(rows, row)).await
    }

    async fn secret(&self) -> Result<Bytes, StoreError> {
        self.secret.get_or_try_init(|| self.read(C::secret)).await.cloned()
    }

    async fn keep_schedules(&self, names: Vec<String>) -> Result<(), StoreError> {
        self.write(Turn::Any, move |engine| engine.rows.keep_schedules(&names)).await
    }

    async fn fire(&self, tick: Tick) -> Result<Fired, StoreError> {
        self.write(Turn::Keys(Vec::new()), move |engine| engine.fire(&tick)).await
    }

    async fn suspend(&self, pool: &str, suspended: Option<Suspended>) -> Result<(), StoreError> {
        let pool = pool.to_owned();
        self.write(Turn::Any, move |engine| engine.rows.suspend(&pool, suspended.as_ref(), engine.now)).await
    }

    async fn suspended(&self) -> Result<BTreeMap<String, Suspended>, StoreError> {
        self.read(C::suspended).await
    }

    async fn tick(&self, end_leases: bool) -> Result<Ticked, StoreError> {
        let asked = Instant::now();
        self.write(Turn::Any, move |engine| engine.tick(end_leases && asked.elapsed() < MAX_TICK_WAIT)).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.write(Turn::Any, Engine::probe).await
    }

    async fn depths(&self) -> Result<Vec<(String, Depth)>, StoreError> {
        self.read(C::depths).await
    }

    async fn size(&self) -> Result<Size, StoreError> {
        self.write(Turn::Any, |engine| Ok(engine.size())).await
    }

    fn figures(&self) -> Figures {
        let read = |of: fn(&FileFigures) -> &AtomicU64| self.file.as_ref().map(|file| of(file).load(Relaxed));
        Figures {
            commits: Some(self.commits.lock().clone()),
            log_bytes: read(|file| &file.log_bytes),
            free_bytes: read(|file| &file.free_bytes),
        }
    }

    async fn close(&self) {
        self.operations.lock().take();
        let reading = self.readers.acquire_many(READERS as u32).await;
        self.readers.close();
        self.lists.close();
        drop(reading);
        self.idle.lock().clear();
        let threads = mem::take(&mut *self.threads.lock());
        // A panic of a thread is logged where it happens.
        let _ = off_thread(move || threads.into_iter().for_each(|thread| drop(thread.join()))).await;
        self.closed.cancel();
    }
}
