//! Rows in memory, and one set that has the indices of all selections.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    time::Duration,
};

use bytes::Bytes;

use crate::{
    model::Job,
    store::{
        Depth, Filter, JobRecord, JobState, SessionId, Size, StoreError, StoredJob, Timestamp,
        engine::{Places, Rows, Select},
    },
};

#[derive(Default)]
pub(super) struct MemoryRows {
    jobs: BTreeMap<i64, JobRecord>,
    ids: HashMap<String, i64>,
    /// Each job at its positions: index, order within it, and row.
    positions: BTreeSet<(Index, i64, i64)>,
    outputs: HashMap<i64, Bytes>,
    schedules: HashMap<String, (Timestamp, String)>,
    sessions: BTreeMap<SessionId, (Duration, Timestamp)>,
    number: i64,
    size: Size,
}

/// An index of jobs. The tables of databases have the same ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Index {
    /// Ready jobs of a kind and a class's rank, by place.
    Ready(String, usize),
    /// Jobs that wait for a key of a pool, by place.
    Blocked(String, String),
    /// The job that holds a key of a pool.
    Held(String, String),
    /// Jobs that wait for their start, by its time.
    Due,
    /// Jobs that wait and may expire, by that time.
    Expire,
    /// Jobs that have ended, by the end of their retention.
    Purge,
    /// Jobs that run in a session, by row.
    Leased(SessionId),
}

impl Rows for MemoryRows {
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

    fn find(&mut self, ids: &[&str]) -> Result<Vec<JobRecord>, StoreError> {
        Ok(ids.iter().filter_map(|id| self.jobs.get(self.ids.get(*id)?)).map(without_payload).collect())
    }

    fn save(&mut self, records: &[JobRecord]) -> Result<(), StoreError> {
        for record in records {
            let mut record = record.clone();
            record.request.job.payload = self.payload(record.row);
            self.put(record);
        }
        Ok(())
    }

    fn remove(&mut self, records: &[JobRecord]) -> Result<(), StoreError> {
        for record in records {
            self.take(record.row);
            self.ids.remove(&record.request.id);
            self.outputs.remove(&record.row);
        }
        Ok(())
    }

    fn load_payloads(&mut self, records: &mut [JobRecord]) -> Result<(), StoreError> {
        for record in records {
            record.request.job.payload = self.payload(record.row);
        }
        Ok(())
    }

    fn insert_outputs(&mut self, outputs: &[(i64, Bytes)]) -> Result<(), StoreError> {
        self.outputs.extend(outputs.iter().cloned());
        Ok(())
    }

    fn remove_output(&mut self, record: &JobRecord) -> Result<(), StoreError> {
        self.outputs.remove(&record.row);
        Ok(())
    }

    fn is_key_held(&mut self, pool: &str, key: &str) -> Result<bool, StoreError> {
        Ok(self.range(Index::Held(pool.to_owned(), key.to_owned()), i64::MAX).next().is_some())
    }

    fn select(&mut self, which: Select<'_>, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
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
                return Ok(matching.take(limit).map(without_payload).collect());
            }
        };
        let is_selected = |job: &&JobRecord| match which {
            Select::Ready(.., now) => !job.is_expired(now),
            Select::ToCancel(_) => job.cancel_requested,
            _ => true,
        };
        Ok(self.range(index, last).filter(is_selected).take(limit).map(without_payload).collect())
    }

    fn places(&mut self) -> Result<Vec<Places>, StoreError> {
        // It is empty at the start.
        Ok(Vec::new())
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
    pub(super) fn get(&mut self, id: &str, with_payload: bool) -> Option<StoredJob> {
        let record = self.jobs.get(self.ids.get(id)?)?.clone();
        let payload = if with_payload { self.payload(record.row) } else { Bytes::new() };
        let output = self.outputs.get(&record.row).cloned();
        Some(StoredJob::new(record, payload, output.unwrap_or_default()))
    }

    fn payload(&self, row: i64) -> Bytes {
        self.jobs.get(&row).map(|job| job.request.job.payload.clone()).unwrap_or_default()
    }

    pub(super) fn depths(&self, now: Timestamp) -> Vec<(String, Depth)> {
        let mut kinds: BTreeMap<&str, Depth> = BTreeMap::new();
        for job in self.jobs.values() {
            let depth = kinds.entry(&job.request.job.kind).or_default();
            depth.add(job.state, 1);
            if job.state == JobState::Ready {
                depth.oldest_ready = depth.oldest_ready.max(Some(now.since(job.due_at)));
            }
        }
        kinds.retain(|_, depth| *depth != Depth::default());
        kinds.into_iter().map(|(kind, depth)| (kind.to_owned(), depth)).collect()
    }

    /// Jobs of an index up to a position, in its order.
    fn range(&self, index: Index, last: i64) -> impl Iterator<Item = &JobRecord> {
        let first = (index.clone(), i64::MIN, i64::MIN);
        self.positions.range(first..=(index, last, i64::MAX)).map(|(_, _, row)| &self.jobs[row])
    }

    fn put(&mut self, job: JobRecord) {
        self.take(job.row);
        self.positions.extend(positions(&job));
        self.jobs.insert(job.row, job);
    }

    fn take(&mut self, row: i64) {
        for position in self.jobs.remove(&row).iter().flat_map(positions) {
            self.positions.remove(&position);
        }
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
    /// Whether it has the job, whatever its state.
    fn has(&self, job: &JobRecord) -> bool {
        let is = |asked: &Option<String>, value: &str| asked.as_deref().is_none_or(|asked| asked == value);
        is(&self.kind, &job.request.job.kind)
            && is(&self.tenant, &job.request.job.tenant)
            && self.label.as_ref().is_none_or(|(name, value)| job.request.job.labels.get(name) == Some(value))
            && self.created_from.is_none_or(|from| from <= job.created_at)
            && self.created_before.is_none_or(|end| job.created_at < end)
    }
}

fn without_payload(record: &JobRecord) -> JobRecord {
    let mut record = record.clone();
    record.request.job.payload = Bytes::new();
    record
}
