//! A detached job, as its creator describes it, and as the store keeps it. Its times outlive a process, so they are
//! wall-clock times.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{Attempt, RetryPolicy, SessionId, Token};
use crate::model::{Job, Output, Reason};

/// Begins the ids of jobs that wait for a group.
pub const GROUP_PREFIX: &str = "group/";

/// A job to create. Its fields have passed the checks of [`Job`].
#[derive(Debug, Clone, Default)]
pub struct NewJob {
    /// Chosen by the caller, or random. Unique in the store: the same id with the same payload is the same job.
    pub id: String,
    /// Pool of the kind when the job was created.
    pub pool: String,
    /// The job as a pool runs it.
    pub job: Job,
    /// Request id of the call that created it; empty if there is none.
    pub request_id: String,
    /// Earliest start.
    pub start: Start,
    /// Name of the group that it joins; empty for none. A stored job has its [row](JobRecord::member_of) instead.
    pub group: String,
    /// End of waiting and retries. `None` means never.
    pub expire_at: Option<Timestamp>,
    /// Retry policy, retention and limit.
    pub policy: KindPolicy,
}

/// Retry policy, retention and limit of a job: those of its kind, unless its creator sets others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub struct KindPolicy {
    /// When and how often a failed job is tried again.
    pub retry: RetryPolicy,
    /// How long a result is kept. Default 24 h.
    pub retain_for: Duration,
    /// How long a dead letter is kept. Default 7 d.
    pub retain_dead_for: Duration,
    /// Whether the concurrency of each limit key is limited: [`StoredLimit::per_key`](super::StoredLimit::per_key) says
    /// to how many.
    #[serde(skip)]
    pub has_key_limit: bool,
}

impl Default for KindPolicy {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self { retry: RetryPolicy::default(), retain_for: DAY, retain_dead_for: DAY * 7, has_key_limit: false }
    }
}

/// Earliest start of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Start {
    /// At once.
    #[default]
    Now,
    /// At this time.
    At(Timestamp),
    /// After this delay from its creation.
    After(Duration),
    /// Once its group is complete. The job opens the group: its id is [`GROUP_PREFIX`] and the name of the group.
    Group {
        /// Whether all members must succeed; else all must end.
        must_succeed: bool,
    },
}

impl NewJob {
    /// A new job, with defaults for the other fields.
    pub fn new(id: impl Into<String>, pool: impl Into<String>, job: Job) -> Self {
        Self { id: id.into(), pool: pool.into(), job, ..Self::default() }
    }

    /// The token of an attempt of the job, which has this row.
    pub(crate) fn token(&self, row: i64, attempt: u32, session: SessionId) -> Token {
        Token { id: self.id.clone(), row, attempt, session, keys: self.keys() }
    }

    /// Names of its ordering key and of its limit key, as transactions lock them.
    pub(super) fn keys(&self) -> Vec<String> {
        let ordering = self.ordering_key().map(ordering_lock);
        ordering.into_iter().chain(self.limit_key().map(limit_lock)).collect()
    }

    /// Whether others may wait until it has ended: for its ordering key, or for its limit key.
    pub(super) fn is_keyed(&self) -> bool {
        !self.job.ordering_key.is_empty() || self.policy.has_key_limit
    }

    /// Tenant and ordering key, if it has one.
    pub(super) fn ordering_key(&self) -> Option<(&str, &str)> {
        Some((&*self.job.tenant, &*self.job.ordering_key)).filter(|(_, key)| !key.is_empty())
    }

    /// Kind and limit key, if only so many jobs of the limit key may run.
    pub(super) fn limit_key(&self) -> Option<(&str, &str)> {
        self.policy.has_key_limit.then_some((&*self.job.kind, &*self.job.limit_key))
    }

    /// Distinguishes jobs with the same id: SHA-256 of kind, content type and payload.
    pub(super) fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for part in [self.job.kind.as_bytes(), self.job.content_type.as_bytes(), &self.job.payload] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}

/// A key with what it belongs to: the tenant of an ordering key, or the kind of a limit key.
pub(super) fn owned((of, key): (&str, &str)) -> (String, String) {
    (of.to_owned(), key.to_owned())
}

/// Name of an ordering key, as transactions lock it.
pub(super) fn ordering_lock((tenant, key): (&str, &str)) -> String {
    format!("order {tenant}/{key}")
}

/// Name of a limit key, as transactions lock it.
pub(super) fn limit_lock((kind, key): (&str, &str)) -> String {
    format!("limit {kind}/{key}")
}

/// State of a detached job. The last four are final.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum JobState {
    /// Waits for its start time, or for its next attempt.
    #[default]
    Scheduled,
    /// Waits for a worker.
    Ready,
    /// Waits for an earlier job with the same ordering key, or with the same limit key.
    Blocked,
    /// Leased to a session.
    Running,
    /// Has a result.
    Succeeded,
    /// Dead letter: it failed, and is not tried again.
    Failed,
    /// Was cancelled.
    Cancelled,
    /// Expired before it succeeded.
    Expired,
}

impl JobState {
    /// All states. Stores encode a state as its position here.
    pub const ALL: [Self; 8] = {
        use JobState::{Blocked, Cancelled, Expired, Failed, Ready, Running, Scheduled, Succeeded};
        [Scheduled, Ready, Blocked, Running, Succeeded, Failed, Cancelled, Expired]
    };

    /// Whether the state is final.
    pub fn is_ended(self) -> bool {
        self >= Self::Succeeded
    }
}

/// A job in the store.
#[derive(Debug, Clone, Default)]
pub struct JobRecord {
    /// The job as it was created. Its payload is empty unless requested.
    pub request: NewJob,
    /// Its state.
    pub state: JobState,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// Time of the next start, or the earliest time of the first one.
    pub due_at: Timestamp,
    /// Start of the last attempt.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The last ten attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// Attempts so far, including those that do not count.
    pub starts: u32,
    /// Failed attempts that count, since its creation or the last manual retry.
    pub failures: u32,
    /// Worker crashes in a row.
    pub crashes: u32,
    /// Lost leases in a row.
    pub losses: u32,
    /// Whether the running job must be cancelled.
    pub cancel_requested: bool,
    /// The group that it is a member of: the row of the job that waits for it.
    pub member_of: Option<i64>,
    /// Size of the payload in bytes.
    pub payload_bytes: u64,
    /// Size of the output in bytes.
    pub output_bytes: u64,
    /// [Pattern](super::pattern) of the error of the last attempt.
    pub(super) pattern: String,
    /// Its output, if it succeeded. In lists, without the bytes.
    pub output: Output,
    /// Order of acceptance. It never changes.
    pub row: i64,
    /// Order among ready or blocked jobs.
    pub(super) place: i64,
    /// Whether it holds its ordering key, so that later jobs wait for it.
    pub(super) holds_key: bool,
    pub(super) session: Option<SessionId>,
    pub(super) digest: [u8; 32],
    /// What of the stored job cannot be read; the fields have defaults instead.
    pub(super) fault: Option<&'static str>,
}

impl JobRecord {
    /// At least the size of what a list holds of it, and of its message, in bytes. Other texts are bounded by a
    /// kilobyte.
    pub(super) fn bytes(&self) -> usize {
        let attempt = |it: &Attempt| size_of::<Attempt>() + it.message.len() + it.worker.len();
        let labels = self.request.job.labels.iter().map(|(name, value)| name.len() + value.len());
        1024 + size_of::<Self>() + self.attempts.iter().map(attempt).chain(labels).sum::<usize>()
    }

    /// Name of the outcome of the last attempt; empty if there is none.
    pub(super) fn outcome(&self) -> &'static str {
        self.attempts.last().and_then(|attempt| attempt.outcome).map_or("", Reason::name)
    }

    /// Whether it waits for its group.
    pub fn waits_for_group(&self) -> bool {
        self.state == JobState::Scheduled && self.due_at == Timestamp::MAX && self.request.id.starts_with(GROUP_PREFIX)
    }

    /// When the store may remove it; `None` if it has not ended.
    pub fn purge_at(&self) -> Option<Timestamp> {
        let KindPolicy { retain_for, retain_dead_for, .. } = self.request.policy;
        let kept = if self.state == JobState::Failed { retain_dead_for } else { retain_for };
        self.ended_at.map(|end| end.plus(kept))
    }
}

/// A wall-clock time, in milliseconds since 1970 in UTC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

/// The clock of a store without its own clock.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

impl Timestamp {
    /// The latest time: the end of the year 9999, as in Protobuf and RFC 3339.
    pub const MAX: Self = Self(253_402_300_799_999);

    /// The time that many milliseconds after the start of 1970 in UTC.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the start of 1970 in UTC.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This time plus `duration`, limited to [`MAX`](Self::MAX).
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))).min(Self::MAX)
    }

    /// Time since `earlier`; zero if that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Self(0).plus(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        // A time of a store may be out of range.
        Self::UNIX_EPOCH + time.min(Timestamp::MAX).since(Timestamp(0))
    }
}

/// A job that is meant: the one that has this id, and if `row` is given, only if it is still that one. An id may be
/// used again after its job is removed, maybe by another tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobName {
    /// The id.
    pub id: String,
    /// The [row](JobRecord::row).
    pub row: Option<i64>,
    /// Its end. If given, a job that has run again since then is not meant.
    pub ended_at: Option<Timestamp>,
}

impl From<&str> for JobName {
    fn from(id: &str) -> Self {
        Self { id: id.to_owned(), row: None, ended_at: None }
    }
}

impl From<&JobRecord> for JobName {
    fn from(job: &JobRecord) -> Self {
        Self { id: job.request.id.clone(), row: Some(job.row), ended_at: None }
    }
}

impl JobName {
    /// The job as it ended.
    pub fn ended(job: &JobRecord) -> Self {
        Self { ended_at: job.ended_at, ..Self::from(job) }
    }

    pub(super) fn is(&self, job: &JobRecord) -> bool {
        self.row.is_none_or(|row| row == job.row) && (self.ended_at.is_none() || self.ended_at == job.ended_at)
    }
}
