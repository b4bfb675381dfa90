//! The messages of `Attach`, as those of a worker that is a child.

use bytes::Bytes;
use prost::encoding::{WireType, decode_key, decode_varint};
use tonic::Code;

use super::message_stream::Unread;
use crate::{
    handler::process::protocol::{self, FromWorker, OfJob, ToWorker, ToldProgress},
    proto::{
        AttachRequest, AttachResponse,
        attach_request::{Done, Failed, Hello, Message, Output, Progress},
        attach_response::{self, Cancel, Leave, Run, Taken},
    },
};

/// What an attached worker says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    /// What it runs.
    Hello(Hello),
    /// Something about a job, with the bytes of it.
    OfJob(FromWorker, Bytes),
    /// Something about a job that takes more than `limit` bytes.
    TooLarge { id: String, limit: usize, is_answer: bool },
    /// It takes no more jobs.
    Leaving,
}

/// What a worker says; `None` for a message that this version does not have.
pub(crate) fn said(request: AttachRequest) -> Option<Said> {
    let (message, bytes) = match request.message? {
        Message::Hello(hello) => return Some(Said::Hello(hello)),
        Message::Leaving(_) => return Some(Said::Leaving),
        Message::Output(Output { id, data }) => (FromWorker::Output(OfJob { id }), data),
        Message::Progress(Progress { id, fraction, message }) => {
            (FromWorker::Progress(ToldProgress { id, fraction, message }), Bytes::new())
        }
        Message::Done(Done { id, data, content_type }) => (FromWorker::Done(protocol::Done { id, content_type }), data),
        Message::Failed(Failed { id, code, message, retryable }) => {
            (FromWorker::Failed(protocol::Failed { id, code, message, retryable }), Bytes::new())
        }
    };
    Some(Said::OfJob(message, bytes))
}

/// What a worker says in a message that is too large to be read; `None` unless it names its job.
pub(super) fn too_large(unread: &Unread) -> Option<Said> {
    let mut start = (unread.status.code() == Code::ResourceExhausted).then_some(&unread.start[..])?;
    let (message, _) = decode_key(&mut start).ok()?;
    decode_varint(&mut start).ok()?;
    let (1, WireType::LengthDelimited) = decode_key(&mut start).ok()? else { return None };
    let length = decode_varint(&mut start).ok()?.try_into().ok()?;
    let id = std::str::from_utf8(start.get(..length)?).ok()?.to_owned();
    // Output and progress are not the last word of a job.
    (2..=5).contains(&message).then(|| Said::TooLarge { id, limit: unread.limit, is_answer: message >= 4 })
}

/// What a worker is sent; `payload` is that of a job.
pub(crate) fn response(order: ToWorker, payload: Bytes) -> AttachResponse {
    let message = match order {
        ToWorker::Run(run) => attach_response::Message::Run(of_run(run, payload)),
        ToWorker::Cancel(protocol::Cancel { id, reason, grace_ms }) => {
            attach_response::Message::Cancel(Cancel { id, reason, grace_ms })
        }
        ToWorker::Leave(protocol::Leave { grace_ms }) => attach_response::Message::Leave(Leave { grace_ms }),
        ToWorker::Taken(OfJob { id }) => attach_response::Message::Taken(Taken { id }),
    };
    AttachResponse { message: Some(message) }
}

fn of_run(run: protocol::Run, payload: Bytes) -> Run {
    let protocol::Run { id, job_id, kind, content_type, budget_ms, request_id, traceparent, tenant, labels, .. } = run;
    let (attempt, idempotency_key, token) = (run.attempt, run.idempotency_key, run.token);
    Run {
        id,
        job_id,
        kind,
        content_type,
        budget_ms,
        request_id,
        traceparent,
        tenant,
        labels,
        attempt,
        payload,
        idempotency_key,
        token,
    }
}
