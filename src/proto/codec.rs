//! The codec of all messages. `envelope.rs` checks a message before it is decoded.

use std::marker::PhantomData;

use prost::{
    Message, Name,
    bytes::{Buf, Bytes},
};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::ProstEncoder;

use super::envelope::Envelope;

/// Largest message that is copied out of its receive buffer, in bytes.
const MAX_COPIED: usize = 4096;
/// Initial capacity of a buffer, in bytes.
const BUFFER: usize = 512;
/// Most answer bytes that are sent at once, the same as tonic's default.
const YIELD_THRESHOLD: usize = 32 << 10;

/// The codec of `tonic-prost`, with two differences: it measures messages before it decodes them, and copies small ones
/// out of the receive buffer.
///
/// A payload that is a slice of the buffer would keep the whole buffer alive while the job is queued. A slice is also
/// cheaper to read than the buffer.
pub(super) struct CopyingCodec<T, U>(PhantomData<(T, U)>);

pub(crate) struct CopyingDecoder<U>(PhantomData<U>);

impl<U> Default for CopyingDecoder<U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Default for CopyingCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + 'static, U: Message + Default + Name + 'static> Codec for CopyingCodec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = CopyingDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(buffers())
    }

    fn decoder(&mut self) -> Self::Decoder {
        CopyingDecoder::default()
    }
}

/// Buffers for small messages; they grow for larger ones. Each call has one for its request, and each answer has one
/// until it is sent.
fn buffers() -> BufferSettings {
    BufferSettings::new(BUFFER, YIELD_THRESHOLD)
}

impl<U: Message + Default + Name> Decoder for CopyingDecoder<U> {
    type Item = U;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let length = buffer.remaining();
        decode(buffer.copy_to_bytes(length)).map(Some)
    }
}

/// Decodes one complete message.
///
/// # Errors
/// INTERNAL if it cannot be decoded, INVALID_ARGUMENT if it has too many labels, and RESOURCE_EXHAUSTED if its envelope
/// is too large.
pub(crate) fn decode<U: Message + Default + Name>(message: Bytes) -> Result<U, Status> {
    let payload = match payload_fields::<U>() {
        [] => 0,
        fields if message.len() > MAX_COPIED => Envelope::measure(&message, fields)?.payload,
        _ => 0,
    };
    // A payload that is a small part of its message must not keep the whole message alive.
    let decoded = if message.len() <= MAX_COPIED || payload < message.len() / 2 {
        U::decode(&message[..])
    } else {
        U::decode(message)
    };
    decoded.map_err(|error| Status::internal(error.to_string()))
}

/// Numbers of the request's fields that contain a job or its output.
fn payload_fields<U: Name>() -> &'static [u32] {
    match U::NAME {
        "SubmitRequest" | "StreamRequest" | "CreateJobRequest" | "CreateJobsRequest" => &[1],
        "SubmitManyRequest" => &[2],
        "AttachRequest" => &[2, 4],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, Bytes, BytesMut};
    use http_body_util::Full;
    use tonic::{Code, Streaming};

    use super::*;
    use crate::proto::{Job, SubmitRequest};

    /// What is read of messages that came together, and the status that follows them.
    async fn read(messages: &[Vec<u8>]) -> (Vec<SubmitRequest>, Option<Status>) {
        let mut wire = BytesMut::new();
        for message in messages {
            wire.put_u8(0);
            wire.put_u32(message.len() as u32);
            wire.put_slice(message);
        }
        let decoder = CopyingCodec::<(), SubmitRequest>::default().decoder();
        let body = Full::new(wire.freeze());
        let mut messages = Streaming::new_request(decoder, body, None, None);
        let mut read = Vec::new();
        loop {
            match messages.message().await {
                Ok(Some(message)) => read.push(message),
                Ok(None) => return (read, None),
                Err(failure) => return (read, Some(failure)),
            }
        }
    }

    fn request(payload: &[u8]) -> SubmitRequest {
        let payload = Bytes::copy_from_slice(payload);
        SubmitRequest { job: Some(Job { kind: "echo".into(), payload, ..Job::default() }) }
    }

    #[tokio::test]
    async fn a_small_payload_does_not_keep_the_buffer_that_it_came_in() {
        let sent = [&[1; 64][..], &[], &[2; MAX_COPIED], &[3; 100_000]].map(request);
        let (received, failure) = read(&sent.each_ref().map(Message::encode_to_vec)).await;
        assert_eq!((received.as_slice(), failure.map(|failure| failure.code())), (&sent[..], None));
        let small = received[0].job.clone().expect("sent with a job").payload;
        drop(received);
        assert_eq!(small.try_into_mut().expect("the only owner").capacity(), 64);
    }

    #[tokio::test]
    async fn a_payload_that_is_a_small_part_of_its_message_does_not_keep_it() {
        let job = Job { labels: [("x".into(), "y".repeat(60_000))].into(), ..request(&[1; 64]).job.expect("a job") };
        let message = Bytes::from(SubmitRequest { job: Some(job) }.encode_to_vec());
        let decoded: SubmitRequest = decode(message).expect("a message");
        let payload = decoded.job.expect("a job").payload;
        assert_eq!(payload.try_into_mut().expect("the only owner").capacity(), 64);
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused_however_long_it_is() {
        for length in [1, 100, MAX_COPIED, MAX_COPIED + 1] {
            let valid = request(&[1; 64]);
            let (received, failure) = read(&[valid.encode_to_vec(), vec![0xff; length]]).await;
            assert_eq!(received, [valid], "{length}");
            let failure = failure.expect("it is no message");
            assert_eq!(failure.code(), Code::Internal, "{length}");
            assert!(failure.message().contains("failed to decode Protobuf message"), "{failure:?}");
        }
    }
}
