//! One attempt of a detached job: its token, its end and its record. `retry.rs` says whether another one follows.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{NewJob, Timestamp};
use crate::model::{Output, Reason};

/// Identifies a replica at a store, from its start or its last lost lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(super) i64);

/// The right to end one attempt. It becomes void when the job ends or is leased again.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    /// The job.
    pub id: String,
    /// Its [row](super::JobRecord::row). An id may be used again after its job is removed.
    pub row: i64,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The session that leased it.
    pub session: SessionId,
    /// Names of the [keys](NewJob::keys) of the job.
    pub(super) keys: Vec<String>,
}

impl Token {
    /// The first of all possible tokens of a job, in their order.
    pub(crate) fn first(id: &str) -> Self {
        Self { id: id.to_owned(), row: i64::MIN, attempt: 0, session: SessionId(i64::MIN), keys: Vec::new() }
    }
}

/// A job that is leased to a session.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// Token for [`settle`](super::JobStore::settle).
    pub token: Token,
    /// The job, with its payload.
    pub request: NewJob,
    /// Failed attempts that count.
    pub failures: u32,
    /// Worker crashes in a row.
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
    /// gRPC status code, as a number.
    pub code: i32,
    /// Error message; empty on success. At most 4 KiB are stored.
    pub message: String,
    /// What follows for the job.
    pub next: Next,
}

impl Settle {
    /// Bytes of the output.
    pub(crate) fn output_bytes(&self) -> usize {
        if let Next::Succeeded(output) = &self.next { output.bytes.len() } else { 0 }
    }
}

/// What follows for a job after an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The job succeeded with this output.
    Succeeded(Output),
    /// The job becomes a dead letter.
    Failed,
    /// The job ends as cancelled.
    Cancelled,
    /// The job is tried again. The attempt counts.
    Retry {
        /// Delay before the next attempt.
        after: Duration,
    },
    /// The job is tried again. The attempt does not count, because the job was not tried, or must not be yet.
    Later {
        /// Delay before the next attempt.
        after: Duration,
    },
    /// The job is ready again in its old place. The attempt does not count, but a crash makes the job a suspect.
    GiveBack,
}

/// The record of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its number, from 1.
    pub number: u32,
    /// Its start.
    pub started_at: Timestamp,
    /// Its end, or the time when its lease was found lost.
    pub ended_at: Timestamp,
    /// The worker that ran it; empty if its lease was lost.
    pub worker: String,
    /// How the attempt ended; `None` if its lease was lost.
    #[serde(serialize_with = "write_reason", deserialize_with = "read_reason")]
    pub outcome: Option<Reason>,
    /// gRPC status code, as a number.
    pub code: i32,
    /// Error message.
    pub message: String,
}

#[expect(clippy::ref_option, reason = "serde passes the field by reference")]
fn write_reason<S: Serializer>(reason: &Option<Reason>, to: S) -> Result<S::Ok, S::Error> {
    reason.map(Reason::name).serialize(to)
}

/// An unknown reason, from a newer version, is read as a lost lease.
fn read_reason<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Reason>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.and_then(|name| Reason::of(&name)))
}
