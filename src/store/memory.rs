//! The store in memory: for tests, for `dev` without a file, and as the model of the others.

mod rows;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use rows::MemoryRows;

use super::{
    Action, BATCH, Bounds, Capabilities, Change, Claimed, Clock, Depth, Filter, Fired, JobState, JobStore, Page, Room,
    SessionId, Settle, Size, StoreError, StoredJob, Submission, Submitted, Tick, Ticked, Token, Wakes,
    engine::{Engine, Rows as _, Select},
};

/// Keeps jobs until the process ends.
pub struct MemoryStore {
    engine: Mutex<Engine<MemoryRows>>,
    wakes: Wakes,
    clock: Clock,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(bounds: Bounds, clock: Clock) -> Self {
        let engine = Mutex::new(Engine::new(MemoryRows::default(), bounds, Arc::default()));
        Self { engine, wakes: Wakes::default(), clock }
    }

    fn run<T>(&self, act: impl FnOnce(&mut Engine<MemoryRows>) -> T) -> T {
        let (answer, changes) = {
            let mut engine = self.engine.lock();
            engine.now = (self.clock)();
            (act(&mut engine), std::mem::take(&mut engine.changes))
        };
        self.wakes.announce(&changes);
        answer
    }
}

#[async_trait]
impl JobStore for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "memory", is_durable: false, is_shared: false }
    }

    fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    async fn open_session(&self, lease: Duration) -> Result<SessionId, StoreError> {
        self.run(|engine| engine.open_session(lease))
    }

    async fn submit(&self, submission: Submission) -> Result<Vec<Submitted>, StoreError> {
        self.run(|engine| engine.submit(&[&submission]))
    }

    async fn claim(&self, room: Room) -> Result<Vec<Claimed>, StoreError> {
        self.run(|engine| engine.claim(&room))
    }

    async fn settle(&self, ends: Vec<Settle>) -> Result<Vec<Option<JobState>>, StoreError> {
        self.run(|engine| engine.settle(&ends.iter().collect::<Vec<_>>()))
    }

    async fn beat(&self, session: SessionId) -> Result<Vec<Token>, StoreError> {
        self.run(|engine| engine.beat(session))
    }

    async fn release(&self, session: SessionId, held: Vec<Token>) -> Result<(), StoreError> {
        self.run(|engine| engine.release(session, &held))
    }

    async fn change(&self, ids: Vec<String>, action: Action) -> Result<Vec<Change>, StoreError> {
        self.run(|engine| engine.change(&ids, action))
    }

    async fn purge(&self, filter: Filter) -> Result<usize, StoreError> {
        self.run(|engine| engine.purge(&filter))
    }

    async fn get(&self, id: &str, with_payload: bool) -> Result<Option<StoredJob>, StoreError> {
        Ok(self.run(|engine| engine.rows.get(id, with_payload)))
    }

    async fn list(&self, filter: Filter, page: Option<String>, limit: usize) -> Result<Page, StoreError> {
        let before = Page::start(page.as_deref())?;
        let limit = limit.min(BATCH);
        let which = Select::Matching { filter: &filter, states: filter.state_bits(), before };
        Ok(Page::new(self.run(|engine| engine.rows.select(which, limit))?, limit))
    }

    async fn fire(&self, ticks: Vec<Tick>) -> Result<Vec<Fired>, StoreError> {
        self.run(|engine| engine.fire(&ticks))
    }

    async fn tick(&self, end_leases: bool) -> Result<Ticked, StoreError> {
        self.run(|engine| engine.tick(end_leases))
    }

    async fn depths(&self) -> Result<Vec<(String, Depth)>, StoreError> {
        Ok(self.run(|engine| engine.rows.depths(engine.now)))
    }

    async fn size(&self) -> Result<Size, StoreError> {
        Ok(self.run(|engine| engine.rows.size()))
    }

    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn close(&self) {}
}
