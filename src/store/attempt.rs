//! One run of a detached job: the right to run it, its end, and what is kept of it.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{NewJob, Timestamp};
use crate::model::{Output, Reason};

/// Attempts that a job keeps.
pub const MAX_ATTEMPTS_KEPT: usize = 10;
/// Longest message of an attempt that is kept, in bytes.
const MAX_MESSAGE: usize = 4096;

/// A replica's time at a store, from its start, or its last lost lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(super) i64);

impl SessionId {
    /// Its number. Later sessions of a store have larger ones.
    #[must_use]
    pub const fn number(self) -> i64 {
        self.0
    }
}

/// The right to settle one attempt. It is void once the job has ended, or is leased again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Token {
    /// The job.
    pub id: String,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The session that leased it.
    pub session: SessionId,
    /// Whether the job has an ordering key.
    pub(super) is_keyed: bool,
}

/// A job that the session runs now.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// For [`settle`](super::JobStore::settle).
    pub token: Token,
    /// The job, with its payload.
    pub request: NewJob,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// Failed attempts that count.
    pub failures: u32,
    /// Crashes of workers in a row.
    pub crashes: u32,
}

/// The end of an attempt.
#[derive(Debug, Clone)]
pub struct Settle {
    /// The attempt.
    pub token: Token,
    /// The worker that ran it.
    pub worker: String,
    /// How the attempt ended.
    pub reason: Reason,
    /// Status code of gRPC, by its number.
    pub code: i32,
    /// What went wrong, for people; empty on success. At most 4 KiB are kept.
    pub message: String,
    /// What becomes of the job.
    pub next: Next,
}

/// What becomes of a job after an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// It has its result.
    Succeeded(Output),
    /// It becomes a dead letter.
    Failed,
    /// It ends as cancelled.
    Cancelled,
    /// It is tried again. The attempt counts.
    Retry {
        /// Time until then.
        after: Duration,
    },
    /// It is ready again, in its old place. The attempt does not count.
    GiveBack,
}

/// What is kept of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its number, from 1.
    pub number: u32,
    /// Its start.
    pub started_at: Timestamp,
    /// Its end, or when its lease was found lost.
    pub ended_at: Timestamp,
    /// The worker that ran it; empty if its lease was lost.
    pub worker: String,
    /// How it ended. `None` if its lease was lost.
    #[serde(serialize_with = "write_reason", deserialize_with = "read_reason")]
    pub outcome: Option<Reason>,
    /// Status code of gRPC, by its number.
    pub code: i32,
    /// What went wrong, for people.
    pub message: String,
}

impl Settle {
    pub(super) fn attempt(&self, started_at: Timestamp, ended_at: Timestamp) -> Attempt {
        let end = self.message.floor_char_boundary(MAX_MESSAGE);
        Attempt {
            number: self.token.attempt,
            started_at,
            ended_at,
            worker: self.worker.clone(),
            outcome: Some(self.reason),
            code: self.code,
            message: self.message[..end].to_owned(),
        }
    }
}

#[expect(clippy::ref_option, reason = "serde passes the field by reference")]
fn write_reason<S: Serializer>(reason: &Option<Reason>, to: S) -> Result<S::Ok, S::Error> {
    reason.map(Reason::name).serialize(to)
}

/// A reason that this version does not know is read as a lost lease rather than refused.
fn read_reason<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Reason>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.and_then(|name| Reason::of(&name)))
}
