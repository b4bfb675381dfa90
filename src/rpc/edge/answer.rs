//! Completes every answer. Calls end at their deadline, and when they panic. The answer gets a request id, the load
//! report, and the details of a refusal by the codec, and its unread bytes are counted.

use std::{
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{Status, body::Body};

use super::{Answer, Connection, Front};
use crate::{
    auth::{Hold, Rpc},
    memory::{AnswersFull, ConnectionMemory},
    model::{Deadline, DeadlinePolicy},
    rpc::{
        context::{Arrival, REQUEST_ID, request_id},
        load::{Load, TRAILER},
        status,
        status_message::decode_message,
        timeout,
    },
};

/// Only answers without a body have this header.
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The answer to one call. At the deadline of the call it is DEADLINE_EXCEEDED, because the message may never arrive.
/// If the call panics, it is INTERNAL.
pub struct AnswerFuture {
    pub(super) answer: Answer,
    /// The request id that the caller sent.
    pub(super) sent: Option<HeaderValue>,
    /// When the call is given up; `None` without a time limit.
    pub(super) give_up: Option<Instant>,
    /// Created only for calls that wait.
    pub(super) alarm: Option<Pin<Box<Sleep>>>,
    pub(super) front: Front,
    pub(super) rpc: Option<Rpc>,
    /// Whether the call failed a check. Then the answer has no load report, which only accepted callers may see. Load
    /// balancers then keep the previous weight (gRFC A58).
    pub(super) is_refused: bool,
}

impl Connection {
    /// When to give a call up: within the reply margin before its time limit, after the service's own answer is due.
    pub(super) fn give_up(&self, arrival: &Arrival, headers: &HeaderMap) -> Option<Instant> {
        let policy = self.worker_pool.as_ref().map_or_else(DeadlinePolicy::default, |pool| pool.0.deadline);
        let limit = timeout::limit(policy, arrival.rpc, headers)?;
        // A deadline beyond the range of the clock is no deadline.
        arrival.at.checked_add(limit)?;
        let deadline = Deadline::new(arrival.at, limit, policy.reply_margin);
        Some(deadline.reply_by() + (deadline.end() - deadline.reply_by()) / 2)
    }
}

impl AnswerFuture {
    /// Ready with the answer, or at the deadline of the call.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Response<Body>> {
        Poll::Ready(match catch_unwind(AssertUnwindSafe(|| self.answer.poll_unpin(cx))) {
            Ok(Poll::Ready(Ok(answer))) => answer,
            Ok(Poll::Pending) => {
                let Some(give_up) = self.give_up else { return Poll::Pending };
                ready!(self.alarm.get_or_insert_with(|| Box::pin(sleep_until(give_up))).poll_unpin(cx));
                status::too_late(&request_id(self.sent.as_ref())).into_http()
            }
            Err(_) => {
                tracing::error!(request_id = ?self.sent, "a call panicked");
                status::panicked().into_http()
            }
        })
    }
}

impl Future for AnswerFuture {
    type Output = Result<Response<AnswerBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut answer = ready!(self.poll_answer(cx));
        let connection = &*self.front.0;
        let measured = connection.called_pool(self.rpc).filter(|_| !self.is_refused);
        if let Some(refusal) = refusal_by_codec(&answer) {
            if let Some((worker_pool, rpc)) = measured {
                worker_pool.0.calls.refuse(rpc, refusal.code());
            }
            answer = refusal.into_http();
        }
        let load = measured.and_then(|(worker_pool, _)| worker_pool.0.load_in_answers.clone());
        let headers = answer.headers_mut();
        if let Some(load) = load.as_ref().filter(|_| headers.contains_key(GRPC_STATUS)) {
            headers.insert(TRAILER, load.trailer(Instant::now()));
        }
        add_request_id(headers, self.sent.as_ref());
        decode_message(headers);
        let memory = (!self.is_refused).then(|| Arc::clone(&connection.memory));
        Poll::Ready(Ok(AnswerBody::new(answer, load, memory)))
    }
}

/// Adds a request id to an answer without one, because calls may end before they reach their service.
pub(super) fn add_request_id(headers: &mut HeaderMap, sent: Option<&HeaderValue>) {
    let header = HeaderName::from_static(REQUEST_ID);
    if !headers.contains_key(&header)
        && let Ok(id) = HeaderValue::from_str(request_id(sent).as_str())
    {
        headers.insert(header, id);
    }
}

/// Marks the answers of services of a program's own, whose statuses may have no details.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bare;

/// The service's status for a refusal by the codec. Such refusals are recognizable, because only the codec omits the
/// details.
fn refusal_by_codec(answer: &Response<Body>) -> Option<Status> {
    let headers = answer.headers();
    let code = headers.get(GRPC_STATUS)?;
    let is_refusal = ["3", "8", "11", "12", "13"].iter().any(|refused| code == refused)
        && !headers.contains_key("grpc-status-details-bin")
        && answer.extensions().get::<Bare>().is_none();
    if is_refusal { Status::from_header_map(headers).map(status::refused_by_codec) } else { None }
}

/// The body of an answer. It counts unsent bytes, and adds the load of the process to the trailers.
pub struct AnswerBody {
    body: Body,
    /// `None` if the answer has no load report, or has sent it.
    load: Option<Load>,
    /// `None` for a refusal, which is small.
    memory: Option<Arc<ConnectionMemory>>,
    /// The tenant's quota, held until the answer is sent.
    _hold: Option<Arc<Hold>>,
}

impl AnswerBody {
    pub(super) fn new(
        mut response: Response<Body>,
        load: Option<Load>,
        memory: Option<Arc<ConnectionMemory>>,
    ) -> Response<Self> {
        let hold = response.extensions_mut().remove();
        response.map(|body| Self { body, load, memory, _hold: hold })
    }

    /// Ends an answer that exceeds a memory limit, with trailers that say so.
    fn refuse_rest(&mut self) -> Frame<Bytes> {
        self.body = Body::empty();
        let mut trailers = HeaderMap::new();
        // Adding fails only if a header is invalid.
        let _ = status::answers_full().add_header(&mut trailers);
        Frame::trailers(trailers)
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            end => return Poll::Ready(end),
        };
        let mut frame = match (frame.into_data(), &self.memory) {
            (Ok(piece), Some(memory)) => {
                memory.charge(piece).map_or_else(|AnswersFull| self.refuse_rest(), Frame::data)
            }
            (Ok(piece), None) => Frame::data(piece),
            (Err(trailers), _) => trailers,
        };
        if let Some(trailers) = frame.trailers_mut() {
            decode_message(trailers);
            if let Some(load) = self.load.take() {
                trailers.insert(TRAILER, load.trailer(Instant::now()));
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
