//! Rows in memory. What a dispatcher asks for often has an order of its own; the rest is found by looking at all jobs.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, hash_map::Entry},
    time::Duration,
};

use bytes::Bytes;

use crate::store::{
    Depth, Filter, JobRecord, JobState, SessionId, Size, StoreError, StoredJob, Timestamp,
    engine::{Rows, Select},
};

/// A pool, and an ordering key in it.
type PoolKey = (String, String);

#[derive(Default)]
pub(super) struct MemoryRows {
    jobs: BTreeMap<i64, JobRecord>,
    ids: HashMap<String, i64>,
    outputs: HashMap<i64, Bytes>,
    /// Kind, rank of the class, place and row of ready jobs.
    ready: BTreeSet<(String, usize, i64, i64)>,
    held: HashSet<PoolKey>,
    /// Key, place and row of blocked jobs.
    blocked: BTreeSet<(PoolKey, i64, i64)>,
    schedules: HashMap<String, (Timestamp, String)>,
    sessions: BTreeMap<SessionId, (Duration, Timestamp)>,
    number: i64,
    size: Size,
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
            self.take(record.row);
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
        Ok(self.held.contains(&(pool.to_owned(), key.to_owned())))
    }

    fn select(&mut self, which: Select<'_>, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        use JobState::{Running, Scheduled};
        Ok(match which {
            Select::Ready(kind, rank, now) => {
                let of_class = self.ready.range((kind.to_owned(), rank, i64::MIN, i64::MIN)..);
                let rows = of_class.take_while(|(of, class, ..)| of == kind && *class == rank).map(|(.., row)| row);
                let jobs = rows.filter_map(|row| self.jobs.get(row)).filter(|job| !job.is_expired(now));
                jobs.take(limit).map(without_payload).collect()
            }
            Select::Blocked(pool, key) => {
                let key = (pool.to_owned(), key.to_owned());
                let of_key = self.blocked.range((key.clone(), i64::MIN, i64::MIN)..).take_while(|(of, ..)| *of == key);
                of_key.filter_map(|(.., row)| self.jobs.get(row)).take(limit).map(without_payload).collect()
            }
            Select::Due(now) => self.sorted(limit, |job| job.state == Scheduled && job.due_at <= now, |job| job.due_at),
            Select::Expired(now) => {
                self.sorted(limit, |job| job.state < Running && job.is_expired(now), |job| job.request.expire_at)
            }
            Select::Purgeable(now) => {
                self.sorted(limit, |job| job.purge_at().is_some_and(|end| end <= now), JobRecord::purge_at)
            }
            Select::Leased(session) => self.sorted(limit, |job| job.session == Some(session), |job| job.row),
            Select::ToCancel(session) => {
                self.sorted(limit, |job| job.session == Some(session) && job.cancel_requested, |job| job.row)
            }
            Select::Matching { filter, states, before } => self.sorted(
                limit,
                |job| job.row < before && states & (1 << job.state as u8) != 0 && filter.has(job),
                |job| Reverse(job.row),
            ),
        })
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
    pub(super) fn get(&mut self, id: &str) -> Option<StoredJob> {
        let record = self.jobs.get(self.ids.get(id)?)?.clone();
        let (payload, output) = (self.payload(record.row), self.outputs.get(&record.row).cloned());
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

    fn put(&mut self, record: JobRecord) {
        let row = record.row;
        if record.state == JobState::Ready {
            self.ready.insert(ready_key(&record));
        }
        if record.request.is_keyed() {
            let (pool, key) = record.key();
            let key = (pool.to_owned(), key.to_owned());
            if record.state == JobState::Blocked {
                self.blocked.insert((key.clone(), record.place, row));
            }
            if record.holds_key {
                self.held.insert(key);
            }
        }
        self.jobs.insert(row, record);
    }

    fn take(&mut self, row: i64) {
        let Some(record) = self.jobs.remove(&row) else { return };
        self.ready.remove(&ready_key(&record));
        if record.request.is_keyed() {
            let (pool, key) = record.key();
            let key = (pool.to_owned(), key.to_owned());
            if record.holds_key {
                self.held.remove(&key);
            }
            self.blocked.remove(&(key, record.place, row));
        }
    }

    /// Jobs that `has` picks, in the order of `key` and then of acceptance.
    fn sorted<K: Ord>(
        &self,
        limit: usize,
        has: impl Fn(&JobRecord) -> bool,
        key: impl Fn(&JobRecord) -> K,
    ) -> Vec<JobRecord> {
        let mut jobs: Vec<_> = self.jobs.values().filter(|job| has(job)).collect();
        jobs.sort_by_key(|job| key(job));
        jobs.into_iter().take(limit).map(without_payload).collect()
    }
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

fn ready_key(record: &JobRecord) -> (String, usize, i64, i64) {
    (record.request.job.kind.clone(), record.request.job.criticality.rank(), record.place, record.row)
}
