//! Measures a message on the wire before it is decoded.
//!
//! Decoding costs far more than sending: each entry of a map is an allocation, and a few kilobytes of gzip become
//! megabytes of entries. So the fields other than the payload have a size limit, and labels are counted.

use prost::{
    bytes::Buf,
    encoding::{WireType, decode_key, decode_varint},
};
use tonic::Status;

use crate::model::MAX_LABELS;

/// Most bytes of all fields of a message other than its payload.
pub(crate) const MAX_ENVELOPE: usize = 64 << 10;

/// Number of the field `payload` of a `Job`.
const PAYLOAD: u32 = 2;
/// Number of the field `labels` of a `Job`.
const LABELS: u32 = 10;

/// Sizes of the parts of a message.
#[derive(Debug, Default)]
pub(super) struct Envelope {
    /// Bytes of the payload.
    pub(super) payload: usize,
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
    pub(super) fn measure(message: &[u8], jobs: &[u32]) -> Result<Self, Status> {
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
    use prost::Message;
    use tonic::Code;

    use super::*;
    use crate::proto::{Job, SubmitManyRequest, SubmitRequest};

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
