//! `Attach`: a worker from elsewhere, its jobs and what it says of them. `src/handler/remote.rs` has its slots.

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, async_trait};
use tracing::{info, warn};

use super::{
    Arrival,
    context::CallContext,
    message_stream::Messages,
    status,
    worker_messages::{Said, response, said, too_large},
    worker_pool::{Parts, ResponseStream, WorkerPool},
};
use crate::{
    handler::{NewWorker, remote::Attachment},
    model::{FieldViolation, MAX_LABELS},
    pool::AttachError,
    proto::{AttachRequest, AttachResponse, attach_request::Hello, worker_service_server::WorkerService},
};

/// Path of the RPC, whose messages are read here and not by the codec.
pub(super) const ATTACH: &str = "/waterwheel.v1.WorkerService/Attach";

/// Time that a worker has for its first message.
const HELLO: Duration = Duration::from_secs(10);
const MAX_CONCURRENCY: u32 = 1024;
const MAX_NAME: usize = 128;
const MAX_LABEL: usize = 256;

#[async_trait]
impl WorkerService for WorkerPool {
    type AttachStream = ResponseStream<AttachResponse>;

    async fn attach(&self, request: Request<Streaming<AttachRequest>>) -> Result<Response<Self::AttachStream>, Status> {
        attach(&self.0, request).await
    }
}

async fn attach(
    parts: &Arc<Parts>,
    request: Request<Streaming<AttachRequest>>,
) -> Result<Response<ResponseStream<AttachResponse>>, Status> {
    let call = CallContext::read(&request, "Attach", &parts.sampler)?;
    let arrival = request.extensions().get::<Arrival>();
    let body = arrival.and_then(|arrival| arrival.inbound.as_ref()?.lock().take()).unwrap_or_default();
    let peer = arrival.and_then(|arrival| arrival.peer.clone());
    let mut inbound = Messages::new(body, request.metadata().as_ref(), parts.largest_message);
    let (kinds, worker) = hello(&mut inbound, &call).await?;
    // Kinds that the server does not have are ignored.
    let known: Vec<_> =
        kinds.iter().filter(|kind| parts.pools.kinds().any(|known| **known == ***kind)).cloned().collect();
    parts.guard.admit_worker(&call, peer.as_deref(), &known)?;
    let worker = NewWorker { peer: peer.map(|peer| peer.origin.to_string()).unwrap_or_default(), ..worker };
    let NewWorker { name, peer, concurrency, labels: _ } = worker.clone();
    let attached = parts.pools.attach(&kinds, worker);
    let (attachment, orders) = attached.map_err(|error| {
        warn!(name, peer, kinds = kinds.join(","), cause = %error, "a worker was refused");
        refusal(&error, &call)
    })?;
    info!(name, peer, kinds = kinds.join(","), concurrency, "a worker attached");
    let (end, ended) = oneshot::channel();
    let last = stream::once(ended).filter_map(|end| std::future::ready(end.ok().map(Err)));
    let orders = ReceiverStream::new(orders).map(|(order, payload)| Ok(response(order, payload))).chain(last);
    let response = call.answer(Box::pin(orders) as _);
    let parts_too = Arc::clone(parts);
    parts.tasks.spawn(async move {
        let fault = follow(&parts_too, &call, inbound, &attachment).await;
        let cause = fault.as_ref().map(|status| tracing::field::display(status.message()));
        info!(name, peer, cause, "a worker is not attached any more");
        // A worker that is gone does not listen.
        fault.map(|status| end.send(status));
    });
    Ok(response)
}

/// The kinds of a worker, and what it says of itself.
async fn hello(inbound: &mut Messages<AttachRequest>, call: &CallContext) -> Result<(Vec<String>, NewWorker), Status> {
    let first = timeout(HELLO, inbound.message()).await.map_err(|_| status::too_late(call.request_id()))?;
    let first = first.map_err(status::refused_by_codec)?.and_then(said);
    let unreadable =
        |field, fault: String| status::unreadable(vec![FieldViolation::new(field, fault)], call.request_id());
    let Some(Said::Hello(Hello { name, kinds, concurrency, labels })) = first else {
        return Err(unreadable("hello", "the first message of a worker is its hello".to_owned()));
    };
    let is_long = |text: &String| text.len() > MAX_LABEL;
    if name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(unreadable("hello.name", format!("longer than {MAX_NAME} bytes, or with control characters")));
    }
    if concurrency > MAX_CONCURRENCY {
        return Err(unreadable("hello.concurrency", format!("more than {MAX_CONCURRENCY}")));
    }
    if labels.len() > MAX_LABELS || labels.iter().any(|(key, value)| is_long(key) || is_long(value)) {
        return Err(unreadable("hello.labels", format!("more than {MAX_LABELS}, or longer than {MAX_LABEL} bytes")));
    }
    Ok((kinds, NewWorker { name, peer: String::new(), labels, concurrency: concurrency.max(1) as usize }))
}

fn refusal(error: &AttachError, call: &CallContext) -> Status {
    let field = match error {
        AttachError::Kinds(_) => "hello.kinds",
        AttachError::TooMany => "hello.concurrency",
        AttachError::Draining => return status::draining(call.request_id()),
    };
    status::unreadable(vec![FieldViolation::new(field, error.to_string())], call.request_id())
}

/// Follows a worker until it has left. Returns why, unless it left in good order.
async fn follow(
    parts: &Parts,
    call: &CallContext,
    mut inbound: Messages<AttachRequest>,
    attachment: &Attachment,
) -> Option<Status> {
    let leave = async {
        tokio::select! {
            () = sleep(parts.max_attached) => {}
            () = parts.guard.expired(call) => {}
        }
        attachment.leave(true);
        pending::<()>().await;
    };
    let read = async {
        loop {
            let heard = match inbound.next().await {
                Err(unread) => too_large(&unread).map(|said| Some(Some(said))).ok_or(unread.status),
                Ok(message) => Ok(message.map(said)),
            };
            let taken = match heard {
                Ok(Some(said)) => match said {
                    Some(Said::OfJob(message, bytes)) => attachment.take(message, bytes).await,
                    Some(Said::TooLarge { id, limit, is_answer }) => attachment.refuse(&id, limit, is_answer).await,
                    Some(Said::Leaving) => {
                        attachment.leave(false);
                        Ok(())
                    }
                    Some(Said::Hello(_)) => Err("hello is the first message, and the only one of its sort"),
                    None => Err("it says nothing that this server knows"),
                },
                Ok(None) => return None,
                Err(fault) => return Some(status::refused_by_codec(fault)),
            };
            if let Err(fault) = taken {
                return Some(status::unreadable(vec![FieldViolation::new("message", fault)], call.request_id()));
            }
        }
    };
    tokio::select! {
        biased;
        () = attachment.broken() => Some(Status::cancelled("the connection is gone")),
        () = attachment.done() => parts.pools.is_closing().then(|| status::draining(call.request_id())),
        fault = read => fault,
        () = leave => None,
    }
}
