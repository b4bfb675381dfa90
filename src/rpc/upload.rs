//! Collects the messages of a call as they arrive, and delivers each one when it is complete.
//!
//! A message that arrives in one chunk costs nothing here. A message of several chunks is counted chunk by chunk (see
//! [`crate::memory`]), until it is delivered and the pool counts its job. Parts are never delivered: the codec reserves
//! memory for the whole message when it sees the prefix, so five bytes could take as much as they announce.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tonic::Status;
use tower::BoxError;

use super::status;
use crate::{
    memory::{ConnectionMemory, HeldBack, UploadAccount, UploadState},
    model::Reason,
};

/// Length of a gRPC message's prefix: a flag, and the length of the message.
pub(super) const HEAD: usize = 5;
/// The flag of a message that was cut, which only [`Upload`] sets.
pub(super) const CUT: u8 = 0x80;
/// Bytes that are kept of a message that is too large: enough for the id of its job, and for the begin of a text.
const KEPT_BYTES: u32 = 4 << 10;
/// Received bytes at which the rest of a message is reserved.
const RESERVE_FROM: usize = 64 << 10;

/// The messages of one call.
#[derive(Debug)]
pub(super) struct Upload<B> {
    body: B,
    memory: Arc<ConnectionMemory>,
    /// Largest message, in bytes.
    largest: usize,
    expected: Expected,
    /// Whether a message was delivered. Set only for calls that expect one.
    has_one: bool,
    /// The rest of the last chunk.
    chunk: Bytes,
    /// Bytes of the last chunk, until they are counted.
    received: usize,
    /// Received bytes of the incomplete message. They are copied, because a chunk may be a small part of a large
    /// buffer.
    kept: BytesMut,
    /// Bytes to drop, of a message that was cut.
    dropped: usize,
    /// Counts the incomplete message; `None` until its prefix is read.
    account: Option<UploadAccount>,
    /// Received bytes that are not yet returned to the flow-control window.
    held: usize,
    /// Complete messages that wait until the connection has memory for another answer.
    whole: Bytes,
    /// The frame after a message that stays incomplete.
    last: Option<Frame<Bytes>>,
}

/// The messages that a call should send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// One message. The codec reads the first, and would ignore others.
    One,
    Many,
    /// One message without a prefix, which ends with the body. Its length is announced, or 0.
    Whole(usize),
    /// Any number. Too large messages are cut to their first bytes, and the call continues.
    ManyCut,
}

/// Length of the message after its prefix.
fn announced([_, a, b, c, d]: [u8; HEAD]) -> usize {
    usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX)
}

/// Whether the flag of the prefix says that its message is compressed, or that it is not. Callers send no other flag.
fn is_of_wire([flag, ..]: [u8; HEAD]) -> bool {
    flag <= 1
}

/// Bytes of the complete messages at the start of a chunk, up to one that is too large or has an unknown flag.
fn complete_bytes(chunk: &[u8], largest: usize) -> usize {
    let mut rest = chunk;
    while let Some((head, after)) = rest.split_first_chunk()
        && is_of_wire(*head)
        && announced(*head) <= largest
        && let Some(next) = after.get(announced(*head)..)
    {
        rest = next;
    }
    chunk.len() - rest.len()
}

impl<B: HeldBack> Upload<B> {
    pub(super) fn new(mut body: B, memory: Arc<ConnectionMemory>, largest: usize, expected: Expected) -> Self {
        body.hold_back();
        Self {
            body,
            memory,
            largest,
            expected,
            has_one: false,
            chunk: Bytes::new(),
            received: 0,
            kept: BytesMut::new(),
            dropped: 0,
            account: None,
            held: 0,
            whole: Bytes::new(),
            last: None,
        }
    }

    /// The next complete messages in the chunk; `None` once all of it is read.
    fn next_complete(&mut self) -> Result<Option<Bytes>, Status> {
        while !self.chunk.is_empty() {
            let complete = self.read()?;
            if self.chunk.is_empty() {
                self.count_chunk()?;
            }
            if complete.is_some() {
                return Ok(complete);
            }
        }
        Ok(None)
    }

    /// Reads the complete messages at the start of the chunk, or its part of an incomplete one.
    fn read(&mut self) -> Result<Option<Bytes>, Status> {
        if let Expected::Whole(_) = self.expected {
            let length = self.kept.len() + self.chunk.len();
            if length > self.largest {
                return Err(status::message_too_large(length, self.largest));
            }
            self.keep(self.incomplete_length().max(length));
            return Ok(None);
        }
        if self.kept.is_empty() {
            let dropped = self.dropped.min(self.chunk.len());
            self.dropped -= dropped;
            self.chunk.advance(dropped);
            let complete = self.chunk.split_to(complete_bytes(&self.chunk, self.largest));
            if !complete.is_empty() {
                return Ok(Some(complete));
            }
        }
        if self.kept.len() < HEAD {
            self.keep(HEAD);
            let Some(head) = self.kept.first_chunk() else { return Ok(None) };
            if !is_of_wire(*head) {
                return Err(Status::internal(format!("the flag of a message is {}; send 0 or 1", head[0])));
            }
            let length = announced(*head);
            if length > self.largest {
                if self.expected != Expected::ManyCut {
                    return Err(status::message_too_large(length, self.largest));
                }
                let kept = u32::try_from(length).map_or(KEPT_BYTES, |length| length.min(KEPT_BYTES));
                self.kept[0] = CUT;
                self.kept[1..].copy_from_slice(&kept.to_be_bytes());
                self.dropped = length - kept as usize;
            }
        }
        let length = self.incomplete_length();
        self.keep(length);
        if self.kept.len() < length {
            return Ok(None);
        }
        self.account = None;
        Ok(Some(mem::take(&mut self.kept).freeze()))
    }

    /// Length of the incomplete message, including its prefix.
    fn incomplete_length(&self) -> usize {
        if let Expected::Whole(bytes) = self.expected {
            return bytes.min(self.largest).max(self.kept.len());
        }
        self.kept.first_chunk().map_or(HEAD, |head| HEAD.saturating_add(announced(*head)))
    }

    /// Moves bytes of the chunk to the incomplete message, until it has `length` bytes or the chunk is empty.
    fn keep(&mut self, length: usize) {
        let missing = length - self.kept.len();
        if self.kept.len() >= RESERVE_FROM {
            // Reserved at once, instead of copying between growing buffers. The system provides unwritten memory only
            // when it is used.
            self.kept.reserve(missing);
        }
        let part = self.chunk.split_to(missing.min(self.chunk.len()));
        self.kept.extend_from_slice(&part);
    }

    /// Counts a chunk that was read. Returns its bytes to the flow-control window if the sender may continue.
    fn count_chunk(&mut self) -> Result<(), Status> {
        let received = mem::take(&mut self.received);
        let (kept, length) = (self.kept.len(), self.incomplete_length());
        let state = if kept < HEAD {
            UploadState::Go
        } else {
            self.account.get_or_insert_with(|| self.memory.upload(length)).grow_to(kept)
        };
        match state {
            UploadState::Go => {
                self.body.give_back(received);
                self.release_held();
            }
            UploadState::Wait => {
                self.held += received;
                self.memory.hold(received);
            }
            UploadState::Evicted => return Err(status::uploads_full()),
        }
        Ok(())
    }

    /// Returns the held bytes to the window.
    fn release_held(&mut self) {
        if self.held > 0 {
            let held = mem::take(&mut self.held);
            self.body.give_back(held);
            self.memory.let_go(held);
        }
    }

    /// Whether a call that expects one message has sent no more than one up to this frame, and no less at the end.
    fn is_as_expected(&mut self, frame: &Option<Result<Frame<Bytes>, BoxError>>) -> bool {
        let messages = match frame {
            Some(Ok(frame)) => frame.data_ref(),
            Some(Err(_)) => return true,
            None => None,
        };
        let Some(messages) = messages else { return self.has_one };
        let first = messages.first_chunk().map_or(usize::MAX, |head| announced(*head).saturating_add(HEAD));
        !mem::replace(&mut self.has_one, true) && messages.len() <= first
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + HeldBack + Unpin> Upload<B> {
    /// The next frame: complete messages, or the end.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(last) = self.last.take() {
            return Poll::Ready(Some(Ok(last)));
        }
        loop {
            if let Some(complete) = self.next_complete()? {
                return Poll::Ready(Some(Ok(Frame::data(complete))));
            }
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                ready!(self.poll_permission(cx))?;
                continue;
            };
            match frame.transpose().map_err(Into::into)?.map(Frame::into_data) {
                Some(Ok(chunk)) => (self.received, self.chunk) = (chunk.len(), chunk),
                Some(Err(last)) if self.kept.is_empty() => return Poll::Ready(Some(Ok(last))),
                Some(Err(last)) => {
                    self.last = Some(last);
                    return Poll::Ready(Some(Ok(Frame::data(mem::take(&mut self.kept).freeze()))));
                }
                None => {
                    self.account = None;
                    self.release_held();
                    let kept = mem::take(&mut self.kept);
                    return Poll::Ready((!kept.is_empty()).then(|| Ok(Frame::data(kept.freeze()))));
                }
            }
        }
    }

    /// The next frame, once the connection has memory for another answer.
    fn poll_whole(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.whole.is_empty() {
            match ready!(self.poll_next(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(whole) => self.whole = whole,
                    Err(last) => return Poll::Ready(Some(Ok(last))),
                },
                end => return Poll::Ready(end),
            }
        }
        ready!(self.memory.poll_room(cx));
        Poll::Ready(Some(Ok(Frame::data(mem::take(&mut self.whole)))))
    }

    /// Ready when a message that was held back may proceed, or is evicted.
    fn poll_permission(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let Some(account) = &mut self.account else { return Poll::Pending };
        match ready!(account.poll_state(cx)) {
            UploadState::Evicted => Poll::Ready(Err(status::uploads_full().into())),
            UploadState::Go if self.held > 0 => {
                self.release_held();
                Poll::Ready(Ok(()))
            }
            UploadState::Go => {
                // The window may have become smaller since bytes were returned. h2 notices it only at a return, so
                // this one returns nothing.
                self.body.give_back(0);
                Poll::Pending
            }
            UploadState::Wait => Poll::Pending,
        }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + HeldBack + Unpin> Body for Upload<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let frame = ready!(this.poll_whole(cx));
        if this.expected != Expected::One || this.is_as_expected(&frame) {
            return Poll::Ready(frame);
        }
        // The fault is reported once.
        this.expected = Expected::Many;
        Poll::Ready(Some(Err(status::of(Reason::NotOneMessage).into())))
    }

    fn is_end_stream(&self) -> bool {
        let is_read = self.whole.is_empty() && self.chunk.is_empty() && self.kept.is_empty() && self.last.is_none();
        is_read && (self.has_one || self.expected != Expected::One) && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for Upload<B> {
    fn drop(&mut self) {
        if self.held > 0 {
            // The HTTP/2 stream returns its own bytes.
            self.memory.let_go(self.held);
        }
    }
}

impl HeldBack for tonic::body::Body {}

#[cfg(test)]
mod tests;
