//! Enforces that a unary call has exactly one message: the codec reads the first, and would ignore others.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::{framing::length, status};

/// A body whose pieces are whole messages, except for a last incomplete one.
#[derive(Debug)]
pub(super) struct SingleMessage<B> {
    body: B,
    /// Whether only one message may come.
    is_bound: bool,
    has_one: bool,
}

impl<B> SingleMessage<B> {
    pub(super) fn new(body: B, is_bound: bool) -> Self {
        Self { body, is_bound, has_one: false }
    }

    /// Whether the call still has only one message after this piece.
    fn takes(&mut self, piece: &Bytes) -> bool {
        let first = piece.first_chunk().map_or(usize::MAX, |head| length(*head).saturating_add(head.len()));
        !std::mem::replace(&mut self.has_one, true) && piece.len() <= first
    }
}

impl<B> Body for SingleMessage<B>
where
    B: Body<Data = Bytes, Error = Box<dyn std::error::Error + Send + Sync>> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        let is_sound = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(this.has_one, |piece| piece.is_empty() || this.takes(piece)),
            Some(Err(_)) => true,
            None => this.has_one,
        };
        if is_sound || !this.is_bound {
            return Poll::Ready(frame);
        }
        // It is reported once.
        this.is_bound = false;
        Poll::Ready(Some(Err(status::not_one_message().into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && (self.has_one || !self.is_bound)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
