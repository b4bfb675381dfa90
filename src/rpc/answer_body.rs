//! The body of an answer: counts unread bytes, and adds the load report to the trailers.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Frame, SizeHint};
use tokio::time::Instant;
use tonic::{Code, Status, body::Body};

use super::{
    calls::{Calls, Method},
    load::{ConnectionLoad, TRAILER},
    message::decode_message,
    status,
};
use crate::{
    auth::Hold,
    memory::{AnswersFull, ConnectionMemory},
};

/// State that the calls of one connection share.
pub(super) struct Meters {
    pub(super) calls: Calls,
    /// The load report; `None` if answers carry none.
    pub(super) load: Option<Arc<ConnectionLoad>>,
}

/// An answer of the worker pool that is still being made.
pub(super) struct PendingAnswer {
    meters: Arc<Meters>,
    method: Method,
    arrival: Instant,
    waited: bool,
}

/// The body of an answer. It counts unsent bytes, and adds the load of the process to the trailers.
pub struct AnswerBody {
    body: Body,
    load: Load,
    memory: Arc<ConnectionMemory>,
    /// The tenant's quota, until the answer is sent.
    _hold: Option<Arc<Hold>>,
}

/// Source of the load in the trailers.
enum Load {
    /// No load is reported.
    Omitted,
    /// Computed at the start of the answer, because its end is near.
    Taken(HeaderValue),
    /// Computed at the end, which may be much later than the start.
    AtEnd(Arc<ConnectionLoad>),
}

impl PendingAnswer {
    pub(super) fn new(meters: Arc<Meters>, method: Method, arrival: Instant) -> Self {
        Self { meters, method, arrival, waited: false }
    }

    /// Records that the call was not answered at once.
    pub(super) fn wait(&mut self) {
        self.waited = true;
    }

    /// Counts a call that was refused before its method ran.
    pub(super) fn count_refusal(&self, code: Code) {
        self.meters.calls.refuse(self.method, code);
    }

    /// The answer, with the load if configured. `is_whole` says that its headers are its trailers.
    pub(super) fn complete(
        self,
        mut response: Response<Body>,
        is_whole: bool,
        memory: Arc<ConnectionMemory>,
    ) -> Response<AnswerBody> {
        let Some(load) = &self.meters.load else { return AnswerBody::of(response, Load::Omitted, memory) };
        if self.method.is_streaming() && !is_whole {
            return AnswerBody::of(response, Load::AtEnd(Arc::clone(load)), memory);
        }
        // A call that was answered at once needs no second reading of the clock.
        let now = if self.waited { Instant::now() } else { self.arrival };
        let load = load.trailer(now);
        if is_whole {
            response.headers_mut().insert(TRAILER, load);
            return AnswerBody::of(response, Load::Omitted, memory);
        }
        AnswerBody::of(response, Load::Taken(load), memory)
    }
}

impl AnswerBody {
    /// An answer without a load report.
    pub(super) fn plain(response: Response<Body>, memory: Arc<ConnectionMemory>) -> Response<Self> {
        Self::of(response, Load::Omitted, memory)
    }

    fn of(mut response: Response<Body>, load: Load, memory: Arc<ConnectionMemory>) -> Response<Self> {
        let hold = response.extensions_mut().remove();
        response.map(|body| Self { body, load, memory, _hold: hold })
    }

    /// The end of an answer that exceeds a memory bound.
    fn give_up(&mut self) -> Frame<Bytes> {
        self.body = Body::empty();
        let mut trailers = HeaderMap::new();
        // Only an invalid header cannot be added.
        let _ = status::answers_full().add_header(&mut trailers);
        Frame::trailers(trailers)
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => Some(Ok(match frame.into_data() {
                Ok(piece) => match self.memory.charge(piece) {
                    Ok(piece) => Frame::data(piece),
                    Err(AnswersFull) => self.give_up(),
                },
                Err(trailers) => trailers,
            })),
            end => end,
        };
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            decode_message(trailers);
            match std::mem::replace(&mut self.load, Load::Omitted) {
                Load::Omitted => {}
                Load::Taken(load) => drop(trailers.insert(TRAILER, load)),
                Load::AtEnd(load) => drop(trailers.insert(TRAILER, load.trailer(Instant::now()))),
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
