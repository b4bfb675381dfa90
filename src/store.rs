//! Stores detached jobs while they wait, and for some time after they have ended.
//!
//! [`JobStore`] is the interface; most operations take batches. `lifecycle` has the state changes of a job, `engine`
//! the operations, and `sql` the statements. They are the same for SQLite, in memory or in a file, and for PostgreSQL.

mod attempt;
mod engine;
mod error;
mod job;
mod lifecycle;
mod members;
mod pattern;
mod postgres;
mod request;
mod retry;
mod sql;
mod sqlite;
mod wakes;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;

pub use attempt::{Attempt, Claimed, Next, SessionId, Settle, Token};
pub use error::StoreError;
pub use job::{Clock, GROUP_PREFIX, JobName, JobRecord, JobState, KindPolicy, NewJob, Start, Timestamp};
pub use members::Members;
pub use pattern::pattern;
pub use postgres::{
    DatabaseUrl, InvalidDatabaseUrl, PostgresOptions, inspect_postgres, open_postgres, read_authorities, read_password,
};
pub use request::{
    Action, Bounds, Change, Demand, Depth, Extent, Figures, Filter, Fired, Full, Group, Groups, Order, Overlap, Page,
    Room, Size, StoredLimit, StoredLimits, StoredQuotas, Submission, Submitted, Suspended, Tick, Ticked,
};
pub use retry::RetryPolicy;
pub use sqlite::{
    Salvaged, SqliteFacts, SqliteOptions, backup_sqlite, inspect_sqlite, open_memory, open_shared_memory, open_sqlite,
    salvage_sqlite,
};
pub use wakes::Wakes;

/// Maximum number of jobs of each sort that one call of [`tick`](JobStore::tick) or [`list`](JobStore::list) handles.
pub const BATCH: usize = 1000;

/// A store of detached jobs. Its own clock sets all times.
///
/// Results are in the order of the arguments. An operation whose future is dropped may still take effect.
///
/// # Errors
/// Every operation fails with [`StoreError`] if the store does. A failed operation had no effect, unless the error
/// [is doubtful](StoreError::is_doubtful). [`leased`](Self::leased) then tells which jobs
/// [`submit`](Self::submit) or [`claim`](Self::claim) leased.
#[async_trait::async_trait]
pub trait JobStore: Send + Sync + 'static {
    /// Notifications of the changes that operations make.
    fn wakes(&self) -> &Wakes;

    /// Replaces the quotas of tenants. What a tenant holds beyond its new quota stays.
    fn set_quotas(&self, quotas: StoredQuotas);

    /// Replaces the limits of kinds. Jobs that wait for a limit which was raised become ready one [`tick`](Self::tick)
    /// after another.
    fn set_limits(&self, limits: StoredLimits);

    /// Opens a session. A shared store takes its jobs back if [`extend_lease`](Self::extend_lease) is not called within
    /// `lease`. A store of one process takes them back when it is opened again, and at no other time.
    async fn open_session(&self, lease: Duration) -> Result<SessionId, StoreError>;

    /// Creates jobs, and returns once they are durable. A new job is leased at once if it may start, no other job of
    /// the kind is ready, and there is a session whose lease has not ended.
    async fn submit(&self, submission: Submission) -> Result<Vec<Submitted>, StoreError>;

    /// Leases ready jobs to a session: the most important classes first, then in the order in which jobs became ready.
    async fn claim(&self, room: Room) -> Result<Vec<Claimed>, StoreError>;

    /// Ends attempts. Returns the new state of each job, or `None` if its token is void.
    async fn settle(&self, ends: Vec<Settle>) -> Result<Vec<Option<JobState>>, StoreError>;

    /// Extends the lease of a session. Returns its jobs that must be cancelled.
    ///
    /// # Errors
    /// [`StoreError::SessionLost`] if the store has taken its jobs back.
    async fn extend_lease(&self, session: SessionId) -> Result<Vec<Token>, StoreError>;

    /// Saves how many jobs a session has in each pool, and returns the same of the other sessions whose lease has not
    /// ended. A store of one process has no others, and saves nothing.
    async fn share_demand(&self, session: SessionId, own: Demand) -> Result<Vec<Demand>, StoreError>;

    /// The jobs that are leased to a session.
    async fn leased(&self, session: SessionId) -> Result<Vec<Token>, StoreError>;

    /// Gives back leased jobs of a session that have not begun. Void tokens change nothing.
    ///
    /// # Errors
    /// [`StoreError::SessionLost`] if the store has taken all its jobs back.
    async fn release(&self, session: SessionId, tokens: Vec<Token>) -> Result<(), StoreError>;

    /// Cancels, retries or deletes jobs, or closes their groups, each named once.
    async fn change(&self, jobs: Vec<JobName>, action: Action) -> Result<Vec<Change>, StoreError>;

    /// A job.
    async fn get(&self, id: &str, extent: Extent) -> Result<Option<JobRecord>, StoreError>;

    /// Id of the job of a tenant that holds an ordering key; the key is not empty.
    async fn key_holder(&self, tenant: &str, key: &str) -> Result<Option<String>, StoreError>;

    /// When the rate of a limit key of a kind lets the next of its jobs become ready; `None` if it does not prevent one
    /// now.
    async fn next_start(&self, kind: &str, key: &str) -> Result<Option<Timestamp>, StoreError>;

    /// At most `length` bytes of the output of the job of this [row](JobRecord::row), from `offset` on.
    async fn output(&self, row: i64, offset: u64, length: u64) -> Result<Bytes, StoreError>;

    /// Lists at most `limit` jobs, and at most [`BATCH`]. `after` is [`Page::next`] of the page before, or the
    /// [row](JobRecord::row) of a job, to go on with. A list that is dropped is interrupted.
    async fn list(&self, filter: Filter, order: Order, after: Option<i64>, limit: usize) -> Result<Page, StoreError>;

    /// Counts jobs by kind, outcome and error of the last attempt. Like a list, it may be dropped.
    async fn group(&self, filter: Filter) -> Result<Groups, StoreError>;

    /// The members of the group that the job of this row waits for, or has waited for.
    async fn members(&self, row: i64) -> Result<Option<Members>, StoreError>;

    /// Random bytes that all servers of the store know, and no caller.
    async fn secret(&self) -> Result<Bytes, StoreError>;

    /// Forgets the last ticks of all schedules but these, so that they are new when they return.
    async fn keep_schedules(&self, names: Vec<String>) -> Result<(), StoreError>;

    /// Fires a tick of a schedule, at most once over all replicas. Only a tick after the last fired one fires. A last
    /// tick that is far ahead is not believed: a clock was wrong.
    async fn fire(&self, tick: Tick) -> Result<Fired, StoreError>;

    /// Notes that a pool is suspended, or with `None` that it is not. The store sets the time, and keeps that of an
    /// earlier suspension of the same sort.
    async fn suspend(&self, pool: &str, suspended: Option<Suspended>) -> Result<(), StoreError>;

    /// The suspended pools by name, at most [`BATCH`].
    async fn suspended(&self) -> Result<BTreeMap<String, Suspended>, StoreError>;

    /// Maintenance, to be called every second: starts due jobs, expires jobs, and removes jobs after their retention.
    /// With `end_leases`, it also takes back the jobs of sessions whose lease has ended. Leave that out after an outage
    /// of the store, because the owners may not have reached it either.
    async fn tick(&self, end_leases: bool) -> Result<Ticked, StoreError>;

    /// Writes to the store, without a change of a job. Fails where [`submit`](Self::submit) would, except for its
    /// bounds.
    async fn probe(&self) -> Result<(), StoreError>;

    /// Numbers of jobs by kind.
    async fn depths(&self) -> Result<Vec<(String, Depth)>, StoreError>;

    /// Size of the store's contents, as its bounds count it; an estimate on PostgreSQL. Tests compare it with a count.
    #[doc(hidden)]
    async fn size(&self) -> Result<Size, StoreError>;

    /// What it measures of its database.
    fn figures(&self) -> Figures {
        Figures::default()
    }

    /// Closes the store, once the operations that have started are durable. Later operations fail with
    /// [`StoreError::Closed`].
    async fn close(&self);

    /// Waits until the job has ended, and returns it without its payload; `None` if there is no such job. Cancel safe.
    async fn wait(&self, job: JobName) -> Result<Option<JobRecord>, StoreError> {
        loop {
            let mut changed = self.wakes().watch(&job.id);
            match self.get(&job.id, Extent::Output).await?.filter(|found| job.is(found)) {
                Some(found) if !found.state.is_ended() => {}
                answer => return Ok(answer),
            }
            // The store has the sender as long as this waits.
            let _ = changed.changed().await;
        }
    }
}
