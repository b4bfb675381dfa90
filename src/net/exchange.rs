//! One HTTP/2 call: waits for its answer and sends it. `http1.rs` does the same for HTTP/1.1.

use std::{
    convert::Infallible,
    error::Error,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, SendStream, server::SendResponse};
use http::{HeaderValue, Response};
use http_body::Body;

use super::call::{Call, REQUEST_ID};

/// Answers from this size on may not fit into the socket at once, in bytes.
const LARGE: usize = 16 << 10;

/// One HTTP/2 call: its answer is awaited and sent as fast as the peer reads it. It ends when the answer is with the
/// connection, when the peer resets the stream, or at its time limit. Dropping it resets the stream.
pub(super) struct Exchange<F, B> {
    stage: Step<F, B>,
    call: Call,
}

enum Step<F, B> {
    Answering { answer: F, respond: SendResponse<Bytes> },
    Sending(Sending<B>),
}

struct Sending<B> {
    body: B,
    stream: SendStream<Bytes>,
    /// Data that the stream has no window for yet.
    unsent: Bytes,
    request_id: Option<HeaderValue>,
}

impl<F, B> Exchange<F, B>
where
    F: Future<Output = Result<Response<B>, Infallible>> + Unpin,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    pub(super) fn new(answer: F, respond: SendResponse<Bytes>, call: Call) -> Self {
        Self { stage: Step::Answering { answer, respond }, call }
    }

    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            match &mut self.stage {
                Step::Answering { answer, respond } => {
                    let Poll::Ready(Ok(response)) = Pin::new(answer).poll(cx) else {
                        // The peer may have reset the stream.
                        return respond.poll_reset(cx).map(|reset| reset.map(drop));
                    };
                    let (head, body) = response.into_parts();
                    let request_id = head.headers.get(REQUEST_ID).cloned();
                    let is_whole = body.is_end_stream();
                    let stream = respond.send_response(Response::from_parts(head, ()), is_whole)?;
                    if is_whole {
                        return Poll::Ready(Ok(()));
                    }
                    self.stage = Step::Sending(Sending { body, stream, unsent: Bytes::new(), request_id });
                }
                Step::Sending(sending) => return sending.advance(&mut self.call, cx),
            }
        }
    }
}

impl<B> Sending<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn advance(&mut self, call: &mut Call, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        loop {
            if !self.unsent.is_empty() {
                ready!(self.send(call, cx))?;
            }
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                return self.stream.poll_reset(cx).map(|reset| reset.map(drop));
            };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(_)) => {
                    self.stream.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(Ok(()));
                }
                None => return Poll::Ready(self.stream.send_data(Bytes::new(), true)),
            };
            match frame.into_data() {
                Ok(data) => self.unsent = data,
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    return Poll::Ready(self.stream.send_trailers(trailers));
                }
            }
        }
    }

    /// Gives unsent data to the connection, piece by piece as the window allows: data that was given can be neither
    /// counted nor taken back.
    fn send(&mut self, call: &mut Call, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let is_large = self.unsent.len() >= LARGE;
        while !self.unsent.is_empty() {
            self.stream.reserve_capacity(self.unsent.len());
            let mut window = self.stream.capacity();
            while window == 0 {
                match self.stream.poll_capacity(cx) {
                    Poll::Ready(Some(granted)) => window = granted?,
                    Poll::Ready(None) => return Poll::Ready(Err(Reason::CANCEL.into())),
                    Poll::Pending => {
                        call.wait(self.request_id.as_ref(), self.unsent.len());
                        return Poll::Pending;
                    }
                }
            }
            let piece = self.unsent.split_to(window.min(self.unsent.len()));
            self.stream.send_data(piece, false)?;
        }
        if is_large {
            call.handed_over(self.request_id.as_ref());
        }
        call.sent();
        Poll::Ready(Ok(()))
    }
}

impl<F, B> Future for Exchange<F, B>
where
    F: Future<Output = Result<Response<B>, Infallible>> + Unpin,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.advance(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Ready(Err(error)) => {
                tracing::debug!(%error, "a stream ended before its answer was sent");
                Poll::Ready(())
            }
            Poll::Pending => self.call.poll_end(cx),
        }
    }
}
