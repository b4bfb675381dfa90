//! What messages may hold before they are whole.
//!
//! A payload that is on its way sits in memory, and no pool has counted it. HTTP/2 bounds only what nobody has read:
//! with 256 streams of 4 MiB each, one connection could make the server hold 1 GiB. So the bytes of unfinished messages
//! are counted, over all connections and for each. A message that arrives in one piece is whole at once and touches
//! nothing; one of more pieces is counted with every piece, until it is whole and its job is the pool's to count.
//!
//! Nothing of an unfinished message is handed on: the codec makes room for a whole message when it sees the head of one,
//! so that five bytes would take as much as the payload that they announce.
//!
//! Where a bound is reached, the message that has been unfinished longest makes room, on its connection or anywhere, and
//! its call is refused with `UPLOADS_FULL`. Waiting instead could wait for ever, as every message might hold what
//! another one waits for; and refusing the newest would let peers that send slowly shut out those that do not.
//!
//! So with all services of a listener, bytes that callers make the server hold are at most
//! `uploads.total` for messages that are not whole,
//! + `connections.max` × `http2.connection_window` for pieces that nobody has read (near nothing in practice: they are
//!   read as they come),
//! + for each pool `queue.bytes`, and one payload for each of its workers and of its waiting callers.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use futures_util::task::AtomicWaker;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tracing::debug;

use super::{framing::Framing, status};

/// Bounds of what unfinished messages hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadLimits {
    /// Most bytes over all connections.
    pub total: usize,
    /// Most bytes on one connection.
    pub per_connection: usize,
}

impl UploadLimits {
    /// The limits with room for the fields of a message besides its payload.
    pub(super) fn with(self, envelope: usize) -> Self {
        let Self { total, per_connection } = self;
        Self { total: total.saturating_add(envelope), per_connection: per_connection.saturating_add(envelope) }
    }
}

/// The unfinished messages of a listener. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Uploads(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: UploadLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: usize,
    /// Age is the order in which messages turned out to be of more than one piece.
    next: u64,
    by_age: BTreeMap<u64, Held>,
    connections: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Held {
    bytes: usize,
    connection: u64,
    eviction: Arc<Eviction>,
}

#[derive(Debug, Default)]
struct Connection {
    held: usize,
    by_age: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Eviction {
    is_due: AtomicBool,
    waker: AtomicWaker,
}

/// The count of one unfinished message; dropped, it holds nothing.
#[derive(Debug)]
struct Ticket {
    uploads: Uploads,
    age: u64,
    eviction: Arc<Eviction>,
}

impl Uploads {
    pub(super) fn new(limits: UploadLimits) -> Self {
        Self(Arc::new(Shared { limits, state: Mutex::default() }))
    }

    /// The messages of one connection.
    pub(super) fn of(&self, connection: u64) -> Arc<ConnectionUploads> {
        Arc::new(ConnectionUploads { uploads: self.clone(), connection })
    }

    /// Begins to count a message.
    fn open(&self, connection: u64) -> Ticket {
        let eviction = Arc::<Eviction>::default();
        let mut state = self.0.state.lock();
        let age = state.next;
        state.next += 1;
        state.by_age.insert(age, Held { bytes: 0, connection, eviction: Arc::clone(&eviction) });
        state.connections.entry(connection).or_default().by_age.insert(age);
        Ticket { uploads: self.clone(), age, eviction }
    }
}

impl Ticket {
    /// Counts that the message holds `bytes`, and makes others, or itself, give way where that is too much.
    fn hold(&self, bytes: usize) {
        let UploadLimits { total, per_connection } = self.uploads.0.limits;
        let mut state = self.uploads.0.state.lock();
        let Some(held) = state.by_age.get_mut(&self.age) else { return };
        let grown = bytes.saturating_sub(held.bytes);
        held.bytes += grown;
        let connection = held.connection;
        state.held += grown;
        state.connections.entry(connection).or_default().held += grown;
        while let Some(own) = state.connections.get(&connection)
            && own.held > per_connection
            && let Some(oldest) = own.by_age.first().copied()
        {
            state.evict(oldest);
        }
        while state.held > total
            && let Some(oldest) = state.by_age.first_key_value().map(|(age, _)| *age)
        {
            state.evict(oldest);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.uploads.0.state.lock().remove(self.age);
    }
}

impl State {
    fn evict(&mut self, age: u64) {
        if let Some(Held { bytes, connection, eviction }) = self.remove(age) {
            debug!(connection, size_bytes = bytes, "an unfinished message gives way to others");
            eviction.is_due.store(true, Ordering::Release);
            eviction.waker.wake();
        }
    }

    fn remove(&mut self, age: u64) -> Option<Held> {
        let held = self.by_age.remove(&age)?;
        self.held -= held.bytes;
        if let Some(connection) = self.connections.get_mut(&held.connection) {
            connection.held -= held.bytes;
            connection.by_age.remove(&age);
            if connection.by_age.is_empty() {
                self.connections.remove(&held.connection);
            }
        }
        Some(held)
    }
}

/// The unfinished messages of one connection: the calls of a connection share no count of references with others.
#[derive(Debug)]
pub(super) struct ConnectionUploads {
    uploads: Uploads,
    connection: u64,
}

impl ConnectionUploads {
    fn open(&self) -> Ticket {
        self.uploads.open(self.connection)
    }
}

/// The messages of one call, counted and kept back while they are not whole.
#[derive(Debug)]
pub(super) struct Upload<B> {
    body: B,
    connection: Arc<ConnectionUploads>,
    framing: Framing,
    ticket: Option<Ticket>,
    /// What there is of the message that is not whole. Copied: a piece may be a small part of a large buffer.
    kept: BytesMut,
    /// What came after a message that stays unfinished.
    last: Option<Frame<Bytes>>,
}

impl<B> Upload<B> {
    pub(super) fn new(body: B, connection: Arc<ConnectionUploads>) -> Self {
        Self { body, connection, framing: Framing::default(), ticket: None, kept: BytesMut::new(), last: None }
    }

    /// Counts a piece.
    fn count(&mut self, piece: &Bytes) {
        self.framing.read(piece);
        let unfinished = self.framing.unfinished();
        if unfinished == 0 {
            self.ticket = None;
            return;
        }
        if self.framing.is_new() {
            // The message before this one ended in the same piece.
            self.ticket = None;
        }
        self.ticket.get_or_insert_with(|| self.connection.open()).hold(unfinished);
    }

    /// Keeps back what is not whole, and returns what is.
    fn whole(&mut self, mut piece: Bytes) -> Bytes {
        let unfinished = self.framing.unfinished();
        if unfinished == 0 && self.kept.is_empty() {
            return piece;
        }
        let rest = if unfinished == 0 || self.framing.is_new() {
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
        whole
    }

    fn is_evicted(&self) -> bool {
        self.ticket.as_ref().is_some_and(|ticket| ticket.eviction.is_due.load(Ordering::Acquire))
    }
}

impl<B> Body for Upload<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if let Some(ticket) = &this.ticket {
            ticket.eviction.waker.register(cx.waker());
        }
        if this.is_evicted() {
            return Poll::Ready(Some(Err(status::uploads_full().into())));
        }
        if let Some(last) = this.last.take() {
            return Poll::Ready(Some(Ok(last)));
        }
        loop {
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame.into_data(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => {
                    this.ticket = None;
                    let kept = mem::take(&mut this.kept);
                    return Poll::Ready((!kept.is_empty()).then(|| Ok(Frame::data(kept.freeze()))));
                }
            };
            let piece = match frame {
                Ok(piece) => piece,
                Err(last) if this.kept.is_empty() => return Poll::Ready(Some(Ok(last))),
                Err(last) => {
                    this.last = Some(last);
                    return Poll::Ready(Some(Ok(Frame::data(mem::take(&mut this.kept).freeze()))));
                }
            };
            this.count(&piece);
            if this.is_evicted() {
                return Poll::Ready(Some(Err(status::uploads_full().into())));
            }
            let whole = this.whole(piece);
            if !whole.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(whole))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.kept.is_empty() && self.last.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uploads(total: usize, per_connection: usize) -> Uploads {
        Uploads::new(UploadLimits { total, per_connection })
    }

    fn due(ticket: &Ticket) -> bool {
        ticket.eviction.is_due.load(Ordering::Acquire)
    }

    fn held(uploads: &Uploads) -> (usize, usize, usize) {
        let state = uploads.0.state.lock();
        (state.held, state.by_age.len(), state.connections.len())
    }

    #[test]
    fn the_oldest_of_its_connection_gives_way_first() {
        let uploads = uploads(100, 10);
        let (other, slow, quick) = (uploads.open(1), uploads.open(2), uploads.open(2));
        other.hold(9);
        slow.hold(4);
        quick.hold(6);
        assert_eq!([&other, &slow, &quick].map(due), [false; 3]);
        quick.hold(7);
        assert_eq!([&other, &slow, &quick].map(due), [false, true, false]);
        assert_eq!(held(&uploads), (16, 2, 2));
        slow.hold(5);
        assert_eq!(held(&uploads).0, 16, "what gave way holds nothing any more");
        quick.hold(11);
        assert!(due(&quick), "alone and over the bound");
        drop((other, slow, quick));
        assert_eq!(held(&uploads), (0, 0, 0));
    }

    #[test]
    fn the_oldest_of_all_gives_way_where_all_hold_too_much() {
        let uploads = uploads(10, 10);
        let tickets = [uploads.open(1), uploads.open(2), uploads.open(3)];
        for ticket in &tickets {
            ticket.hold(3);
        }
        tickets[2].hold(5);
        assert_eq!([0, 1, 2].map(|at: usize| due(&tickets[at])), [true, false, false]);
        assert_eq!(held(&uploads), (8, 2, 2));
    }

    /// Reads a body that comes in pieces of `size`. Returns what is handed on.
    async fn pass(bytes: &[u8], size: usize, trailers: bool) -> Vec<Frame<Bytes>> {
        let mut frames: Vec<_> = bytes.chunks(size).map(Bytes::copy_from_slice).map(Frame::data).collect();
        frames.extend(trailers.then(|| Frame::trailers(http::HeaderMap::new())));
        let frames = frames.into_iter().map(Ok::<_, std::convert::Infallible>);
        let body = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
        let mut upload = Upload::new(body, uploads(1000, 1000).of(1));
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
