//! The request of a call, as gRPC: each message is translated once all of it has arrived.

use std::{
    io::Read as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use flate2::bufread::GzDecoder;
use futures_util::{FutureExt as _, future::BoxFuture};
use http_body::{Body, Frame};
use prost_reflect::MessageDescriptor;
use tonic::Status;
use tower::BoxError;

use super::{
    form::{Codec, Framing},
    json,
    work::{LARGE, Work},
};
use crate::{
    memory::{ConnectionMemory, HeldBack, UploadState},
    model::Reason,
    rpc::{
        status,
        upload::{HEAD, Upload},
    },
};

/// The messages of one call.
pub(super) struct Incoming<B> {
    upload: Upload<B>,
    reader: Reader,
    /// Received messages that are not yet translated.
    received: Bytes,
    is_translating: Option<BoxFuture<'static, Result<Bytes, Status>>>,
    /// Whether a message has come. An empty body is an empty one.
    has_one: bool,
}

/// How messages are written.
#[derive(Clone)]
pub(super) struct Reader {
    pub(super) codec: Codec,
    pub(super) framing: Framing,
    /// Whether they may be compressed.
    pub(super) is_gzip: bool,
    pub(super) input: MessageDescriptor,
    /// Largest message as it is written, and as Protobuf.
    pub(super) written: usize,
    pub(super) largest: usize,
    pub(super) memory: Arc<ConnectionMemory>,
    pub(super) work: Work,
}

impl<B> Incoming<B> {
    pub(super) fn new(upload: Upload<B>, reader: Reader) -> Self {
        Self { upload, reader, received: Bytes::new(), is_translating: None, has_one: false }
    }

    /// The next message that was received, and whether it is compressed.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the body ended within it.
    fn next_message(&mut self) -> Result<Option<(Bytes, bool)>, Status> {
        if self.received.is_empty() {
            return Ok(None);
        }
        self.has_one = true;
        if self.reader.framing == Framing::Whole {
            return Ok(Some((std::mem::take(&mut self.received), self.reader.is_gzip)));
        }
        let cut = || status::saying(Reason::InvalidForm, "the body ends within an envelope");
        let [flags, a, b, c, d] = self.received.first_chunk().copied().ok_or_else(cut)?;
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        self.received.advance(HEAD);
        if length > self.received.len() {
            return Err(cut());
        }
        Ok(Some((self.received.split_to(length), flags & 1 == 1)))
    }
}

impl Reader {
    /// Translates a message. A large one waits for its turn beside the serving threads, and is counted meanwhile.
    fn translate(&self, message: Bytes, is_compressed: bool) -> BoxFuture<'static, Result<Bytes, Status>> {
        let (reader, work) = (self.clone(), self.work.clone());
        let length = if is_compressed { inflated_length(&message) } else { message.len() };
        let length = length.min(self.written + 1);
        let mut account = (length >= LARGE).then(|| self.memory.upload(message.len()));
        let mut count = move |bytes| match account.as_mut().map(|account| account.grow_to(bytes)) {
            Some(UploadState::Evicted) => Err(status::uploads_full()),
            _ => Ok(()),
        };
        Box::pin(async move {
            count(message.len())?;
            let translate = move || {
                count(message.len())?;
                reader.read(&message, is_compressed.then_some(length))
            };
            work.run(length, translate).await
        })
    }

    /// A message with the prefix of gRPC. A compressed one has `inflated` bytes when it is not.
    fn read(&self, message: &[u8], inflated: Option<usize>) -> Result<Bytes, Status> {
        let mut text = Vec::new();
        let message = match inflated {
            None => message,
            Some(_) if !self.is_gzip => {
                let message = "a message is compressed, and connect-content-encoding names no compression";
                return Err(status::saying(Reason::MessageBroken, message));
            }
            Some(_) if message.is_empty() => message,
            Some(length) => {
                let no_gzip = |why: &str| status::saying(Reason::InvalidForm, format!("the message is no gzip: {why}"));
                let mut gzip = GzDecoder::new(message);
                let read = gzip.by_ref().take(length as u64 + 1).read_to_end(&mut text);
                read.map_err(|error| no_gzip(&error.to_string()))?;
                let is_whole = text.len() == length && gzip.get_ref().is_empty();
                if !is_whole && text.len() <= self.written {
                    return Err(no_gzip("its end does not name its length"));
                }
                &text
            }
        };
        if message.len() > self.written {
            return Err(status::message_too_large(message.len(), self.written));
        }
        let mut framed = Vec::with_capacity(HEAD + message.len());
        framed.extend([0; HEAD]);
        match self.codec {
            Codec::Protobuf => framed.extend_from_slice(message),
            Codec::Json => json::read(&self.input, message, &mut framed)?,
        }
        let length = framed.len() - HEAD;
        if length > self.largest {
            return Err(status::message_too_large(length, self.largest));
        }
        framed[1..HEAD].copy_from_slice(&(length as u32).to_be_bytes());
        Ok(framed.into())
    }
}

impl<B> Body for Incoming<B>
where
    B: Body<Data = Bytes> + HeldBack + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        loop {
            if let Some(translation) = &mut this.is_translating {
                let framed = ready!(translation.poll_unpin(cx));
                this.is_translating = None;
                return Poll::Ready(Some(framed.map(Frame::data).map_err(BoxError::from)));
            }
            if let Some((message, is_compressed)) = this.next_message()? {
                this.is_translating = Some(this.reader.translate(message, is_compressed));
                continue;
            }
            let frame = ready!(Pin::new(&mut this.upload).poll_frame(cx));
            match frame.transpose().map_err(broken)?.map(Frame::into_data) {
                Some(Ok(received)) => this.received = received,
                // Trailers of a request have no meaning in this protocol.
                Some(Err(_)) => {}
                None if this.reader.framing == Framing::Whole && !this.has_one => {
                    this.has_one = true;
                    this.is_translating = Some(this.reader.translate(Bytes::new(), false));
                }
                None => return Poll::Ready(None),
            }
        }
    }
}

/// The refusal of a body that HTTP cannot read, such as one with wrong chunks.
fn broken(error: BoxError) -> BoxError {
    let refusal = |error| status::saying(Reason::InvalidForm, format!("the body is broken: {error}"));
    error.downcast::<Status>().unwrap_or_else(|error| Box::new(refusal(error)))
}

/// What the end of a gzip file says about its length (RFC 1952, ISIZE), so that it is counted before it is inflated.
fn inflated_length(message: &[u8]) -> usize {
    message.last_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize)
}

/// The upload below it holds its sender back.
impl<B> HeldBack for Incoming<B> {}
