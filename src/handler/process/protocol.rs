//! What the service and a worker say to each other, on the worker's file descriptors 3 and 4.
//!
//! A message is one line of JSON, then as many raw bytes as its `bytes` says; none where it says nothing. Fields that a
//! reader does not know are ignored.

use std::{collections::BTreeMap, fmt::Display};

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio_util::codec::Decoder;

use crate::{
    handler::Context,
    model::{FailureCode, HandlerError, Job},
};

/// Version of the protocol.
pub(crate) const VERSION: u32 = 1;
/// Most bytes of the line of a message.
pub(crate) const MAX_LINE: usize = 64 << 10;
/// Most bytes that follow one line. Output may have more, in several messages.
pub(crate) const MAX_BYTES: u64 = 1 << 30;
/// Most bytes of one [`Frame::Piece`], so that long output is handed on while it is read.
const MAX_PIECE: usize = 64 << 10;
/// Bytes that follow in the buffer of their line; more of them are sent as they are.
const INLINE: usize = 16 << 10;
/// Bytes of a broken message that its fault shows.
const SHOWN: usize = 200;

/// What a worker says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FromWorker {
    /// Its first word: it takes jobs.
    Ready(Ready),
    /// A piece of output, which follows.
    Output(OfJob),
    /// How far a job is.
    Progress(ToldProgress),
    /// A job completed; its last piece of output follows.
    Done(Done),
    /// The handler says no.
    Failed(Failed),
}

/// What the service says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ToWorker {
    /// A job, whose payload follows.
    Run(Run),
    /// Asks a job to stop.
    Cancel(Cancel),
    /// Asks the worker to finish what it runs, and to exit.
    Leave(Leave),
    /// A piece of output was passed on. Only attached workers are told: others wait for their pipe.
    Taken(OfJob),
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// [`VERSION`].
    pub(crate) protocol: u32,
    /// Kinds that it runs; any where there are none.
    #[serde(default)]
    pub(crate) kinds: Vec<String>,
    /// Name and version, for people.
    #[serde(default)]
    pub(crate) name: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct OfJob {
    pub(crate) id: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToldProgress {
    pub(crate) id: String,
    /// From 0 to 1.
    #[serde(default)]
    pub(crate) fraction: f64,
    #[serde(default)]
    pub(crate) message: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) content_type: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failed {
    pub(crate) id: String,
    /// Name of a gRPC code; UNKNOWN where it is not one that handlers have.
    #[serde(default)]
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) message: String,
    /// Whether another attempt may do better; absent, the code decides.
    #[serde(default)]
    pub(crate) retryable: Option<bool>,
}

impl Failed {
    /// The error of the handler; `worker` answered it.
    pub(crate) fn error(self, worker: impl Display) -> HandlerError {
        let Self { id: _, code: name, message, retryable } = self;
        let code = serde_json::from_value(name.as_str().into()).unwrap_or(FailureCode::Unknown);
        let message = if message.is_empty() { format!("{worker} answered {name}") } else { message };
        HandlerError::Refused { code, message, retryable }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Run {
    /// Names the job in the messages about it; unique in the life of the worker.
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
    /// Id of a detached job, the same for each attempt; empty for others.
    pub(crate) idempotency_key: String,
    /// Names this attempt of a detached job; empty for others.
    pub(crate) token: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cancel {
    pub(crate) id: String,
    pub(crate) reason: String,
    /// Milliseconds until the worker is made to stop.
    pub(crate) grace_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Leave {
    /// Milliseconds until the worker is made to stop.
    pub(crate) grace_ms: u64,
}

impl Run {
    /// The job of a context, under the name `id`.
    pub(crate) fn of(id: u64, job: &Job, cx: &Context) -> Self {
        let attempt = cx.attempt();
        Self {
            id: id.to_string(),
            job_id: cx.job().to_string(),
            kind: cx.kind().to_string(),
            content_type: job.content_type.clone(),
            budget_ms: u64::try_from(cx.budget().as_millis()).unwrap_or(u64::MAX),
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

/// A part of what is read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Frame<M> {
    /// A line, and how many bytes follow, in pieces.
    Message(M, u64),
    /// Some of the bytes; never empty.
    Piece(Bytes),
}

impl FromWorker {
    /// The id of its job.
    pub(crate) fn job(&self) -> Option<&str> {
        match self {
            Self::Ready(_) => None,
            Self::Output(OfJob { id })
            | Self::Progress(ToldProgress { id, .. })
            | Self::Done(Done { id, .. })
            | Self::Failed(Failed { id, .. }) => Some(id),
        }
    }
}

/// How a message breaks the protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtocolFault {
    /// It is not one line of JSON with a known message.
    #[error("a message is not a line of JSON that the protocol has ({error}): {shown}")]
    NotAMessage { error: serde_json::Error, shown: String },
    #[error("a line has more than {MAX_LINE} bytes: {shown}")]
    LongLine { shown: String },
    #[error("{bytes} bytes are to follow a line, and {MAX_BYTES} may: {shown}")]
    ManyBytes { bytes: u64, shown: String },
    /// It is a message, and not one that may come now.
    #[error("{what}: {shown}")]
    OutOfTurn { what: &'static str, shown: String },
    /// The stream ended within a message.
    #[error("the descriptor was closed within a message: {shown}")]
    Broken { shown: String },
    #[error("the descriptor cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

/// Reads messages of type `M`. It holds one line, and one piece of what follows.
#[derive(Debug)]
pub(crate) struct Messages<M> {
    /// Bytes still to come of the message that was read last.
    left: u64,
    /// Bytes of the line that were searched for its end.
    searched: usize,
    of: std::marker::PhantomData<fn() -> M>,
}

#[derive(Serialize, Deserialize)]
struct Line<M> {
    #[serde(flatten)]
    message: M,
    #[serde(default, skip_serializing_if = "is_zero")]
    bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as the attribute of the field wants it")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl<M> Default for Messages<M> {
    fn default() -> Self {
        Self { left: 0, searched: 0, of: std::marker::PhantomData }
    }
}

impl<M: DeserializeOwned> Decoder for Messages<M> {
    type Item = Frame<M>;
    type Error = ProtocolFault;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<Frame<M>>, ProtocolFault> {
        if self.left > 0 {
            let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(MAX_PIECE).min(source.len());
            self.left -= most as u64;
            return Ok((most > 0).then(|| Frame::Piece(source.split_to(most).freeze())));
        }
        let unseen = &source[self.searched.min(source.len())..];
        let Some(end) = unseen.iter().position(|byte| *byte == b'\n').map(|at| self.searched + at) else {
            self.searched = source.len();
            return if source.len() > MAX_LINE {
                Err(ProtocolFault::LongLine { shown: shown(source) })
            } else {
                Ok(None)
            };
        };
        self.searched = 0;
        if end > MAX_LINE {
            return Err(ProtocolFault::LongLine { shown: shown(source) });
        }
        let line = source.split_to(end + 1);
        let Line { message, bytes } = serde_json::from_slice(&line)
            .map_err(|error| ProtocolFault::NotAMessage { error, shown: shown(&line[..end]) })?;
        if bytes > MAX_BYTES {
            return Err(ProtocolFault::ManyBytes { bytes, shown: shown(&line[..end]) });
        }
        self.left = bytes;
        Ok(Some(Frame::Message(message, bytes)))
    }

    fn decode_eof(&mut self, source: &mut BytesMut) -> Result<Option<Frame<M>>, ProtocolFault> {
        match self.decode(source)? {
            None if self.left > 0 || !source.is_empty() => Err(ProtocolFault::Broken { shown: shown(source) }),
            decoded => Ok(decoded),
        }
    }
}

/// A message as it is written: its line with what fits in beside it, and the rest.
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
    /// That `message` may not come now.
    pub(crate) fn out_of_turn(what: &'static str, message: &FromWorker) -> Self {
        Self::OutOfTurn { what, shown: shown(&line(message, 0)) }
    }
}

/// The begin of what was read, for people.
fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(SHOWN)].escape_ascii().to_string()
}

#[cfg(test)]
mod tests;
