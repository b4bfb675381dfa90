//! JSON output, one line per answer.

use std::{io, sync::LazyLock};

use prost::Name;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde::Serialize;

use crate::proto;

static MESSAGES: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(proto::DESCRIPTORS).expect("the build made valid descriptors"));

/// A value as one line of JSON.
pub(crate) fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("the key of each map is a string, and no serializer fails")
}

/// A message of the contract as one line of proto3 JSON: with the contract's field names, with default values, and with
/// numbers as numbers. It fails for a duration that is longer than the format allows.
pub(crate) fn message<M: Name>(message: &M) -> io::Result<String> {
    let known = MESSAGES.get_message_by_name(&M::full_name()).expect("the contract has all its messages");
    let mut dynamic = DynamicMessage::new(known);
    dynamic.transcode_from(message).map_err(io::Error::other)?;
    let options =
        SerializeOptions::new().use_proto_field_name(true).skip_default_fields(false).stringify_64_bit_integers(false);
    let mut line = Vec::new();
    dynamic.serialize_with_options(&mut serde_json::Serializer::new(&mut line), &options)?;
    String::from_utf8(line).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{JobResult, ListJobsResponse, StreamResponse, Waterfall, stream_response::Event};

    #[test]
    fn a_message_is_proto3_json_with_the_names_of_the_contract() {
        let result = JobResult { job_id: "7".to_owned(), output: b"hi".to_vec(), ..JobResult::default() };
        assert_eq!(message(&result).unwrap(), r#"{"job_id":"7","output":"aGk=","content_type":""}"#);
        let waterfall = Some(Waterfall::default());
        let line = message(&JobResult { waterfall, ..result }).unwrap();
        assert!(line.contains(r#""waterfall":{"#), "{line}");
        let list = ListJobsResponse { all: 1 << 60, ..ListJobsResponse::default() };
        let expected = r#"{"jobs":[],"all":1152921504606846976,"order":"JOB_ORDER_UNSPECIFIED","tenants":[]}"#;
        assert_eq!(message(&list).unwrap(), expected);
        let progress = StreamResponse { sequence: 3, event: Some(Event::Progress(Default::default())) };
        assert_eq!(message(&progress).unwrap(), r#"{"sequence":3,"progress":{"fraction":0.0,"message":""}}"#);
    }

    #[test]
    fn a_duration_that_json_cannot_hold_is_an_error() {
        let elapsed = Some(prost_types::Duration { seconds: i64::MAX, nanos: 0 });
        assert!(message(&proto::DrainResponse { elapsed, ..Default::default() }).is_err());
    }
}
