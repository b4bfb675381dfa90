//! A store in a database: threads that write in groups, connections that read beside them.

mod record;
mod rows;
mod statements;
mod writer;

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};
use writer::{Answer, Operation, Writer};

pub(super) use record::{Cell, Value, Values};
pub(super) use rows::{Connection, SqlRows};
pub(super) use statements::Bulk;

use super::{
    Action, BATCH, Bounds, Capabilities, Change, Claimed, Depth, Filter, Fired, JobState, JobStore, Page, Room,
    SessionId, Settle, Size, StoreError, StoredJob, Submission, Submitted, Tick, Ticked, Token, Wakes,
    engine::{Engine, Rows as _, Select},
};
use crate::task::{off_thread, spawn_thread};

/// Operations that may wait for a writer.
const QUEUE: usize = 4096;
/// Connections that read at the same time.
pub(super) const READERS: usize = 4;

/// What differs between databases, beside their connections.
#[async_trait]
pub(super) trait Database: Send + Sync + 'static {
    type Connection: Connection;

    fn capabilities(&self) -> Capabilities;
    /// A further connection, which reads. Blocks.
    fn reader(&self) -> Result<Self::Connection, StoreError>;
    /// Whether the store is intact. Blocks.
    fn check(&self, reader: &mut Self::Connection) -> Result<(), StoreError>;
    /// Ends what the database keeps running.
    async fn close(&self);
}

/// The store in a database.
pub(super) struct SqlStore<D: Database> {
    database: Arc<D>,
    wakes: Arc<Wakes>,
    operations: Mutex<Option<mpsc::Sender<Operation<D::Connection>>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    idle: Arc<Mutex<Vec<SqlRows<D::Connection>>>>,
    readers: Arc<Semaphore>,
}

impl<D: Database> SqlStore<D> {
    /// Starts a thread for each of the connections that write.
    pub(super) fn start(
        database: D,
        writers: Vec<SqlRows<D::Connection>>,
        bounds: Bounds,
        wakes: Arc<Wakes>,
    ) -> Result<Self, StoreError> {
        let (sender, operations) = mpsc::channel(QUEUE);
        let (operations, turns) = (Arc::new(Mutex::new(operations)), Arc::new(Mutex::default()));
        let start = |rows| {
            let engine = Engine::new(rows, bounds, turns.clone());
            let writer = Writer { engine, operations: operations.clone(), wakes: wakes.clone() };
            spawn_thread("store".to_owned(), || writer.run())
        };
        let threads = writers.into_iter().map(start).collect::<Result<_, _>>();
        let threads = threads.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Self {
            database: Arc::new(database),
            wakes,
            operations: Mutex::new(Some(sender)),
            threads: Mutex::new(threads),
            idle: Arc::default(),
            readers: Arc::new(Semaphore::new(READERS)),
        })
    }

    async fn send<T>(&self, operation: impl FnOnce(Answer<T>) -> Operation<D::Connection>) -> Result<T, StoreError> {
        let (caller, answer) = oneshot::channel();
        let operations = self.operations.lock().clone().ok_or(StoreError::Closed)?;
        operations.send(operation(caller)).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Runs a function in a transaction, maybe a second time in another one.
    async fn write<T: Send + 'static>(
        &self,
        needs_keys: bool,
        function: impl FnMut(&mut Engine<SqlRows<D::Connection>>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.send(|caller| Operation::of(needs_keys, function, caller)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&D, &mut SqlRows<D::Connection>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = self.readers.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let (database, idle) = (self.database.clone(), self.idle.clone());
        let work = move || {
            let _permit = permit;
            let reader = idle.lock().pop();
            let mut reader = reader.map_or_else(|| database.reader().map(SqlRows), Ok)?;
            let answer = read(&database, &mut reader)?;
            // A connection that failed is dropped.
            idle.lock().push(reader);
            Ok(answer)
        };
        off_thread(work).await.map_err(|_| StoreError::Closed)?
    }
}

#[async_trait]
impl<D: Database> JobStore for SqlStore<D> {
    fn capabilities(&self) -> Capabilities {
        self.database.capabilities()
    }

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

    async fn beat(&self, session: SessionId) -> Result<Vec<Token>, StoreError> {
        self.write(false, move |engine| engine.beat(session)).await
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

    async fn get(&self, id: &str, with_payload: bool) -> Result<Option<StoredJob>, StoreError> {
        let id = id.to_owned();
        self.read(move |_, rows| rows.get(&id, with_payload)).await
    }

    async fn list(&self, filter: Filter, page: Option<String>, limit: usize) -> Result<Page, StoreError> {
        let before = Page::start(page.as_deref())?;
        let limit = limit.min(BATCH);
        let states = filter.state_bits();
        let list = self.read(move |_, rows| rows.list(Select::Matching { filter: &filter, states, before }, limit));
        Ok(Page::new(list.await?, limit))
    }

    async fn fire(&self, ticks: Vec<Tick>) -> Result<Vec<Fired>, StoreError> {
        self.write(true, move |engine| engine.fire(&ticks)).await
    }

    async fn tick(&self, end_leases: bool) -> Result<Ticked, StoreError> {
        self.write(true, move |engine| engine.tick(end_leases)).await
    }

    async fn depths(&self) -> Result<Vec<(String, Depth)>, StoreError> {
        self.read(|_, rows| rows.depths()).await
    }

    async fn size(&self) -> Result<Size, StoreError> {
        self.write(false, |engine| Ok(engine.rows.size())).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.read(|database, rows| database.check(&mut rows.0)).await
    }

    async fn close(&self) {
        self.operations.lock().take();
        let reading = self.readers.acquire_many(READERS as u32).await;
        self.readers.close();
        drop(reading);
        self.idle.lock().clear();
        let threads = std::mem::take(&mut *self.threads.lock());
        // A panic of a thread was told where it happened.
        let _ = off_thread(move || threads.into_iter().for_each(|thread| drop(thread.join()))).await;
        self.database.close().await;
    }
}
