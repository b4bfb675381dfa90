//! The body of an answer: counts unread bytes, and adds the load report to the trailers.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response};
use http_body::{Frame, SizeHint};
use tokio::time::Instant;
use tonic::{Status, body::Body};

use super::{
    calls::Calls,
    load::{Load, TRAILER},
    status,
    status_message::decode_message,
};
use crate::{
    auth::Hold,
    memory::{AnswersFull, ConnectionMemory},
};

/// Answers that have it among their headers have no body.
pub(super) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// State that the calls of one connection share.
pub(super) struct Meters {
    pub(super) calls: Calls,
    /// The load report; `None` if answers carry none.
    pub(super) load: Option<Load>,
}

/// The body of an answer. It counts unsent bytes, and adds the load of the process to the trailers.
pub struct AnswerBody {
    body: Body,
    /// `None` if the answer reports none, or has done so.
    load: Option<Load>,
    memory: Arc<ConnectionMemory>,
    /// The tenant's quota, until the answer is sent.
    _hold: Option<Arc<Hold>>,
}

impl AnswerBody {
    /// An answer without a load report.
    pub(super) fn plain(response: Response<Body>, memory: Arc<ConnectionMemory>) -> Response<Self> {
        Self::with_load(response, None, memory)
    }

    /// An answer with a load report in its trailers, which are its headers if it has no body.
    pub(super) fn with_load(
        mut response: Response<Body>,
        load: Option<Load>,
        memory: Arc<ConnectionMemory>,
    ) -> Response<Self> {
        if let Some(load) = load.as_ref().filter(|_| response.headers().contains_key(GRPC_STATUS)) {
            response.headers_mut().insert(TRAILER, load.trailer(Instant::now()));
        }
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
            if let Some(load) = self.load.take() {
                trailers.insert(TRAILER, load.trailer(Instant::now()));
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
