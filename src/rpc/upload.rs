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

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tower::BoxError;

use super::{
    framing::{Cutter, Framing, length},
    status,
};
use crate::{
    memory::{self, ConnectionMemory, HeldBack, UploadState},
    model::Reason,
};

/// The messages of one call.
#[derive(Debug)]
pub(super) struct Upload<B> {
    body: B,
    memory: Arc<ConnectionMemory>,
    /// Largest message, in bytes.
    largest: usize,
    /// Cuts larger messages. Without it, they end the call.
    cutter: Option<Cutter>,
    /// Whether only one message is allowed.
    is_single: bool,
    has_one: bool,
    framing: Framing,
    count: Option<memory::Upload>,
    /// Received bytes that are not yet returned to the flow-control window.
    held: usize,
    /// Received bytes of the incomplete message. They are copied, because a chunk may be a small part of a large
    /// buffer.
    kept: BytesMut,
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
    /// Any number. Too large messages are cut, and the call continues.
    ManyCut,
}

/// Received bytes at which the rest of a message is reserved.
const RESERVE_FROM: usize = 64 << 10;

impl<B: HeldBack> Upload<B> {
    pub(super) fn new(mut body: B, memory: Arc<ConnectionMemory>, largest: usize, expected: Expected) -> Self {
        body.hold_back();
        Self {
            body,
            memory,
            largest,
            cutter: (expected == Expected::ManyCut).then(Cutter::default),
            is_single: expected == Expected::One,
            has_one: false,
            framing: Framing::default(),
            count: None,
            held: 0,
            kept: BytesMut::new(),
            whole: Bytes::new(),
            last: None,
        }
    }

    /// Counts the remaining part of a chunk of `received` bytes. Returns these bytes to the window if the sender may
    /// continue.
    fn count(&mut self, piece: &Bytes, received: usize) -> Result<(), BoxError> {
        self.framing.read(piece);
        if let Some(length) = self.framing.longest.filter(|length| *length > self.largest) {
            return Err(status::message_too_large(length, self.largest).into());
        }
        let unfinished = self.framing.unfinished;
        if unfinished == 0 || self.framing.is_new {
            // The previous message is complete.
            self.count = None;
        }
        let mut state = UploadState::Go;
        if unfinished > 0 {
            let count = self.count.get_or_insert_with(|| self.memory.upload(self.framing.length()));
            state = count.hold(unfinished);
        }
        match state {
            UploadState::Go => {
                self.body.give_back(received);
                self.give_back();
            }
            UploadState::Wait => {
                self.held += received;
                self.memory.hold(received);
            }
            UploadState::Evicted => return Err(status::uploads_full().into()),
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

    /// Whether the call still has the expected messages after this frame.
    fn is_sound(&mut self, frame: &Option<Result<Frame<Bytes>, BoxError>>) -> bool {
        if !self.is_single {
            return true;
        }
        match frame {
            Some(Ok(frame)) => match frame.data_ref() {
                Some(piece) => piece.is_empty() || self.is_first(piece),
                None => self.has_one,
            },
            Some(Err(_)) => true,
            None => self.has_one,
        }
    }

    /// Whether a chunk is exactly the first message.
    fn is_first(&mut self, piece: &Bytes) -> bool {
        let first = piece.first_chunk().map_or(usize::MAX, |head| length(*head).saturating_add(head.len()));
        !mem::replace(&mut self.has_one, true) && piece.len() <= first
    }

    /// Keeps the incomplete part, and returns the complete messages.
    fn whole(&mut self, mut piece: Bytes) -> Bytes {
        let unfinished = self.framing.unfinished;
        if unfinished == 0 && self.kept.is_empty() {
            return piece;
        }
        let rest = if unfinished == 0 || self.framing.is_new {
            piece.split_off(piece.len() - unfinished)
        } else {
            mem::take(&mut piece)
        };
        let whole = if self.kept.is_empty() || piece.is_empty() {
            piece
        } else {
            self.kept.extend_from_slice(&piece);
            mem::take(&mut self.kept).freeze()
        };
        self.kept.extend_from_slice(&rest);
        if unfinished >= RESERVE_FROM {
            // Reserved at once, instead of copying between growing buffers. The system provides unwritten memory only
            // when it is used.
            self.kept.reserve(self.framing.length() - unfinished);
        }
        whole
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
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                ready!(self.poll_state(cx))?;
                continue;
            };
            let frame = match frame {
                Some(Ok(frame)) => frame.into_data(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => {
                    self.count = None;
                    self.give_back();
                    let kept = mem::take(&mut self.kept);
                    return Poll::Ready((!kept.is_empty()).then(|| Ok(Frame::data(kept.freeze()))));
                }
            };
            let piece = match frame {
                Ok(piece) => piece,
                Err(last) if self.kept.is_empty() => return Poll::Ready(Some(Ok(last))),
                Err(last) => {
                    self.last = Some(last);
                    return Poll::Ready(Some(Ok(Frame::data(mem::take(&mut self.kept).freeze()))));
                }
            };
            let received = piece.len();
            let piece = match &mut self.cutter {
                Some(cutter) => cutter.cut(piece, self.largest),
                None => piece,
            };
            self.count(&piece, received)?;
            let whole = self.whole(piece);
            if !whole.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(whole))));
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
        if this.is_sound(&frame) {
            return Poll::Ready(frame);
        }
        // The fault is reported once.
        this.is_single = false;
        Poll::Ready(Some(Err(status::of(Reason::NotOneMessage).into())))
    }

    fn is_end_stream(&self) -> bool {
        let is_read = self.whole.is_empty() && self.kept.is_empty() && self.last.is_none();
        is_read && (self.has_one || !self.is_single) && self.body.is_end_stream()
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
    async fn pass(bytes: &[u8], size: usize, trailers: bool) -> Vec<Frame<Bytes>> {
        let mut frames: Vec<_> = bytes.chunks(size).map(Bytes::copy_from_slice).map(Frame::data).collect();
        frames.extend(trailers.then(|| Frame::trailers(http::HeaderMap::new())));
        let frames = frames.into_iter().map(Ok::<_, std::convert::Infallible>);
        let body = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
        let mut upload = Upload::new(body, Memory::default().of(1), 1000, Expected::Many);
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
            let passed = pass(&all, size, false).await;
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
                let mut passed = pass(&cut, size, trailers).await;
                assert_eq!(passed.pop_if(|frame| frame.is_trailers()).is_some(), trailers);
                let last = passed.pop().expect("the end").into_data().expect("data");
                assert_eq!(last, [0, 0, 0, 0, 9, 9, 9][..], "what stays unfinished is the codec's to refuse");
                assert_eq!(passed.iter().map(|frame| frame.data_ref().expect("data").len()).sum::<usize>(), all.len());
            }
        }
    }
}
