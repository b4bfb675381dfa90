//! A detached job: as its creator describes it, and as the store keeps it.

use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{Attempt, RetryPolicy, SessionId, Timestamp, Token};
use crate::model::{Job, Output};

/// A job to create. Its texts have passed the checks of [`Job`].
#[derive(Debug, Clone)]
pub struct NewJob {
    /// Chosen by the caller, or drawn. Unique in the store; the same id with the same payload is the same job.
    pub id: String,
    /// Pool of the kind. Ordering keys are keys of one pool.
    pub pool: String,
    /// The work.
    pub job: Job,
    /// Request id of the call that created it; empty if none.
    pub request_id: String,
    /// When it may start first.
    pub start: Start,
    /// End of waiting and of retries. `None` means never.
    pub expire_at: Option<Timestamp>,
    /// How it is tried again.
    pub retry: RetryPolicy,
    /// How long its result is kept after it has ended. Default 24 h.
    pub retain_for: Duration,
    /// How long it is kept as a dead letter. Default 7 d.
    pub retain_dead_for: Duration,
}

/// When a job may start first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Start {
    /// At once.
    #[default]
    Now,
    /// At this time.
    At(Timestamp),
    /// This long after its creation.
    After(Duration),
}

impl NewJob {
    /// A job with defaults for the rest.
    #[must_use]
    pub fn new(id: impl Into<String>, pool: impl Into<String>, job: Job) -> Self {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        Self {
            id: id.into(),
            pool: pool.into(),
            job,
            request_id: String::new(),
            start: Start::Now,
            expire_at: None,
            retry: RetryPolicy::default(),
            retain_for: DAY,
            retain_dead_for: DAY * 7,
        }
    }

    /// The token of its first attempt, if a session leases it as it is created.
    pub(crate) fn first_token(&self, session: SessionId) -> Token {
        Token { id: self.id.clone(), attempt: 1, session, is_keyed: self.is_keyed() }
    }

    /// Whether it has an ordering key.
    pub(super) fn is_keyed(&self) -> bool {
        !self.job.ordering_key.is_empty()
    }

    /// Tells apart jobs that have the same id: SHA-256 of kind, content type and payload.
    pub(super) fn digest(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for part in [self.job.kind.as_bytes(), self.job.content_type.as_bytes(), &self.job.payload] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}

/// State of a detached job. The last four are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum JobState {
    /// It waits for its start time, or for its next attempt.
    Scheduled,
    /// It waits for a worker.
    Ready,
    /// It waits for an earlier job with its ordering key.
    Blocked,
    /// A session has leased it.
    Running,
    /// It has a result.
    Succeeded,
    /// It is a dead letter: it failed, and is not tried again.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// Its time was over before it succeeded.
    Expired,
}

impl JobState {
    /// All states. A store keeps a state as its position.
    pub const ALL: [Self; 8] = [
        Self::Scheduled,
        Self::Ready,
        Self::Blocked,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
        Self::Expired,
    ];

    /// Whether the state is final.
    #[must_use]
    pub fn is_ended(self) -> bool {
        self >= Self::Succeeded
    }
}

/// A job as the store keeps it, without its output.
#[derive(Debug, Clone)]
pub struct JobRecord {
    /// The job as it was created. Its payload is empty in lists.
    pub request: NewJob,
    /// Its state.
    pub state: JobState,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it may start, or might start first.
    pub due_at: Timestamp,
    /// Start of the last attempt.
    pub started_at: Option<Timestamp>,
    /// Its end.
    pub ended_at: Option<Timestamp>,
    /// The last ten attempts, the oldest first.
    pub attempts: Vec<Attempt>,
    /// Attempts so far, with those that do not count.
    pub starts: u32,
    /// Failed attempts that count, since its creation or the last retry by hand.
    pub failures: u32,
    /// Crashes of workers in a row.
    pub crashes: u32,
    /// Whether it is to be cancelled while it runs.
    pub cancel_requested: bool,
    /// Size of the payload in bytes.
    pub payload_bytes: u64,
    /// Size of the output in bytes.
    pub output_bytes: u64,
    /// Media type of the output; empty when unspecified.
    pub output_type: String,
    /// Order of acceptance. It never changes.
    pub(super) row: i64,
    /// Order among ready or blocked jobs.
    pub(super) place: i64,
    /// Whether later jobs with its ordering key wait for it.
    pub(super) holds_key: bool,
    pub(super) session: Option<SessionId>,
    pub(super) digest: [u8; 32],
}

impl JobRecord {
    /// When the store may remove it. `None` while it has not ended.
    #[must_use]
    pub fn purge_at(&self) -> Option<Timestamp> {
        let is_dead = self.state == JobState::Failed;
        let kept = if is_dead { self.request.retain_dead_for } else { self.request.retain_for };
        self.ended_at.map(|end| end.plus(kept))
    }
}

/// A job with its payload and its output.
#[derive(Debug, Clone)]
pub struct StoredJob {
    /// The job, with its payload.
    pub record: JobRecord,
    /// Its output, if it succeeded.
    pub output: Option<Output>,
}

impl StoredJob {
    pub(super) fn new(mut record: JobRecord, payload: Bytes, output: Bytes) -> Self {
        record.request.job.payload = payload;
        let has_output = record.state == JobState::Succeeded;
        let content_type = record.output_type.clone();
        let output = has_output.then_some(Output { bytes: output, content_type });
        Self { record, output }
    }
}
