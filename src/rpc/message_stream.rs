//! The stream of messages of a client-streaming call. `upload.rs` delivers whole messages.

use std::{marker::PhantomData, sync::Arc};

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use prost::{Message, Name};
use tonic::{Status, Streaming, body::Body, codec::CompressionEncoding};

use super::{cut::CUT, framing::HEAD};
use crate::proto::{CopyingDecoder, MAX_ENVELOPE, decode};

/// The body of a call whose messages [`Messages`] reads, on its way there.
pub(super) type Inbound = Arc<Mutex<Option<Body>>>;

/// The messages that a caller streams.
///
/// The codec's own stream keeps the buffer of its largest message as long as the call is open. This one keeps nothing
/// of a message that was read. The body consists of whole messages: see [`Upload`](super::upload::Upload).
pub(super) struct Messages<T> {
    body: Body,
    encoding: Option<CompressionEncoding>,
    largest: usize,
    /// Whole messages that were not read yet.
    received: Bytes,
    message: PhantomData<T>,
}

/// Why a message was not decoded.
pub(super) struct Unread {
    pub(super) status: Status,
    /// Its first bytes, unless it was compressed.
    pub(super) start: Bytes,
    /// Bytes that it may have, or its fields beside the payload.
    pub(super) limit: usize,
}

impl From<Status> for Unread {
    fn from(status: Status) -> Self {
        Self { status, start: Bytes::new(), limit: 0 }
    }
}

impl<T: Message + Default + Name + 'static> Messages<T> {
    /// Reads `body`, which came with `headers`. Messages have at most `largest` bytes.
    pub(super) fn new(body: Body, headers: &HeaderMap, largest: usize) -> Self {
        let encoding = match headers.get("grpc-encoding").map(|encoding| encoding.as_bytes()) {
            Some(b"gzip") => Some(CompressionEncoding::Gzip),
            Some(b"zstd") => Some(CompressionEncoding::Zstd),
            _ => None,
        };
        Self { body, encoding, largest, received: Bytes::new(), message: PhantomData }
    }

    /// The next message; `None` at the end. Cancel safe.
    pub(super) async fn message(&mut self) -> Result<Option<T>, Status> {
        self.next().await.map_err(|unread| unread.status)
    }

    /// The same for calls that may go on after a message that is too large. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Option<T>, Unread> {
        while self.received.is_empty() {
            match self.body.frame().await {
                Some(Ok(frame)) => self.received = frame.into_data().unwrap_or_default(),
                Some(Err(status)) => return Err(status.into()),
                None => return Ok(None),
            }
        }
        let Some((head, rest)) = self.received.split_first_chunk::<HEAD>() else { return Err(cut_short().into()) };
        let [flag, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if rest.len() < length {
            return Err(cut_short().into());
        }
        let mut framed = self.received.split_to(HEAD + length);
        if self.received.is_empty() {
            self.received = Bytes::new();
        }
        match flag {
            0 => {
                let start = framed.split_off(HEAD);
                decode(start.clone()).map(Some).map_err(|status| Unread { status, start, limit: MAX_ENVELOPE })
            }
            CUT => {
                let (start, limit) = (framed.split_off(HEAD), self.largest);
                let status = Status::resource_exhausted(format!("a message takes more than {limit} bytes"));
                Err(Unread { status, start, limit })
            }
            _ => Ok(self.unpack(framed).await?),
        }
    }

    /// Decompresses one message, or fails on unknown flags.
    async fn unpack(&mut self, framed: Bytes) -> Result<Option<T>, Status> {
        let decoder = CopyingDecoder::<T>::default();
        let mut one = Streaming::new_request(decoder, Full::new(framed), self.encoding, Some(self.largest));
        one.message().await
    }
}

fn cut_short() -> Status {
    Status::internal("the call ended within a message")
}
