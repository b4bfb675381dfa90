//! The codec of all messages. It measures a message before it decodes it.
//!
//! Decoding costs far more than sending: each entry of a map is an allocation, and a few kilobytes of gzip become
//! megabytes of entries. So the fields other than the payload have a size limit, and labels are counted.

use std::marker::PhantomData;

use prost::{
    Message, Name,
    bytes::{Buf, Bytes},
    encoding::{WireType, decode_key, decode_varint},
};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::ProstEncoder;

use crate::model::MAX_LABELS;

/// Largest message that is copied out of its receive buffer, in bytes.
const MAX_COPIED: usize = 4096;
/// Initial capacity of a buffer, in bytes.
const BUFFER: usize = 512;
/// Maximum answer bytes that are sent at once, the same as tonic's default.
const YIELD_THRESHOLD: usize = 32 << 10;

/// The codec of `tonic-prost`, with two differences: it measures messages before it decodes them, and copies small ones
/// out of the receive buffer.
///
/// A payload that is a slice of the buffer would keep the whole buffer alive while the job is queued. A slice is also
/// cheaper to read than the buffer.
#[derive(Default)]
pub(super) struct CopyingCodec<T, U>(PhantomData<(T, U)>);

/// The decoder of [`CopyingCodec`].
#[derive(Default)]
pub(crate) struct CopyingDecoder<U>(PhantomData<U>);

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
    // Answers are decoded by clients, which trust their server.
    let is_large_request = message.len() > MAX_COPIED && U::NAME.ends_with("Request");
    let payload = if is_large_request { Envelope::measure(&message, payload_fields::<U>())?.payload } else { 0 };
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

/// Maximum bytes of all fields of a message other than its payload.
pub(crate) const MAX_ENVELOPE: usize = 64 << 10;

/// Number of the field `payload` of a `Job`.
const PAYLOAD: u32 = 2;
/// Number of the field `labels` of a `Job`.
const LABELS: u32 = 10;

/// Sizes of the parts of a message.
#[derive(Debug, Default)]
struct Envelope {
    /// Bytes of the payload.
    payload: usize,
    /// Bytes of all other fields.
    rest: usize,
    labels: usize,
}

impl Envelope {
    /// Measures a message. Its fields with the numbers `jobs` are jobs, or have bytes with the same field number.
    /// Measuring stops at a violation of the wire format, which the decoder will report.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it has too many labels, and RESOURCE_EXHAUSTED if the other fields are too large.
    fn measure(message: &[u8], jobs: &[u32]) -> Result<Self, Status> {
        let mut envelope = Self::default();
        for (number, field, size) in Fields(message) {
            if !jobs.contains(&number) {
                envelope.add(size)?;
                continue;
            }
            envelope.add(size - field.len())?;
            for (number, value, size) in Fields(field) {
                if number == PAYLOAD {
                    envelope.payload = value.len();
                    envelope.add(size - value.len())?;
                } else {
                    envelope.labels += usize::from(number == LABELS);
                    envelope.add(size)?;
                }
                if envelope.labels > MAX_LABELS {
                    return Err(Status::invalid_argument(format!("a job has more than {MAX_LABELS} labels")));
                }
            }
        }
        Ok(envelope)
    }

    fn add(&mut self, bytes: usize) -> Result<(), Status> {
        self.rest += bytes;
        if self.rest <= MAX_ENVELOPE {
            return Ok(());
        }
        let message = format!("the fields other than the payload take more than {MAX_ENVELOPE} bytes");
        Err(Status::resource_exhausted(message))
    }
}

/// The fields of a message: number, value if it has a length, and all bytes of the field.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = (u32, &'a [u8], usize);

    fn next(&mut self) -> Option<Self::Item> {
        let begin = self.0.len();
        let (number, wire_type) = decode_key(&mut self.0).ok()?;
        let length = match wire_type {
            WireType::Varint => {
                decode_varint(&mut self.0).ok()?;
                0
            }
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::LengthDelimited => decode_varint(&mut self.0).ok()?.try_into().ok()?,
            // No client sends groups, so everything that follows counts as one field.
            WireType::StartGroup | WireType::EndGroup => {
                self.0 = &[];
                return Some((0, &[], begin));
            }
        };
        let value = self.0.get(..length)?;
        self.0.advance(length);
        Some((number, value, begin - self.0.len()))
    }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, Bytes, BytesMut};
    use http_body_util::Full;
    use tonic::{Code, Streaming};

    use super::*;
    use crate::proto::{
        DetachedJobFilter, Job, JobServiceListJobsResponse, PurgeJobsRequest, SubmitManyRequest, SubmitRequest,
    };

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

    fn job(payload: usize, labels: usize) -> Job {
        let labels = (0..labels).map(|label| (label.to_string(), "x".to_owned())).collect();
        Job { kind: "echo".into(), payload: vec![1; payload].into(), labels, tenant: "a".into(), ..Job::default() }
    }

    fn measured(message: &[u8], field: u32) -> Result<usize, Code> {
        let envelope = Envelope::measure(message, &[field]).map_err(|refusal| refusal.code())?;
        assert_eq!(envelope.rest + envelope.payload, message.len());
        Ok(envelope.payload)
    }

    #[test]
    fn a_payload_is_told_from_what_is_around_it() {
        for payload in [0, 1, 200, 100_000] {
            let one = SubmitRequest { job: Some(job(payload, 16)) }.encode_to_vec();
            assert_eq!(measured(&one, 1), Ok(payload));
            let many = SubmitManyRequest { tag: "t".into(), job: Some(Box::new(job(payload, 16))) }.encode_to_vec();
            assert_eq!(measured(&many, 2), Ok(payload));
        }
    }

    #[test]
    fn a_request_without_a_payload_is_measured_too_and_an_answer_is_not() {
        let filter = DetachedJobFilter { label_key: "x".repeat(MAX_ENVELOPE), ..DetachedJobFilter::default() };
        let purge = PurgeJobsRequest { filter: Some(filter), ..PurgeJobsRequest::default() }.encode_to_vec();
        let refused = decode::<PurgeJobsRequest>(purge.into()).expect_err("too large");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        let list = JobServiceListJobsResponse { next_page_token: "x".repeat(MAX_ENVELOPE), ..Default::default() };
        assert_eq!(decode::<JobServiceListJobsResponse>(list.encode_to_vec().into()).expect("an answer"), list);
    }

    #[test]
    fn labels_are_counted_over_all_parts_of_a_job() {
        let twice = [job(1, 9), job(1, 8)].map(|job| SubmitRequest { job: Some(job) }.encode_to_vec()).concat();
        assert_eq!(measured(&twice, 1), Err(Code::InvalidArgument));
        let empty = [&[0x0a, 34][..], &[0x52, 0].repeat(17)].concat();
        assert_eq!(measured(&empty, 1), Err(Code::InvalidArgument));
    }

    #[test]
    fn what_nobody_reads_counts_too() {
        let unknown = |length: usize| {
            let mut message = SubmitRequest { job: Some(job(1, 0)) }.encode_to_vec();
            prost::encoding::encode_key(77, WireType::LengthDelimited, &mut message);
            prost::encoding::encode_varint(length as u64, &mut message);
            message.extend(vec![0; length]);
            message
        };
        assert_eq!(measured(&unknown(1000), 1), Ok(1));
        assert_eq!(measured(&unknown(MAX_ENVELOPE), 1), Err(Code::ResourceExhausted));
        let group = [&[0x0b][..], &vec![0; MAX_ENVELOPE]].concat();
        assert_eq!(measured(&group, 1), Err(Code::ResourceExhausted));
    }
}
