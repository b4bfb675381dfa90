use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderValue;
use http_body::{Frame, SizeHint};
use tokio::time::Instant;
use tonic::{Status, body::Body};

use super::load::{ConnectionLoad, TRAILER};

/// The body of an answer, which adds the load of the process to the trailers.
pub struct AnswerBody {
    body: Body,
    load: LoadTrailer,
}

/// Where the load in the trailers comes from.
pub(super) enum LoadTrailer {
    /// The answer tells none.
    Unsaid,
    /// It was taken when the answer began: its end is not far.
    Taken(HeaderValue),
    /// It is taken at the end, which may be long after the begin.
    AtEnd(Arc<ConnectionLoad>),
}

impl AnswerBody {
    pub(super) fn new(body: Body, load: LoadTrailer) -> Self {
        Self { body, load }
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            match std::mem::replace(&mut self.load, LoadTrailer::Unsaid) {
                LoadTrailer::Unsaid => {}
                LoadTrailer::Taken(load) => drop(trailers.insert(TRAILER, load)),
                LoadTrailer::AtEnd(load) => drop(trailers.insert(TRAILER, load.trailer(Instant::now()))),
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
