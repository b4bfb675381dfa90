//! The operations of a store, within one transaction. They change rows, and collect the notifications to send after the
//! commit.

mod fair_order;
mod operate;
mod submit;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

pub(super) use fair_order::{FairOrder, Places};

use super::{
    Bounds, Claimed, Filter, JobRecord, JobState, Room, SessionId, Settle, StoreError, Timestamp, Token,
    sql::Connection, wakes::Changes,
};
use crate::model::Criticality;

/// A selection of jobs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Select<'a> {
    /// Ready jobs of a kind and a class's rank that have not expired, by place.
    Ready(&'a str, usize, Timestamp),
    /// Jobs that wait for an ordering key of a pool, by place.
    Blocked(&'a str, &'a str),
    /// Jobs whose start time has come, by that time.
    Due(Timestamp),
    /// Waiting jobs that have expired.
    Expired(Timestamp),
    /// Jobs whose retention has ended.
    Purgeable(Timestamp),
    /// Jobs that run in a session.
    Leased(SessionId),
    /// Running jobs of a session that must be cancelled.
    ToCancel(SessionId),
    /// Jobs that match a filter, newest first.
    Matching {
        /// The filter; `states` replaces its states.
        filter: &'a Filter,
        /// States as bits: bit number is position in [`JobState::ALL`].
        states: i64,
        /// Only jobs with a smaller row number.
        before: i64,
    },
}

/// The last tick of a schedule.
#[derive(Debug, Clone)]
pub(super) struct LastTick {
    pub(super) at: Timestamp,
    /// Pattern and time zone by which it ticked.
    pub(super) pattern: String,
    /// Id of the last job that was created.
    pub(super) run: String,
}

/// Operations on `rows`, at the time `now`.
pub(super) struct Engine<C> {
    pub(super) rows: C,
    pub(super) now: Timestamp,
    pub(super) changes: Changes,
    bounds: Bounds,
    /// Shared by the engines of a process.
    fair_order: Arc<Mutex<FairOrder>>,
}

impl<C: Connection> Engine<C> {
    pub(super) fn new(rows: C, bounds: Bounds, fair_order: Arc<Mutex<FairOrder>>) -> Self {
        Self { rows, now: Timestamp::default(), changes: Changes::default(), bounds, fair_order }
    }

    /// Starts the first operation of a transaction, at time `now`.
    pub(super) fn start(&mut self, now: Timestamp) -> Result<(), StoreError> {
        self.now = now;
        let mut fair_order = self.fair_order.lock();
        if !fair_order.is_loaded {
            fair_order.load(self.rows.places()?);
        }
        Ok(())
    }

    pub(super) fn open_session(&mut self, lease: Duration) -> Result<SessionId, StoreError> {
        let session = SessionId(self.number()?);
        self.rows.set_session(session, lease, self.now.plus(lease))?;
        Ok(session)
    }

    pub(super) fn extend_lease(&mut self, session: SessionId) -> Result<Vec<Token>, StoreError> {
        let lease = self.rows.session(session)?.ok_or(StoreError::SessionLost)?;
        self.rows.set_session(session, lease, self.now.plus(lease))?;
        let jobs = self.rows.select(Select::ToCancel(session), usize::MAX)?;
        Ok(jobs.iter().filter_map(JobRecord::token).collect())
    }

    pub(super) fn claim(&mut self, room: &Room) -> Result<Vec<Claimed>, StoreError> {
        self.rows.session(room.session)?.ok_or(StoreError::SessionLost)?;
        let mut records = Vec::new();
        for (kind, &count) in &room.kinds {
            records.extend(self.ready(kind, count)?);
        }
        let mut bytes = 0;
        records.retain(|record| {
            let fits = bytes < room.bytes as u64;
            bytes += record.payload_bytes;
            fits
        });
        for record in &mut records {
            record.lease(room.session, self.now);
        }
        self.rows.save(&records)?;
        self.rows.load_payloads(&mut records)?;
        Ok(records.into_iter().filter_map(JobRecord::claimed).collect())
    }

    /// Ready jobs of a kind: important classes first, then by place.
    fn ready(&mut self, kind: &str, count: usize) -> Result<Vec<JobRecord>, StoreError> {
        let mut records = Vec::new();
        for class in Criticality::BY_IMPORTANCE {
            let left = count - records.len();
            if left > 0 {
                let found = self.rows.select(Select::Ready(kind, class.rank(), self.now), left)?;
                let last = found.last().map(|record| record.place);
                self.fair_order.lock().claimed(kind, class.rank(), last, found.len() < left);
                records.extend(found);
            }
        }
        Ok(records)
    }

    pub(super) fn settle(&mut self, ends: &[&Settle]) -> Result<Vec<Option<JobState>>, StoreError> {
        let ids: Vec<_> = ends.iter().map(|end| end.token.id.as_str()).collect();
        let records = self.rows.find(&ids)?.into_iter();
        let mut records: HashMap<_, _> = records.map(|record| (record.request.id.clone(), record)).collect();
        let mut settled = Vec::new();
        let mut answers = Vec::with_capacity(ends.len());
        for end in ends {
            // Settled jobs are removed from the map, so a second end for the same attempt is void.
            let is_valid = |record: &JobRecord| record.token().as_ref() == Some(&end.token);
            let valid =
                if records.get(&end.token.id).is_some_and(is_valid) { records.remove(&end.token.id) } else { None };
            let Some(mut record) = valid else {
                answers.push(None);
                continue;
            };
            record.settle(end, self.now);
            self.changes.returned |= record.state == JobState::Ready;
            answers.push(Some(record.state));
            settled.push(record);
        }
        self.rows.resize(0, settled.iter().map(|record| record.output.bytes.len() as i64).sum());
        self.save_changed(settled)?;
        Ok(answers)
    }

    /// Saves changed records. For each that has ended, the next job of its ordering key becomes ready.
    fn save_changed(&mut self, mut records: Vec<JobRecord>) -> Result<(), StoreError> {
        let mut released = Vec::new();
        for record in &mut records {
            self.changes.ready |= record.state == JobState::Ready;
            if record.state.is_ended() {
                self.rows.resize(-1, 0);
                self.changes.ended.push(record.request.id.clone());
                if record.release_key() {
                    released.push((record.request.pool.clone(), record.request.job.ordering_key.clone()));
                }
            }
        }
        self.rows.save(&records)?;
        for (pool, key) in released {
            let mut next = self.rows.select(Select::Blocked(&pool, &key), 1)?;
            for record in &mut next {
                record.enter(false, self.fair_order.lock().next(record));
                self.changes.ready = true;
            }
            self.rows.save(&next)?;
        }
        Ok(())
    }

    /// Makes a job ready in the fair order of tenants, or blocked behind the job that holds its ordering key.
    fn enter(&mut self, record: &mut JobRecord) -> Result<(), StoreError> {
        let (pool, key) = record.key();
        let key_is_held = record.needs_key() && self.rows.is_key_held(pool, key)?;
        let place = if key_is_held { self.number()? } else { self.fair_order.lock().next(record) };
        record.enter(key_is_held, place);
        Ok(())
    }

    fn number(&mut self) -> Result<i64, StoreError> {
        self.rows.numbers(1)?.pop().ok_or_else(|| StoreError::Database("numbers are missing".to_owned()))
    }
}
