//! Reads the messages of a client-streaming call. `upload.rs` delivers whole messages.

use std::{marker::PhantomData, sync::Arc};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use prost::{Message, Name};
use tonic::{Request, Status, Streaming, body::Body, codec::CompressionEncoding};

use super::{
    context::Arrival,
    upload::{CUT, HEAD},
};
use crate::proto::{CopyingDecoder, MAX_ENVELOPE, decode};

/// Passes the body of a call to its service, which reads it with [`Messages`].
pub(super) type Inbound = Arc<Mutex<Option<Body>>>;

/// The messages that a caller streams.
///
/// The codec's own stream keeps a buffer as large as its largest message while the call is open. This one keeps nothing
/// of a message that was read. Its body consists of whole messages: see [`Upload`](super::upload::Upload).
pub(super) struct Messages<T> {
    body: Body,
    encoding: Option<CompressionEncoding>,
    largest: usize,
    /// Whole messages that are not read yet.
    received: Bytes,
    message: PhantomData<T>,
}

/// A message that was not decoded.
pub(super) struct Undecoded {
    pub(super) status: Status,
    /// Its first bytes, unless it was compressed.
    pub(super) start: Bytes,
    /// Size limit that it exceeds, in bytes: for the whole message, or for the fields besides the payload.
    pub(super) limit: usize,
}

impl From<Status> for Undecoded {
    fn from(status: Status) -> Self {
        Self { status, start: Bytes::new(), limit: 0 }
    }
}

impl<T: Message + Default + Name + 'static> Messages<T> {
    /// Reads the messages of `request`, which have at most `largest` bytes.
    pub(super) fn of(request: &Request<Streaming<T>>, largest: usize) -> Self {
        let inbound = request.extensions().get().and_then(|arrival: &Arrival| arrival.inbound.as_ref());
        let body = inbound.and_then(|inbound| inbound.lock().take()).unwrap_or_default();
        let is_gzip = request.metadata().get("grpc-encoding").is_some_and(|encoding| encoding == "gzip");
        let encoding = is_gzip.then_some(CompressionEncoding::Gzip);
        Self { body, encoding, largest, received: Bytes::new(), message: PhantomData }
    }

    /// The next message; `None` at the end. Cancel safe.
    pub(super) async fn message(&mut self) -> Result<Option<T>, Status> {
        self.next().await.map_err(|undecoded| undecoded.status)
    }

    /// The next message, for calls that may continue after a message that is too large. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Option<T>, Undecoded> {
        while self.received.is_empty() {
            match self.body.frame().await {
                Some(Ok(frame)) => self.received = frame.into_data().unwrap_or_default(),
                Some(Err(status)) => return Err(status.into()),
                None => return Ok(None),
            }
        }
        let length = self.received.first_chunk::<HEAD>().map(|[_, length @ ..]| u32::from_be_bytes(*length) as usize);
        let Some(framed) = length.map(|length| HEAD + length).filter(|framed| *framed <= self.received.len()) else {
            return Err(Status::internal("the call ended within a message").into());
        };
        let flag = self.received[0];
        let mut framed = self.received.split_to(framed);
        if self.received.is_empty() {
            self.received = Bytes::new();
        }
        match flag {
            0 => {
                let start = framed.split_off(HEAD);
                decode(start.clone()).map(Some).map_err(|status| Undecoded { status, start, limit: MAX_ENVELOPE })
            }
            CUT => {
                let (start, limit) = (framed.split_off(HEAD), self.largest);
                let status = Status::resource_exhausted(format!("a message takes more than {limit} bytes"));
                Err(Undecoded { status, start, limit })
            }
            _ => Ok(self.unpack(framed).await?),
        }
    }

    /// Decompresses one message.
    async fn unpack(&mut self, framed: Bytes) -> Result<Option<T>, Status> {
        let decoder = CopyingDecoder::<T>::default();
        let mut one = Streaming::new_request(decoder, Full::new(framed), self.encoding, Some(self.largest));
        one.message().await
    }
}
