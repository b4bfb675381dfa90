//! Rows in memory, in their simplest form: what is not found by an id is found by looking at all jobs.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, hash_map::Entry},
    time::Duration,
};

use bytes::Bytes;

use crate::store::{
    Depth, Filter, JobRecord, JobState, SessionId, Size, StoreError, StoredJob, Timestamp,
    engine::{Rows, Select},
};

#[derive(Default)]
pub(super) struct MemoryRows {
    jobs: BTreeMap<i64, JobRecord>,
    ids: HashMap<String, i64>,
    outputs: HashMap<i64, Bytes>,
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
                self.jobs.insert(record.row, record.clone());
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
            self.jobs.insert(record.row, record);
        }
        Ok(())
    }

    fn remove(&mut self, records: &[JobRecord]) -> Result<(), StoreError> {
        for record in records {
            self.jobs.remove(&record.row);
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
        Ok(self.jobs.values().any(|job| job.holds_key && job.key() == (pool, key)))
    }

    fn select(&mut self, which: Select<'_>, limit: usize) -> Result<Vec<JobRecord>, StoreError> {
        use JobState::{Blocked, Ready, Running, Scheduled};
        Ok(match which {
            Select::Ready(kind, rank, now) => {
                let is_of =
                    |job: &JobRecord| job.request.job.kind == kind && job.request.job.criticality.rank() == rank;
                let is_ready = |job: &JobRecord| job.state == Ready && is_of(job) && !job.is_expired(now);
                self.sorted(limit, is_ready, |job| job.place)
            }
            Select::Blocked(pool, key) => {
                self.sorted(limit, |job| job.state == Blocked && job.key() == (pool, key), |job| job.place)
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
