//! The messages between the service and a worker. A process on the server's machine exchanges them through file
//! descriptors 3 and 4; an attached worker exchanges the same ones in protobuf.
//!
//! A message is one line of JSON, followed by as many raw bytes as its `bytes` field says, 0 by default. Readers ignore
//! unknown fields. What a worker sends is read [leniently](lenient).

mod lenient;

use std::{collections::BTreeMap, fmt::Display, time::Duration};

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize, de::Error as _};
use tokio_util::codec::Decoder;

use super::Context;
use crate::model::{CODE_NAMES, FailureCode, HandlerError, Job, Limiter, NextAttempt};

/// Version of the protocol.
pub(crate) const VERSION: u32 = 1;
/// Longest line of a message, in bytes. No message needs so much, but a text that was not cut may.
pub(crate) const MAX_LINE: usize = 4 << 20;
/// Maximum bytes after one line. Larger output needs several messages.
pub(crate) const MAX_BYTES: u64 = 1 << 30;
/// Largest [`Frame::Piece`], so that long output is passed on while it is read.
const MAX_PIECE: usize = 64 << 10;
/// Up to this size, the bytes are copied behind their line; more are sent separately.
const INLINE: usize = 16 << 10;
/// Largest number that fits in a duration; the pool allows less.
const MAX_AFTER_MS: f64 = 1e12;
/// Bytes of a broken message that an error quotes.
const SHOWN: usize = 200;

/// A message from a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FromWorker {
    /// The first message: the worker accepts jobs.
    Ready(Ready),
    /// A piece of output, in the bytes that follow.
    Output {
        #[serde(deserialize_with = "lenient::text")]
        id: String,
    },
    /// Progress of a job, from 0 to 1; `None` if nothing is said about it.
    Progress {
        #[serde(deserialize_with = "lenient::text")]
        id: String,
        #[serde(default, deserialize_with = "lenient::number")]
        fraction: Option<f64>,
        #[serde(default, deserialize_with = "lenient::text")]
        message: String,
    },
    /// A job completed; its last piece of output follows.
    Done {
        #[serde(deserialize_with = "lenient::text")]
        id: String,
        #[serde(default, deserialize_with = "lenient::text")]
        content_type: String,
    },
    /// The handler returned an error.
    Failed(Failed),
    /// A message that cannot be read ends its job. Unless it is an answer, the worker still runs that.
    #[serde(skip)]
    Unreadable { id: String, what: String, is_answer: bool },
}

/// A message to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToWorker {
    /// A job, whose payload follows.
    Run(Run),
    /// Asks a job to stop. After `grace_ms`, the worker is forced to stop it.
    Cancel { id: String, reason: String, grace_ms: u64 },
    /// Asks the worker to finish its jobs and exit. After `grace_ms`, it is forced to.
    Leave { grace_ms: u64 },
    /// Asks an attached worker to exit, because it was idle for too long.
    Idle,
    /// A piece of output was passed on. Only attached workers get this message; a full pipe slows down the others.
    Taken { id: String },
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// Must be [`VERSION`].
    pub(crate) protocol: u32,
    /// The kinds that the worker runs; empty means any.
    #[serde(default, deserialize_with = "lenient::list")]
    pub(crate) kinds: Vec<String>,
    /// Name and version, for people.
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failed {
    #[serde(deserialize_with = "lenient::text")]
    pub(crate) id: String,
    /// Name of a gRPC code; any name that handlers cannot return counts as UNKNOWN.
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) code: String,
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) message: String,
    /// Whether another attempt may succeed; if absent, the code decides.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub(crate) retryable: Option<bool>,
    /// When the next attempt may begin; at most an hour.
    #[serde(default, deserialize_with = "lenient::number")]
    pub(crate) retry_after_ms: Option<f64>,
    /// Whether this attempt counts. Default `true`.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub(crate) counts: Option<bool>,
    /// What starts no job until then: `LIMIT_KEY` or `KIND`. Anything else is this job alone.
    #[serde(default, deserialize_with = "lenient::text")]
    pub(crate) scope: String,
}

impl Failed {
    /// The code, for people: a worker may send anything.
    pub(crate) fn code_name(&self) -> &'static str {
        CODE_NAMES.iter().find(|name| **name == self.code).copied().unwrap_or("with an unknown code")
    }

    /// The handler error that the failure means; `worker` names the sender.
    pub(crate) fn error(self, worker: impl Display) -> HandlerError {
        let name = self.code_name();
        let hold = scope(&self.scope);
        let Self { id: _, code, message, retryable, retry_after_ms, counts, scope: _ } = self;
        let code = serde_json::from_value(code.into()).unwrap_or(FailureCode::Unknown);
        let message = if message.is_empty() { format!("{worker} answered {name}") } else { message };
        let after =
            retry_after_ms.filter(|ms| *ms >= 0.0).map(|ms| Duration::from_secs_f64(ms.min(MAX_AFTER_MS) / 1e3));
        let next = NextAttempt { retryable, after, is_uncounted: counts == Some(false), hold };
        HandlerError::Refused { code, message, next }
    }
}

/// What a scope holds; nothing if it is the job alone.
pub(crate) fn scope(name: &str) -> Option<Limiter> {
    match name {
        "LIMIT_KEY" => Some(Limiter::KeyHold),
        "KIND" => Some(Limiter::Hold),
        _ => None,
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Run {
    /// Identifies the job in the messages about it; unique during the life of the worker.
    pub(crate) id: String,
    pub(crate) job_id: String,
    pub(crate) kind: String,
    pub(crate) content_type: String,
    /// Milliseconds until the job is stopped.
    pub(crate) budget_ms: u64,
    pub(crate) request_id: String,
    pub(crate) traceparent: String,
    pub(crate) tenant: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Number of the attempt, from 1.
    pub(crate) attempt: u32,
    /// Id of a detached job, the same for each attempt; empty for other jobs.
    pub(crate) idempotency_key: String,
    /// Identifies this attempt of a detached job; empty for other jobs.
    pub(crate) token: String,
}

impl ToWorker {
    /// Asks to stop a job within a grace.
    pub(super) fn cancel(id: u64, reason: &str, grace: Duration) -> Self {
        Self::Cancel { id: id.to_string(), reason: reason.to_owned(), grace_ms: millis(grace) }
    }

    /// Tells that a piece of a job's output was passed on.
    pub(super) fn taken(id: u64) -> Self {
        Self::Taken { id: id.to_string() }
    }

    /// Asks a worker to exit within a grace.
    pub(super) fn leave(grace: Duration) -> Self {
        Self::Leave { grace_ms: millis(grace) }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Run {
    /// The job of a context, identified by `id`.
    pub(crate) fn of(id: u64, job: &Job, cx: &Context) -> Self {
        let attempt = cx.attempt();
        Self {
            id: id.to_string(),
            job_id: cx.job().to_string(),
            kind: cx.kind().to_string(),
            content_type: job.content_type.clone(),
            budget_ms: millis(cx.budget()),
            request_id: cx.request_id().to_string(),
            traceparent: cx.outgoing_trace().map(|trace| trace.traceparent).unwrap_or_default(),
            tenant: job.tenant.clone(),
            labels: job.labels.clone(),
            attempt: attempt.map_or(1, |attempt| attempt.number),
            idempotency_key: attempt.map_or_else(String::new, |attempt| attempt.job.clone()),
            token: attempt.map_or_else(String::new, ToString::to_string),
        }
    }
}

/// One part of what a worker sends.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Frame {
    /// A line, and the number of bytes that follow in pieces.
    Message(FromWorker, u64),
    /// Some of these bytes; never empty.
    Piece(Bytes),
}

impl FromWorker {
    /// Id of the message's job.
    pub(crate) fn job(&self) -> Option<&str> {
        match self {
            Self::Ready(_) => None,
            Self::Output { id }
            | Self::Progress { id, .. }
            | Self::Done { id, .. }
            | Self::Failed(Failed { id, .. })
            | Self::Unreadable { id, .. } => Some(id),
        }
    }
}

/// A violation of the protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtocolFault {
    /// The line is not JSON, or not a known message.
    #[error("a line is not a JSON message of the protocol ({error}): {shown}")]
    NotAMessage { error: serde_json::Error, shown: String },
    #[error("a line has more than {MAX_LINE} bytes: {shown}")]
    LongLine { shown: String },
    #[error("a line announces that {bytes} bytes are to follow; at most {MAX_BYTES} are allowed: {shown}")]
    ManyBytes { bytes: u64, shown: String },
    /// The message is valid, but must not come at this point.
    #[error("{what}: {shown}")]
    OutOfTurn { what: &'static str, shown: String },
    #[error("an answer announces {announced} bytes, and after them comes what is no message: {shown}")]
    Stray { announced: u64, shown: String },
    /// The stream ended within a message.
    #[error("the descriptor was closed within a message: {shown}")]
    Broken { shown: String },
    #[error("the descriptor cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

/// Reads the messages of a worker. It buffers at most one line and one piece.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    /// Bytes that the last message announced, and those of them that are not read yet.
    announced: u64,
    left: u64,
    /// Bytes of the line that were already searched for its end.
    searched: usize,
}

#[derive(Serialize, Deserialize)]
struct Line<M> {
    #[serde(flatten)]
    message: M,
    #[serde(default, skip_serializing_if = "is_zero", deserialize_with = "lenient::count")]
    bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as the attribute of the field wants it")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl Decoder for Messages {
    type Item = Frame;
    type Error = ProtocolFault;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<Frame>, ProtocolFault> {
        if self.left > 0 {
            let max = usize::try_from(self.left).unwrap_or(usize::MAX).min(MAX_PIECE).min(source.len());
            self.left -= max as u64;
            return Ok((max > 0).then(|| Frame::Piece(source.split_to(max).freeze())));
        }
        if source.first().is_some_and(|byte| *byte != b'{') {
            let error = serde_json::Error::custom("it does not begin with {");
            return Err(ProtocolFault::NotAMessage { error, shown: shown(source) });
        }
        let unseen = &source[self.searched.min(source.len())..];
        let end = unseen.iter().position(|byte| *byte == b'\n').map(|at| self.searched + at);
        self.searched = if end.is_some() { 0 } else { source.len() };
        if end.unwrap_or(source.len()) > MAX_LINE {
            return Err(ProtocolFault::LongLine { shown: shown(source) });
        }
        let Some(end) = end else { return Ok(None) };
        let line = source.split_to(end + 1);
        let (message, bytes) = match serde_json::from_slice(&line) {
            Ok(Line { message, bytes }) => (message, bytes),
            Err(error) => lenient::salvage(&line, &error)
                .ok_or_else(|| ProtocolFault::NotAMessage { error, shown: shown(&line[..end]) })?,
        };
        if bytes > MAX_BYTES {
            return Err(ProtocolFault::ManyBytes { bytes, shown: shown(&line[..end]) });
        }
        (self.announced, self.left) = (bytes, bytes);
        Ok(Some(Frame::Message(message, bytes)))
    }

    fn decode_eof(&mut self, source: &mut BytesMut) -> Result<Option<Frame>, ProtocolFault> {
        match self.decode(source)? {
            None if self.left > 0 || !source.is_empty() => Err(ProtocolFault::Broken { shown: shown(source) }),
            decoded => Ok(decoded),
        }
    }
}

impl Messages {
    /// Whether what comes behind the last message and its bytes begins another one, as far as it is there.
    pub(crate) fn check_next(&self, source: &[u8]) -> Result<(), ProtocolFault> {
        let source = source.get(usize::try_from(self.left).unwrap_or(usize::MAX)..).unwrap_or_default();
        const FIRST: [&str; 6] = ["output", "progress", "done", "failed", "ready", "bytes"];
        let begin: Vec<u8> = source.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).take(12).collect();
        let is_message = FIRST.iter().any(|name| {
            let expected = format!("{{\"{name}\":");
            let seen = begin.len().min(expected.len());
            begin[..seen] == expected.as_bytes()[..seen]
        });
        // Unknown fields may come first.
        let line = source.split_inclusive(|byte| *byte == b'\n').next().filter(|line| line.ends_with(b"\n"));
        let is_line = || line.is_some_and(|line| serde_json::from_slice::<Line<FromWorker>>(line).is_ok());
        if source.first().is_none_or(|byte| *byte == b'{') && (is_message || is_line()) {
            return Ok(());
        }
        Err(ProtocolFault::Stray { announced: self.announced, shown: shown(source) })
    }

    /// Bytes that the last message announced, and that have not come.
    pub(crate) fn missing(&self) -> u64 {
        self.left
    }
}

/// Encodes a message: its line, with the bytes that fit behind it, and the remaining bytes.
pub(crate) fn parts(message: impl Serialize, bytes: Bytes) -> [Bytes; 2] {
    let mut line = line(message, bytes.len());
    if bytes.len() > INLINE {
        return [line.into(), bytes];
    }
    line.extend_from_slice(&bytes);
    [line.into(), Bytes::new()]
}

fn line(message: impl Serialize, bytes: usize) -> Vec<u8> {
    let line = Line { message, bytes: bytes as u64 };
    let mut line = serde_json::to_vec(&line).expect("texts and numbers are JSON");
    line.push(b'\n');
    line
}

impl ProtocolFault {
    /// The fault of a `message` that must not come at this point.
    pub(crate) fn out_of_turn(what: &'static str, message: &FromWorker) -> Self {
        let shown = match message {
            FromWorker::Unreadable { what, .. } => what.clone(),
            message => shown(&line(message, 0)),
        };
        Self::OutOfTurn { what, shown }
    }
}

/// The beginning of a message, printable for an error.
fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(SHOWN)].escape_ascii().to_string()
}

#[cfg(any(test, fuzzing))]
pub(crate) mod tests;
