//! What an engine needs of the place where the rows of its jobs are.

use std::time::Duration;

use bytes::Bytes;

use super::turns::Places;
use crate::store::{Filter, JobRecord, SessionId, Size, StoreError, Timestamp};

/// Rows of jobs, sessions and schedules, within one transaction.
pub(in crate::store) trait Rows {
    /// That many new numbers, each larger than the one before.
    fn numbers(&mut self, count: usize) -> Result<Vec<i64>, StoreError>;
    /// What the rows hold. It may be an estimate.
    fn size(&self) -> Size;
    /// Changes the number of jobs that have not ended, and of bytes.
    fn resize(&mut self, jobs: i64, bytes: i64);
    /// Adds jobs with their payloads. Gives the rows that were added; the ids of the others are taken.
    fn insert(&mut self, records: &[JobRecord]) -> Result<Vec<i64>, StoreError>;
    /// Those of the jobs that there are, in any order, without their payloads.
    fn find(&mut self, ids: &[&str]) -> Result<Vec<JobRecord>, StoreError>;
    /// Keeps what changes in the life of jobs.
    fn save(&mut self, records: &[JobRecord]) -> Result<(), StoreError>;
    /// Removes jobs, their payloads and their outputs.
    fn remove(&mut self, records: &[JobRecord]) -> Result<(), StoreError>;
    /// Adds the payloads to records.
    fn load_payloads(&mut self, records: &mut [JobRecord]) -> Result<(), StoreError>;
    /// Keeps outputs of rows.
    fn insert_outputs(&mut self, outputs: &[(i64, Bytes)]) -> Result<(), StoreError>;
    /// Removes the output of a job.
    fn remove_output(&mut self, record: &JobRecord) -> Result<(), StoreError>;
    /// Whether a job holds the ordering key in its pool.
    fn is_key_held(&mut self, pool: &str, key: &str) -> Result<bool, StoreError>;
    /// At most `limit` jobs in the order of the selection.
    fn select(&mut self, which: Select<'_>, limit: usize) -> Result<Vec<JobRecord>, StoreError>;
    /// Places of the ready jobs of each tenant, by kind and class.
    fn places(&mut self) -> Result<Vec<Places>, StoreError>;
    /// Length of a session's lease. The session is kept to the end of the transaction.
    fn session(&mut self, session: SessionId) -> Result<Option<Duration>, StoreError>;
    /// Keeps a session and the end of its lease.
    fn set_session(&mut self, session: SessionId, lease: Duration, end: Timestamp) -> Result<(), StoreError>;
    /// Removes the sessions whose lease has ended.
    fn remove_sessions(&mut self, now: Timestamp) -> Result<Vec<SessionId>, StoreError>;
    /// The last tick of a schedule, and the id of its run.
    fn schedule(&mut self, name: &str) -> Result<Option<(Timestamp, String)>, StoreError>;
    /// Keeps the last tick of a schedule, and the id of its run.
    fn set_schedule(&mut self, name: &str, tick: Timestamp, run: &str) -> Result<(), StoreError>;
}

/// A selection of jobs.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) enum Select<'a> {
    /// Ready jobs of a kind and a class's rank that have not expired, by place.
    Ready(&'a str, usize, Timestamp),
    /// Jobs that wait for a key of a pool, by place.
    Blocked(&'a str, &'a str),
    /// Jobs whose start has come, in its order.
    Due(Timestamp),
    /// Jobs that wait, and whose time is over.
    Expired(Timestamp),
    /// Jobs past their retention.
    Purgeable(Timestamp),
    /// Jobs that run in a session.
    Leased(SessionId),
    /// Jobs that run in a session and are to be cancelled.
    ToCancel(SessionId),
    /// Jobs of a filter: the newest first.
    Matching {
        /// The filter, but for its states.
        filter: &'a Filter,
        /// States as bits, at the position of each.
        states: i64,
        /// Row before which they were accepted.
        before: i64,
    },
}
