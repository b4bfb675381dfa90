//! `Attach`: one attached worker. Converts its messages to those of a child process. `src/handler/remote.rs` has its
//! slots and its jobs.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use prost::encoding::{WireType, decode_key, decode_varint};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming, async_trait};
use tracing::{info, warn};

use super::{
    Arrival,
    context::CallContext,
    message_stream::{Messages, Undecoded},
    service_state::{CallerServices, ResponseStream, ServiceState},
    status,
};
use crate::{
    auth::Rpc,
    handler::{
        NewWorker,
        protocol::{self, FromWorker, ToWorker},
        remote::Attachment,
    },
    model::MAX_LABELS,
    pool::AttachError,
    proto::{
        AttachRequest, AttachResponse,
        attach_request::{Done, Failed, Hello, Message, Output, Progress, Slots},
        attach_response::{self, Cancel, Leave, Run, Taken},
        worker_service_server::WorkerService,
    },
};

/// What a broken connection of a worker may mean.
const LOST: &str = "its connection broke, or did not answer a ping in time (server.http2.keepalive_interval and \
                    keepalive_timeout), as when a handler blocks the thread or event loop that reads the connection";

/// Time limit for a worker's first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_CONCURRENCY: u32 = 1024;
const MAX_NAME: usize = 128;
const MAX_LABEL: usize = 256;
const MAX_KINDS: usize = 1024;
/// Bytes that are read of a text in a message that the codec refused.
const MAX_TEXT: usize = 8 << 10;

#[async_trait]
impl WorkerService for CallerServices {
    type AttachStream = ResponseStream<AttachResponse>;

    async fn attach(&self, request: Request<Streaming<AttachRequest>>) -> Result<Response<Self::AttachStream>, Status> {
        attach(&self.0, request).await
    }
}

async fn attach(
    service: &Arc<ServiceState>,
    request: Request<Streaming<AttachRequest>>,
) -> Result<Response<ResponseStream<AttachResponse>>, Status> {
    let call = CallContext::read(&request, Rpc::Attach, &service.sampler)?;
    let peer = request.extensions().get().map(|arrival: &Arrival| Arc::clone(&arrival.peer));
    let mut inbound = Messages::of(&request, service.largest_message);
    let (kinds, worker) = hello(&mut inbound, &call).await?;
    // Kinds that the server does not know are ignored.
    let known: Vec<_> =
        kinds.iter().filter(|kind| service.pools.kinds().any(|known| **known == ***kind)).cloned().collect();
    service
        .access
        .admit_worker(&call, peer.as_deref(), &known)
        .inspect_err(|status| call.record_status(status.code()))?;
    let worker = NewWorker { peer: peer.map(|peer| peer.origin.to_string()).unwrap_or_default(), ..worker };
    let NewWorker { name, peer, concurrency, labels: _ } = worker.clone();
    let attached = service.pools.attach(&kinds, worker);
    let (attachment, orders) = attached.map_err(|error| {
        warn!(name, peer, kinds = kinds.join(","), cause = %error, "a worker was refused");
        refusal(&error, &call)
    })?;
    info!(name, peer, kinds = kinds.join(","), concurrency, "a worker attached");
    let (end, ended) = oneshot::channel();
    let last = stream::once(ended).filter_map(|end| std::future::ready(end.ok().map(Err)));
    let orders = ReceiverStream::new(orders).map(|(order, payload)| Ok(response(order, payload))).chain(last);
    let response = call.answer(Box::pin(orders) as _);
    let state = Arc::clone(service);
    service.tasks.spawn(async move {
        let fault = follow(&state, &call, inbound, &attachment).await;
        fault.iter().for_each(|status| attachment.lost(status.message()));
        let cause = fault.as_ref().map(|status| tracing::field::display(status.message()));
        info!(name, peer, cause, "a worker is no longer attached");
        // A worker that is gone does not receive the status.
        fault.map(|status| end.send(status));
    });
    Ok(response)
}

/// Reads a worker's first message: its kinds and its description.
async fn hello(inbound: &mut Messages<AttachRequest>, call: &CallContext) -> Result<(Vec<String>, NewWorker), Status> {
    let first = timeout(HELLO_TIMEOUT, inbound.message()).await.map_err(|_| status::too_late(call.request_id()))?;
    let first = first.map_err(status::refused_by_codec)?.and_then(worker_message);
    let Some(WorkerMessage::Hello(Hello { name, kinds, concurrency, labels })) = first else {
        return Err(call.invalid("hello", "the first message must be hello"));
    };
    let is_fine = |text: &String, max| text.len() <= max && !text.chars().any(char::is_control);
    if !is_fine(&name, MAX_NAME) {
        return Err(call.invalid("hello.name", format!("longer than {MAX_NAME} bytes, or with control characters")));
    }
    if kinds.len() > MAX_KINDS || !kinds.iter().all(|kind| is_fine(kind, MAX_NAME)) {
        return Err(call.invalid("hello.kinds", format!("more than {MAX_KINDS}, or no names of kinds")));
    }
    if concurrency > MAX_CONCURRENCY {
        return Err(call.invalid("hello.concurrency", format!("more than {MAX_CONCURRENCY}")));
    }
    let is_label = |(key, value)| is_fine(key, MAX_LABEL) && is_fine(value, MAX_LABEL);
    if labels.len() > MAX_LABELS || !labels.iter().all(is_label) {
        let rule = format!("more than {MAX_LABELS}, longer than {MAX_LABEL} bytes, or with control characters");
        return Err(call.invalid("hello.labels", rule));
    }
    Ok((kinds, NewWorker { name, peer: String::new(), labels, concurrency: concurrency.max(1) as usize }))
}

fn refusal(error: &AttachError, call: &CallContext) -> Status {
    let field = match error {
        AttachError::Kinds(_) => "hello.kinds",
        AttachError::TooMany => "hello.concurrency",
        AttachError::Draining => return status::draining(call.request_id()),
    };
    call.invalid(field, error.to_string())
}

/// Serves a worker until it has left. Returns the reason, unless the worker left in good order.
async fn follow(
    service: &ServiceState,
    call: &CallContext,
    mut inbound: Messages<AttachRequest>,
    attachment: &Attachment,
) -> Option<Status> {
    let leave = async {
        tokio::select! {
            () = sleep(service.max_attached) => {}
            _ = service.access.expired(call.caller.as_deref()) => {}
        }
        attachment.leave(true);
        pending::<()>().await;
    };
    let watch_idle = async {
        loop {
            sleep(attachment.leave_if_idle(Instant::now())).await;
        }
    };
    let read = async {
        loop {
            let message = match inbound.next().await {
                Ok(Some(message)) => worker_message(message),
                Ok(None) => return None,
                Err(undecoded) => match salvaged(&undecoded) {
                    None => return Some(status::refused_by_codec(undecoded.status)),
                    message => message,
                },
            };
            let taken = match message {
                Some(WorkerMessage::OfJob(message, bytes)) => attachment.take(message, bytes).await,
                Some(WorkerMessage::TooLarge { id, limit, is_answer }) => {
                    attachment.refuse(&id, limit, is_answer).await
                }
                Some(WorkerMessage::Leaving) => {
                    attachment.leave(false);
                    Ok(())
                }
                Some(WorkerMessage::Slots { elsewhere }) => {
                    attachment.share(elsewhere);
                    Ok(())
                }
                Some(WorkerMessage::Hello(_)) => Err("hello must be the first message, and must not be repeated"),
                None => Err("this server does not know the message"),
            };
            if let Err(fault) = taken {
                return Some(call.invalid("message", fault));
            }
        }
    };
    tokio::select! {
        biased;
        () = attachment.broken() => Some(Status::cancelled(LOST)),
        () = attachment.done() => service.pools.is_closing().then(|| status::draining(call.request_id())),
        fault = read => fault,
        () = leave => None,
        () = watch_idle => None,
    }
}

/// A message of an attached worker.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum WorkerMessage {
    /// The worker describes itself.
    Hello(Hello),
    /// A message about a job, with its output bytes.
    OfJob(FromWorker, Bytes),
    /// A message about a job with more than `limit` bytes.
    TooLarge { id: String, limit: usize, is_answer: bool },
    /// Jobs of other servers have so many of its slots.
    Slots { elsewhere: usize },
    /// The worker accepts no more jobs.
    Leaving,
}

/// Reads a message of a worker; `None` if this version does not know the message.
pub(crate) fn worker_message(request: AttachRequest) -> Option<WorkerMessage> {
    let (message, bytes) = match request.message? {
        Message::Hello(hello) => return Some(WorkerMessage::Hello(hello)),
        Message::Leaving(_) => return Some(WorkerMessage::Leaving),
        Message::Slots(Slots { elsewhere }) => {
            return Some(WorkerMessage::Slots { elsewhere: elsewhere as usize });
        }
        Message::Output(Output { id, data }) => (FromWorker::Output { id }, data),
        Message::Progress(Progress { id, fraction, message }) => {
            (FromWorker::Progress { id, fraction: Some(fraction), message }, Bytes::new())
        }
        Message::Done(Done { id, data, content_type }) => (FromWorker::Done { id, content_type }, data),
        Message::Failed(Failed { id, code, message, retryable, retry_after_ms, counts, scope }) => {
            let retry_after_ms = retry_after_ms.map(|ms| ms as f64);
            let failed = protocol::Failed { id, code, message, retryable, retry_after_ms, counts, scope };
            (FromWorker::Failed(failed), Bytes::new())
        }
    };
    Some(WorkerMessage::OfJob(message, bytes))
}

/// What can be read of a message that the codec refused: it is too large, its texts are long or not UTF-8, or its
/// fields are broken. `None` unless it names its job.
fn salvaged(undecoded: &Undecoded) -> Option<WorkerMessage> {
    let mut start = &undecoded.start[..];
    let (message, _) = decode_key(&mut start).ok()?;
    decode_varint(&mut start).ok()?;
    let fields = fields(start);
    let text = |number| {
        let text: &[u8] = fields.get(&number).copied().unwrap_or_default();
        String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]).into_owned()
    };
    // Fields 2 to 5 are about a job; 2 and 3, output and progress, do not answer it.
    let (id, is_answer) = (Some(text(1)).filter(|id| !id.is_empty())?, message >= 4);
    let read = match message {
        3 => FromWorker::Progress { id, fraction: None, message: text(3) },
        5 => {
            let retryable = fields.get(&4).map(|value| value != &[0]);
            let (code, message) = (text(2), text(3));
            FromWorker::Failed(protocol::Failed { id, code, message, retryable, ..protocol::Failed::default() })
        }
        2 | 4 if undecoded.status.code() == Code::ResourceExhausted => {
            return Some(WorkerMessage::TooLarge { id, limit: undecoded.limit, is_answer });
        }
        2 | 4 => {
            let what = format!("the worker sent a message that cannot be read: {}", undecoded.status.message());
            FromWorker::Unreadable { id, what, is_answer }
        }
        _ => return None,
    };
    Some(WorkerMessage::OfJob(read, Bytes::new()))
}

/// The fields at the start of a message, as far as they can be told apart. A number is left encoded.
fn fields(mut rest: &[u8]) -> BTreeMap<u32, &[u8]> {
    let mut found = BTreeMap::new();
    while let Ok((number, wire_type)) = decode_key(&mut rest) {
        let begin = rest;
        let length = match (wire_type, decode_varint(&mut rest)) {
            (WireType::LengthDelimited, Ok(length)) => usize::try_from(length).unwrap_or(usize::MAX),
            (WireType::Varint, Ok(_)) => {
                found.insert(number, &begin[..begin.len() - rest.len()]);
                continue;
            }
            _ => break,
        };
        let (value, after) = rest.split_at(length.min(rest.len()));
        found.insert(number, value);
        rest = after;
    }
    found
}

/// A message to a worker; `payload` is that of a job.
pub(crate) fn response(order: ToWorker, payload: Bytes) -> AttachResponse {
    let message = match order {
        ToWorker::Run(run) => attach_response::Message::Run(of_run(run, payload)),
        ToWorker::Cancel { id, reason, grace_ms } => attach_response::Message::Cancel(Cancel { id, reason, grace_ms }),
        ToWorker::Leave { grace_ms } => attach_response::Message::Leave(Leave { grace_ms, idle: false }),
        ToWorker::Idle => attach_response::Message::Leave(Leave { grace_ms: 0, idle: true }),
        ToWorker::Taken { id } => attach_response::Message::Taken(Taken { id }),
    };
    AttachResponse { message: Some(message) }
}

fn of_run(run: protocol::Run, payload: Bytes) -> Run {
    Run {
        id: run.id,
        job_id: run.job_id,
        kind: run.kind,
        content_type: run.content_type,
        budget_ms: run.budget_ms,
        request_id: run.request_id,
        traceparent: run.traceparent,
        tenant: run.tenant,
        labels: run.labels,
        attempt: run.attempt,
        payload,
        idempotency_key: run.idempotency_key,
        token: run.token,
    }
}
