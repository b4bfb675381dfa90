use prost::{
    DecodeError, Message,
    bytes::{Buf, BufMut},
    encoding::{self, DecodeContext, WireType, encoded_len_varint},
};
use prost_types::Duration;

/// Where the budget of one job went.
///
/// `waterwheel.v1.Waterfall` of the contract, by hand: every result carries one, and what is derived writes its fifty
/// bytes one by one through the buffer of the codec, which took a tenth of a short job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Waterfall {
    /// Time from arrival to the deadline.
    pub budget: Option<Duration>,
    /// Time from arrival to the start of the run.
    pub queue: Option<Duration>,
    /// Time that the handler ran.
    pub run: Option<Duration>,
    /// Time that was left at the end.
    pub left: Option<Duration>,
    /// Id of the worker that ran the job, unique in its pool.
    pub worker: u32,
}

const WORKER: u32 = 5;

impl Message for Waterfall {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        let mut bytes = Bytes::default();
        for (tag, duration) in (1..).zip([self.budget, self.queue, self.run, self.left]) {
            let Some(duration) = duration else { continue };
            bytes.key(tag, WireType::LengthDelimited);
            bytes.short(|bytes| {
                bytes.integer(1, duration.seconds);
                bytes.integer(2, duration.nanos.into());
            });
        }
        bytes.integer(WORKER, self.worker.into());
        buf.put_slice(bytes.written());
    }

    fn encoded_len(&self) -> usize {
        // The length of a duration takes one byte, as its key does.
        let part = |duration: &Option<Duration>| duration.as_ref().map_or(0, |duration| 2 + length(duration));
        let parts = part(&self.budget) + part(&self.queue) + part(&self.run) + part(&self.left);
        parts + integer_length(self.worker.into())
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        let (name, part) = match tag {
            1 => ("budget", &mut self.budget),
            2 => ("queue", &mut self.queue),
            3 => ("run", &mut self.run),
            4 => ("left", &mut self.left),
            WORKER => {
                let merged = encoding::uint32::merge(wire_type, &mut self.worker, buf, context);
                return merged.map_err(|error| within(error, "worker"));
            }
            _ => return encoding::skip_field(wire_type, tag, buf, context),
        };
        let merged = encoding::message::merge(wire_type, part.get_or_insert_default(), buf, context);
        merged.map_err(|error| within(error, name))
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

fn within(mut error: DecodeError, field: &'static str) -> DecodeError {
    error.push("Waterfall", field);
    error
}

/// Most bytes of a field of a number: its key and ten of the number.
const MOST_OF_NUMBER: usize = 11;
/// Most bytes of the whole: four durations, each with a key and its length, and the worker.
const MOST: usize = 4 * (2 + 2 * MOST_OF_NUMBER) + MOST_OF_NUMBER;

/// What is written in one go.
struct Bytes {
    bytes: [u8; MOST],
    length: usize,
}

impl Default for Bytes {
    fn default() -> Self {
        Self { bytes: [0; MOST], length: 0 }
    }
}

impl Bytes {
    fn written(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// A message of fewer than 128 bytes, behind its length.
    fn short(&mut self, write: impl FnOnce(&mut Self)) {
        let at = self.length;
        self.byte(0);
        write(self);
        self.bytes[at] = (self.length - at - 1) as u8;
    }

    fn key(&mut self, tag: u32, wire_type: WireType) {
        self.varint(u64::from(tag << 3 | wire_type as u32));
    }

    /// A field of a number; none where it is zero, as proto3 has it.
    fn integer(&mut self, tag: u32, value: i64) {
        if value != 0 {
            self.key(tag, WireType::Varint);
            self.varint(value.cast_unsigned());
        }
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte((value & 0x7f | 0x80) as u8);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    fn byte(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }
}

fn length(duration: &Duration) -> usize {
    integer_length(duration.seconds) + integer_length(duration.nanos.into())
}

fn integer_length(value: i64) -> usize {
    if value == 0 { 0 } else { 1 + encoded_len_varint(value.cast_unsigned()) }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, test_runner::RngSeed};

    use super::*;

    /// The same as it is derived.
    #[derive(Clone, PartialEq, Message)]
    struct Derived {
        #[prost(message, optional, tag = "1")]
        budget: Option<Duration>,
        #[prost(message, optional, tag = "2")]
        queue: Option<Duration>,
        #[prost(message, optional, tag = "3")]
        run: Option<Duration>,
        #[prost(message, optional, tag = "4")]
        left: Option<Duration>,
        #[prost(uint32, tag = "5")]
        worker: u32,
        #[prost(string, tag = "6")]
        unknown: String,
    }

    prop_compose! {
        fn duration()(
            seconds in prop_oneof![Just(0), 0..100_i64, any::<i64>()],
            nanos in prop_oneof![Just(0), 0..1_000_000_000, any::<i32>()],
        ) -> Duration {
            Duration { seconds, nanos }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

        #[test]
        fn it_is_what_is_derived(
            parts in prop::array::uniform4(prop::option::of(duration())),
            worker in prop_oneof![Just(0), any::<u32>()],
        ) {
            let [budget, queue, run, left] = parts;
            let waterfall = Waterfall { budget, queue, run, left, worker };
            let derived = Derived { budget, queue, run, left, worker, unknown: String::new() };
            let bytes = derived.encode_to_vec();
            prop_assert_eq!(waterfall.encoded_len(), bytes.len());
            prop_assert_eq!(&waterfall.encode_to_vec(), &bytes);
            let later = Derived { unknown: "of a later version".to_owned(), ..derived }.encode_to_vec();
            prop_assert_eq!(Waterfall::decode(later.as_slice()).unwrap(), waterfall);
        }
    }

    #[test]
    fn what_is_no_waterfall_is_refused_by_name() {
        let error = Waterfall::decode([0x12, 0x02, 0x08, 0xff].as_slice()).expect_err("a number without an end");
        assert!(error.to_string().contains("Waterfall.queue"), "{error}");
    }
}
