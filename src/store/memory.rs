//! The store in memory: for tests, for `dev` without a file, and as the model for the other stores. One ordered set
//! holds the indices of all selections.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    mem,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{
    Backend, Bounds, Clock, Depth, Filter, JobRecord, JobState, SessionId, Size, StoreError, Timestamp, Wakes,
    engine::{Counts, Engine, Rows, Select},
};
use crate::model::Job;

/// Keeps jobs until the process ends.
pub struct MemoryStore {
    engine: Mutex<Engine<MemoryRows>>,
    wakes: Wakes,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(bounds: Bounds, clock: Clock) -> Self {
        let engine = Engine::new(MemoryRows::new(clock), bounds, Arc::default());
        Self { engine: Mutex::new(engine), wakes: Wakes::default() }
    }
}

impl Backend for MemoryStore {
    type Rows = MemoryRows;

    fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    async fn write<T: Send + 'static>(
        &self,
        _: bool,
        mut operation: impl FnMut(&mut Engine<MemoryRows>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let mut engine = self.engine.lock();
        engine.now = engine.rows.now()?;
        let answer = operation(&mut engine);
        let changes = mem::take(&mut engine.changes);
        drop(engine);
        self.wakes.announce(&changes);
        answer
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut MemoryRows) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        read(&mut self.engine.lock().rows)
    }

    async fn close(&self) {}
}

/// Jobs with their payloads and outputs, sessions and schedules.
pub(super) struct MemoryRows {
    clock: Clock,
    jobs: BTreeMap<i64, JobRecord>,
    ids: HashMap<String, i64>,
    /// The index entries of all jobs: index, order within the index, and row.
    positions: BTreeSet<(Index, i64, i64)>,
    schedules: HashMap<String, (Timestamp, String)>,
    sessions: BTreeMap<SessionId, (Duration, Timestamp)>,
    number: i64,
    size: Size,
}

/// An index of jobs. The database tables have the same ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Index {
    /// Ready jobs of a kind and a class's rank, by place.
    Ready(String, usize),
    /// Jobs that wait for an ordering key of a pool, by place.
    Blocked(String, String),
    /// The job that holds an ordering key of a pool.
    Held(String, String),
    /// Jobs that wait for their start time, by that time.
    Due,
    /// Waiting jobs that may expire, by that time.
    Expire,
    /// Jobs that have ended, by the end of their retention.
    Purge,
    /// Jobs that run in a session, by row.
    Leased(SessionId),
}

impl Counts for MemoryRows {
    fn now(&mut self) -> Result<Timestamp, StoreError> {
        Ok((self.clock)())
    }

    fn numbers(&mut self, count: usize) -> Result<Vec<i64>, StoreError> {
        let first = self.number + 1;
        self.number += count as i64;
        Ok((first..=self.number).collect())
    }

    fn size(&self) -> Size {
        self.size
    }

    fn resize(&mut self, jobs: i64, bytes: i64) {
        self.size.add(jobs, bytes);
    }
}

impl Rows for MemoryRows {
    fn insert(&mut self, records: &[JobRecord]) -> Result<Vec<i64>, StoreError> {
        let mut rows = Vec::new();
        for record in records {
            if let Entry::Vacant(entry) = self.ids.entry(record.request.id.clone()) {
                entry.insert(record.row);
                rows.push(record.row);
                self.put(record.clone());
            }
        }
        Ok(rows)
    }

    fn get(&mut self, id: &str, with_payload: bool) -> Result<Option<JobRecord>, StoreError> {
        let mut found = self.ids.get(id).and_then(|row| self.jobs.get(row)).cloned();
        if let Some(job) = found.as_mut().filter(|_| !with_payload) {
            job.request.job.payload = Bytes::new();
        }
        Ok(found)
    }

    fn find(&mut self, ids: &[&str]) -> Result<Vec<JobRecord>, StoreError> {
        Ok(ids.iter().filter_map(|id| self.jobs.get(self.ids.get(*id)?)).map(without_bytes).collect())
    }

    fn save(&mut self, records: &[JobRecord]) -> Result<(), StoreError> {
        for record in records {
            let mut record = record.clone();
            if let Some(old) = self.take(record.row) {
                record.request.job.payload = old.request.job.payload;
                if record.output.bytes.is_empty() {
                    record.output.bytes = old.output.bytes;
                }
            }
            self.put(record);
        }
        Ok(())
    }

    fn remove(&mut self, records: &[JobRecord]) -> Result<(), StoreError> {
        for record in records {
            self.take(record.row);
            self.ids.remove(&record.request.id);
        }
        Ok(())
    }

    fn load_payloads(&mut self, records: &mut [JobRecord]) -> Result<(), StoreError> {
        for record in records {
            if let Some(job) = self.jobs.get(&record.row) {
                record.request.job.payload = job.request.job.payload.clone();
            }
        }
        Ok(())
    }

    fn remove_output(&mut self, record: &JobRecord) -> Result<(), StoreError> {
        if let Some(job) = self.jobs.get_mut(&record.row) {
            job.output.bytes = Bytes::new();
        }
        Ok(())
    }

    fn is_key_held(&mut self, pool: &str, key: &str) -> Result<bool, StoreError> {
        Ok(self.range(Index::Held(pool.to_owned(), key.to_owned()), i64::MAX).next().is_some())
    }

    fn list(&mut self, which: Select<'_>, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        let (index, last) = match which {
            Select::Ready(kind, rank, _) => (Index::Ready(kind.to_owned(), rank), i64::MAX),
            Select::Blocked(pool, key) => (Index::Blocked(pool.to_owned(), key.to_owned()), i64::MAX),
            Select::Due(now) => (Index::Due, now.as_millis()),
            Select::Expired(now) => (Index::Expire, now.as_millis()),
            Select::Purgeable(now) => (Index::Purge, now.as_millis()),
            Select::Leased(session) | Select::ToCancel(session) => (Index::Leased(session), i64::MAX),
            Select::Matching { filter, states, before } => {
                let jobs = self.jobs.range(..before).rev().map(|(_, job)| job);
                let matching = jobs.filter(|job| states & (1 << job.state as u8) != 0 && filter.has(job));
                return Ok(matching.take(limit).map(without_bytes).collect());
            }
        };
        let is_selected = |job: &&JobRecord| match which {
            Select::Ready(.., now) => !job.is_expired(now),
            Select::ToCancel(_) => job.cancel_requested,
            _ => true,
        };
        Ok(self.range(index, last).filter(is_selected).take(limit).map(without_bytes).collect())
    }

    fn select(&mut self, which: Select<'_>, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        self.list(which, limit)
    }

    fn depths(&mut self) -> Result<Vec<(String, Depth)>, StoreError> {
        let now = self.now()?;
        let mut kinds: BTreeMap<&str, Depth> = BTreeMap::new();
        for job in self.jobs.values() {
            let depth = kinds.entry(&job.request.job.kind).or_default();
            depth.add(job.state, 1);
            if job.state == JobState::Ready {
                depth.oldest_ready = depth.oldest_ready.max(Some(now.since(job.due_at)));
            }
        }
        kinds.retain(|_, depth| *depth != Depth::default());
        Ok(kinds.into_iter().map(|(kind, depth)| (kind.to_owned(), depth)).collect())
    }

    fn schedule(&mut self, name: &str) -> Result<Option<(Timestamp, String)>, StoreError> {
        Ok(self.schedules.get(name).cloned())
    }

    fn set_schedule(&mut self, name: &str, tick: Timestamp, run: &str) -> Result<(), StoreError> {
        self.schedules.insert(name.to_owned(), (tick, run.to_owned()));
        Ok(())
    }

    fn session(&mut self, session: SessionId) -> Result<Option<Duration>, StoreError> {
        Ok(self.sessions.get(&session).map(|(lease, _)| *lease))
    }

    fn set_session(&mut self, session: SessionId, lease: Duration, end: Timestamp) -> Result<(), StoreError> {
        self.sessions.insert(session, (lease, end));
        Ok(())
    }

    fn remove_sessions(&mut self, now: Timestamp) -> Result<Vec<SessionId>, StoreError> {
        Ok(self.sessions.extract_if(.., |_, (_, end)| *end <= now).map(|(session, _)| session).collect())
    }
}

impl MemoryRows {
    fn new(clock: Clock) -> Self {
        Self {
            clock,
            jobs: BTreeMap::new(),
            ids: HashMap::new(),
            positions: BTreeSet::new(),
            schedules: HashMap::new(),
            sessions: BTreeMap::new(),
            number: 0,
            size: Size::default(),
        }
    }

    /// Jobs of an index up to the position `last`, in order.
    fn range(&self, index: Index, last: i64) -> impl Iterator<Item = &JobRecord> {
        let first = (index.clone(), i64::MIN, i64::MIN);
        self.positions.range(first..=(index, last, i64::MAX)).map(|(_, _, row)| &self.jobs[row])
    }

    fn put(&mut self, job: JobRecord) {
        self.positions.extend(positions(&job));
        self.jobs.insert(job.row, job);
    }

    fn take(&mut self, row: i64) -> Option<JobRecord> {
        let job = self.jobs.remove(&row)?;
        for position in positions(&job) {
            self.positions.remove(&position);
        }
        Some(job)
    }
}

fn positions(job: &JobRecord) -> impl Iterator<Item = (Index, i64, i64)> {
    let key = || (job.request.pool.clone(), job.request.job.ordering_key.clone());
    let of_state = match job.state {
        JobState::Scheduled => Some((Index::Due, job.due_at.as_millis())),
        JobState::Ready => {
            let Job { kind, criticality, .. } = &job.request.job;
            Some((Index::Ready(kind.clone(), criticality.rank()), job.place))
        }
        JobState::Blocked => Some((Index::Blocked(key().0, key().1), job.place)),
        JobState::Running => job.session.map(|session| (Index::Leased(session), job.row)),
        _ => job.purge_at().map(|end| (Index::Purge, end.as_millis())),
    };
    let expires = job.request.expire_at.filter(|_| job.state < JobState::Running);
    let expires = expires.map(|end| (Index::Expire, end.as_millis()));
    let held = job.holds_key.then(|| (Index::Held(key().0, key().1), job.row));
    of_state.into_iter().chain(expires).chain(held).map(|(index, order)| (index, order, job.row))
}

impl Filter {
    /// Whether the filter matches the job, ignoring states.
    fn has(&self, job: &JobRecord) -> bool {
        let is = |asked: &Option<String>, value: &str| asked.as_deref().is_none_or(|asked| asked == value);
        is(&self.kind, &job.request.job.kind)
            && is(&self.tenant, &job.request.job.tenant)
            && self.label.as_ref().is_none_or(|(name, value)| job.request.job.labels.get(name) == Some(value))
            && self.created_from.is_none_or(|from| from <= job.created_at)
            && self.created_before.is_none_or(|end| job.created_at < end)
    }
}

fn without_bytes(record: &JobRecord) -> JobRecord {
    let mut record = record.clone();
    record.request.job.payload = Bytes::new();
    record.output.bytes = Bytes::new();
    record
}
