//! Where detached jobs wait, and are kept when they have ended.
//!
//! [`JobStore`] is the interface, batch first. `lifecycle` holds the changes of a job's state, and `engine` the
//! operations; both are the same for every store. A store gives the engine its rows: `memory` in maps, `sql` in tables
//! of SQLite or PostgreSQL.

mod attempt;
mod engine;
mod error;
mod job;
mod lifecycle;
mod memory;
mod postgres;
mod request;
mod retry;
mod spec;
mod sql;
mod sqlite;
mod time;
mod wakes;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use attempt::{Attempt, Claimed, MAX_ATTEMPTS_KEPT, Next, SessionId, Settle, Token};
pub use error::StoreError;
pub use job::{JobRecord, JobState, NewJob, Start, StoredJob};
pub use memory::MemoryStore;
pub use postgres::{
    DatabaseUrl, InvalidDatabaseUrl, PostgresOptions, inspect_postgres, open_postgres, read_authorities, read_password,
};
pub use request::{
    Action, Bounds, Capabilities, Change, Depth, Filter, Fired, Overlap, Page, Room, Size, Submission, Submitted, Tick,
    Ticked,
};
pub use retry::RetryPolicy;
pub use sqlite::{SqliteFacts, SqliteOptions, inspect_sqlite, open_sqlite};
pub use time::{Clock, Timestamp};
pub use wakes::Wakes;

/// Most jobs that one call of [`tick`](JobStore::tick), [`list`](JobStore::list) or [`purge`](JobStore::purge) handles
/// of each sort.
pub const BATCH: usize = 1000;

/// A store of detached jobs. Time is the store's clock.
///
/// Lists of answers have the order of what was asked. An operation whose future is dropped may still take effect:
/// run [`submit`](Self::submit) with room and [`claim`](Self::claim) to their end, or leased jobs stay with the session.
///
/// # Errors
/// Every operation fails with [`StoreError`] if the store does; then nothing of the operation was kept, except that a
/// lost connection to PostgreSQL leaves that open.
#[async_trait::async_trait]
pub trait JobStore: Send + Sync + 'static {
    /// What the store can do.
    fn capabilities(&self) -> Capabilities;

    /// Signals of what operations changed.
    fn wakes(&self) -> &Wakes;

    /// Starts a session. Its jobs go back when it has not called [`beat`](Self::beat) for the time of `lease`.
    async fn open_session(&self, lease: Duration) -> Result<SessionId, StoreError>;

    /// Creates jobs, and answers when they are durable. Jobs of kinds for which there is room, and of which none is
    /// ready before them, are leased at once; none is if the lease of the session has ended.
    async fn submit(&self, submission: Submission) -> Result<Vec<Submitted>, StoreError>;

    /// Leases ready jobs to a session: important classes first, then in the order in which they became ready.
    async fn claim(&self, room: Room) -> Result<Vec<Claimed>, StoreError>;

    /// Ends attempts. Gives the state of each job after it, or `None` if its token is void.
    async fn settle(&self, ends: Vec<Settle>) -> Result<Vec<Option<JobState>>, StoreError>;

    /// Extends the lease of a session. Gives its jobs that are to be cancelled.
    ///
    /// # Errors
    /// [`StoreError::SessionLost`] if its jobs have been taken back.
    async fn beat(&self, session: SessionId) -> Result<Vec<Token>, StoreError>;

    /// Gives back the jobs of a session, but for those of `held`. A session whose claim failed may have leased jobs of
    /// which it does not know.
    ///
    /// # Errors
    /// [`StoreError::SessionLost`] if all its jobs have been taken back.
    async fn release(&self, session: SessionId, held: Vec<Token>) -> Result<(), StoreError>;

    /// Cancels, retries or deletes jobs.
    async fn change(&self, ids: Vec<String>, action: Action) -> Result<Vec<Change>, StoreError>;

    /// Removes at most [`BATCH`] ended jobs. Gives their number; call it again until that is zero.
    async fn purge(&self, filter: Filter) -> Result<usize, StoreError>;

    /// A job with its output, and with its payload if that is asked for.
    async fn get(&self, id: &str, with_payload: bool) -> Result<Option<StoredJob>, StoreError>;

    /// At most `limit` jobs, and never more than [`BATCH`], the newest first, from a page's token on.
    ///
    /// # Errors
    /// [`StoreError::InvalidPageToken`] for any other token.
    async fn list(&self, filter: Filter, page: Option<String>, limit: usize) -> Result<Page, StoreError>;

    /// Fires ticks of schedules, each at most once over all replicas. Only ticks later than the last one fire.
    async fn fire(&self, ticks: Vec<Tick>) -> Result<Vec<Fired>, StoreError>;

    /// Maintenance, to be called each second: starts what is due, expires jobs, and removes what is past its retention.
    /// `end_leases` takes back the jobs of sessions whose lease is over. A caller that itself could not reach the store
    /// for a while leaves that out, because their owners may not have reached it either.
    async fn tick(&self, end_leases: bool) -> Result<Ticked, StoreError>;

    /// How many jobs of each kind there are, by kind.
    async fn depths(&self) -> Result<Vec<(String, Depth)>, StoreError>;

    /// What the store holds. On PostgreSQL, an estimate.
    async fn size(&self) -> Result<Size, StoreError>;

    /// Whether the store is intact. Reads all of it.
    async fn check(&self) -> Result<(), StoreError>;

    /// Ends the store, when what it began is kept. Later operations fail with [`StoreError::Closed`].
    async fn close(&self);

    /// The job without its payload, once it has ended; `None` if there is no such job. Cancel safe.
    async fn wait(&self, id: &str) -> Result<Option<StoredJob>, StoreError> {
        loop {
            let mut end = self.wakes().watch(id);
            match self.get(id, false).await? {
                Some(job) if !job.record.state.is_ended() => {}
                answer => return Ok(answer),
            }
            // An error means that the job has ended, too.
            let _ = end.changed().await;
        }
    }
}
