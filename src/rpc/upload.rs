//! Collects the messages of a call as they arrive, and delivers each one when it is complete.
//!
//! A message that arrives in one chunk costs nothing here. A message of several chunks is counted chunk by chunk (see
//! [`crate::memory`]), until it is delivered and the pool counts its job. Parts are never delivered: the codec would
//! reserve memory for the whole message when it sees the prefix. Then five bytes would use as much memory as the
//! payload that they announce.

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
    memory::{self, ConnectionMemory, HeldBack, UploadState},
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
    has_one: bool,
    /// The rest of the last chunk, and the bytes of the whole chunk.
    chunk: Bytes,
    received: usize,
    /// Received bytes of the incomplete message. They are copied, because a chunk may be a small part of a large
    /// buffer.
    kept: BytesMut,
    /// Bytes to drop, of a message that was cut.
    dropped: usize,
    count: Option<memory::Upload>,
    /// Received bytes that are not yet returned to the flow-control window.
    held: usize,
    /// Complete messages that wait until their answers have capacity.
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
    /// Any number. Too large messages are cut to their first bytes, and the call continues.
    ManyCut,
}

/// Length of the message after the prefix.
fn length([_, a, b, c, d]: [u8; HEAD]) -> usize {
    usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX)
}

/// Whether the flag of the prefix says that its message is compressed, or that it is not. Callers send no other flag.
fn is_of_wire([flag, ..]: [u8; HEAD]) -> bool {
    flag <= 1
}

/// Bytes of the complete messages at the start of a chunk, up to one that is too large or has an unknown flag.
fn complete(chunk: &[u8], largest: usize) -> usize {
    let mut rest = chunk;
    while let Some((head, after)) = rest.split_first_chunk()
        && is_of_wire(*head)
        && length(*head) <= largest
        && let Some(next) = after.get(length(*head)..)
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
            count: None,
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
                self.count()?;
            }
            if complete.is_some() {
                return Ok(complete);
            }
        }
        Ok(None)
    }

    /// Reads the complete messages at the start of the chunk, or its part of an incomplete one.
    fn read(&mut self) -> Result<Option<Bytes>, Status> {
        if self.kept.is_empty() {
            let dropped = self.dropped.min(self.chunk.len());
            self.dropped -= dropped;
            self.chunk.advance(dropped);
            let complete = self.chunk.split_to(complete(&self.chunk, self.largest));
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
            let length = length(*head);
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
        let length = self.length();
        self.keep(length);
        if self.kept.len() < length {
            return Ok(None);
        }
        self.count = None;
        Ok(Some(mem::take(&mut self.kept).freeze()))
    }

    /// Length of the incomplete message, including its prefix.
    fn length(&self) -> usize {
        self.kept.first_chunk().map_or(HEAD, |head| HEAD.saturating_add(length(*head)))
    }

    /// Keeps a part of the chunk, so that `length` bytes of the message are kept if they have arrived.
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

    /// Counts the incomplete message. Returns the bytes of the chunk to the window if the sender may continue.
    fn count(&mut self) -> Result<(), Status> {
        let received = mem::take(&mut self.received);
        let (kept, length) = (self.kept.len(), self.length());
        let state = if kept < HEAD {
            UploadState::Go
        } else {
            self.count.get_or_insert_with(|| self.memory.upload(length)).hold(kept)
        };
        match state {
            UploadState::Go => {
                self.body.give_back(received);
                self.give_back();
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
    fn give_back(&mut self) {
        if self.held > 0 {
            let held = mem::take(&mut self.held);
            self.body.give_back(held);
            self.memory.let_go(held);
        }
    }

    /// Whether a call for one message still has it after this frame: exactly one, before the end.
    fn is_sound(&mut self, frame: &Option<Result<Frame<Bytes>, BoxError>>) -> bool {
        let messages = match frame {
            Some(Ok(frame)) => frame.data_ref(),
            Some(Err(_)) => return true,
            None => None,
        };
        let Some(messages) = messages else { return self.has_one };
        let first = messages.first_chunk().map_or(usize::MAX, |head| length(*head).saturating_add(HEAD));
        !mem::replace(&mut self.has_one, true) && messages.len() <= first
    }
}

impl<B> Upload<B>
where
    B: Body<Data = Bytes> + HeldBack + Unpin,
    B::Error: Into<BoxError>,
{
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
                ready!(self.poll_state(cx))?;
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
                    self.count = None;
                    self.give_back();
                    let kept = mem::take(&mut self.kept);
                    return Poll::Ready((!kept.is_empty()).then(|| Ok(Frame::data(kept.freeze()))));
                }
            }
        }
    }

    /// The next frame, once the answers have capacity.
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

    /// Waits until a message that is held back may proceed. Ready when it may proceed for the first time.
    fn poll_state(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let Some(count) = &mut self.count else { return Poll::Pending };
        match ready!(count.poll_state(cx)) {
            UploadState::Evicted => Poll::Ready(Err(status::uploads_full().into())),
            UploadState::Go if self.held > 0 => {
                self.give_back();
                Poll::Ready(Ok(()))
            }
            UploadState::Go => {
                self.body.give_back(0);
                Poll::Pending
            }
            UploadState::Wait => Poll::Pending,
        }
    }
}

impl<B> Body for Upload<B>
where
    B: Body<Data = Bytes> + HeldBack + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let frame = ready!(this.poll_whole(cx));
        if this.expected != Expected::One || this.is_sound(&frame) {
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
mod tests {
    use super::*;
    use crate::memory::Memory;

    impl<S> HeldBack for http_body_util::StreamBody<S> {}

    /// Reads a body that comes in pieces of `size`. Returns what is handed on.
    async fn pass(bytes: &[u8], size: usize, trailers: bool, expected: Expected) -> Vec<Frame<Bytes>> {
        let mut frames: Vec<_> = bytes.chunks(size).map(Bytes::copy_from_slice).map(Frame::data).collect();
        frames.extend(trailers.then(|| Frame::trailers(http::HeaderMap::new())));
        let frames = frames.into_iter().map(Ok::<_, std::convert::Infallible>);
        let body = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
        let mut upload = Upload::new(body, Memory::default().of(1), 1000, expected);
        let mut passed = Vec::new();
        while let Some(frame) = http_body_util::BodyExt::frame(&mut upload).await {
            passed.push(frame.expect("nothing gives way"));
        }
        passed
    }

    #[tokio::test]
    async fn a_message_is_handed_on_when_it_is_whole() {
        let messages: Vec<_> = [0, 3, 1, 200, 0, 5]
            .map(|length: u8| [&[0, 0, 0, 0, length][..], &vec![length; length.into()]].concat())
            .into();
        let (all, cut) = (messages.concat(), [&messages.concat()[..], &[0, 0, 0, 0, 9, 9, 9]].concat());
        for size in 1..=all.len() {
            let passed = pass(&all, size, false, Expected::Many).await;
            let mut rest = messages.iter();
            for piece in &passed {
                let mut piece = &piece.data_ref().expect("data")[..];
                while !piece.is_empty() {
                    piece =
                        piece.strip_prefix(&rest.next().expect("no more than was sent")[..]).expect("whole messages");
                }
            }
            assert_eq!(rest.next(), None, "pieces of {size}");
            for trailers in [false, true] {
                let mut passed = pass(&cut, size, trailers, Expected::Many).await;
                assert_eq!(passed.pop_if(|frame| frame.is_trailers()).is_some(), trailers);
                let last = passed.pop().expect("the end").into_data().expect("data");
                assert_eq!(last, [0, 0, 0, 0, 9, 9, 9][..], "what stays unfinished is the codec's to refuse");
                assert_eq!(passed.iter().map(|frame| frame.data_ref().expect("data").len()).sum::<usize>(), all.len());
            }
        }
    }

    #[tokio::test]
    async fn only_what_is_too_large_is_cut_however_it_comes() {
        let message = |flag: u8, length: u32| {
            let body = (0..length).map(|byte| byte as u8);
            [flag].into_iter().chain(length.to_be_bytes()).chain(body).collect::<Vec<u8>>()
        };
        let lengths = [0, 3, 1000, 1001, 7, 1, 2000, 70_000, 1000];
        let all = lengths.map(|length| message(0, length)).concat();
        let cut = |length: u32| if length > 1000 { message(CUT, length.min(KEPT_BYTES)) } else { message(0, length) };
        let expected = lengths.map(cut).concat();
        for size in [1, 2, 3, 5, 7, 64, 100, 1003, 16_384, all.len()] {
            let passed = pass(&all, size, false, Expected::ManyCut).await;
            let left = passed.iter().map(|frame| &frame.data_ref().expect("data")[..]).collect::<Vec<_>>().concat();
            assert_eq!(left, expected, "pieces of {size}");
        }
    }
}
