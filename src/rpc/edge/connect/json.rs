//! Between JSON and Protobuf, by the descriptors of the messages.

use std::{collections::HashSet, fmt};

use prost::Message;
use prost_reflect::{DeserializeOptions, DynamicMessage, Kind, MessageDescriptor, SerializeOptions};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use tonic::Status;

use crate::{
    model::{Reason, text},
    proto::MAX_ENVELOPE,
    rpc::status,
};

/// Largest JSON text without its longest string, in bytes. It is translated by way of values that take many times as
/// much memory: each entry of a map is an allocation.
pub(super) const MAX_TEXT: usize = 2 * MAX_ENVELOPE;

/// Reads a message, and appends it to `out` in Protobuf.
///
/// # Errors
/// INVALID_ARGUMENT, with the line and the column.
pub(in crate::rpc) fn read(input: &MessageDescriptor, json: &[u8], out: &mut Vec<u8>) -> Result<(), Status> {
    let outside = json.len() - longest_string(json);
    if outside > MAX_TEXT {
        return Err(status::message_too_large(outside, MAX_TEXT));
    }
    let refuse = |error: serde_json::Error| {
        // It quotes what it cannot read.
        status::saying(Reason::InvalidForm, text::message(format!("the JSON of {}: {error}", input.full_name())))
    };
    let unique = Unique::Message(input.clone());
    unique.deserialize(&mut serde_json::Deserializer::from_slice(json)).map_err(refuse)?;
    let mut json = serde_json::Deserializer::from_slice(json);
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message = DynamicMessage::deserialize_with_options(input.clone(), &mut json, &options).map_err(refuse)?;
    json.end().map_err(refuse)?;
    message.encode(out).map_err(|error| status::saying(Reason::InvalidForm, error.to_string()))
}

/// Writes a message of the server.
///
/// # Errors
/// INTERNAL: the server's own message cannot be read.
pub(in crate::rpc) fn write(output: &MessageDescriptor, message: &[u8]) -> Result<Vec<u8>, Status> {
    let broken = |error: String| status::saying(Reason::ServerFailed, format!("its answer is no JSON: {error}"));
    let message = DynamicMessage::decode(output.clone(), message).map_err(|error| broken(error.to_string()))?;
    let mut text = serde_json::Serializer::new(Vec::with_capacity(128));
    message.serialize_with_options(&mut text, &SerializeOptions::new()).map_err(|error| broken(error.to_string()))?;
    Ok(text.into_inner())
}

/// Length of the longest string of a text, which may be a payload.
fn longest_string(text: &[u8]) -> usize {
    let (mut longest, mut rest) = (0, text);
    while let Some(open) = rest.iter().position(|byte| *byte == b'"') {
        let string = &rest[open + 1..];
        let mut end = 0;
        while let Some(byte) = string.get(end).filter(|byte| **byte != b'"') {
            end += if *byte == b'\\' { 2 } else { 1 };
        }
        let end = end.min(string.len());
        longest = longest.max(end);
        rest = string.get(end + 1..).unwrap_or_default();
    }
    longest
}

/// Accepts any value in which no object has a key twice, under either name of its field: of two, one would be lost.
enum Unique {
    /// The keys are names of fields.
    Message(MessageDescriptor),
    /// The values of a map, or of a list of them, are of this kind.
    Map(Kind),
    Value,
}

impl Unique {
    fn of(kind: &Kind) -> Self {
        kind.as_message().map_or(Self::Value, |message| Self::Message(message.clone()))
    }

    /// The name that a key stands for, and what its value is.
    fn entry(&self, key: &str) -> (String, Self) {
        match self {
            Self::Message(message) => {
                let field = message.get_field_by_json_name(key).or_else(|| message.get_field_by_name(key));
                let Some(field) = field else { return (key.to_owned(), Self::Value) };
                let kind = field.kind();
                let entry = kind.as_message().filter(|_| field.is_map());
                let value = entry.map(|entry| Self::Map(entry.map_entry_value_field().kind()));
                (field.json_name().to_owned(), value.unwrap_or_else(|| Self::of(&kind)))
            }
            Self::Map(kind) => (key.to_owned(), Self::of(kind)),
            Self::Value => (key.to_owned(), Self::Value),
        }
    }
}

impl<'de> DeserializeSeed<'de> for &Unique {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &Unique {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(self)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            let (name, value) = self.entry(&key);
            if !keys.insert(name) {
                return Err(A::Error::custom(format_args!("the key {key:?} stands there twice")));
            }
            entries.next_value_seed(&value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::reflection::DESCRIPTORS;

    fn read_submit(text: &str) -> Result<Vec<u8>, Status> {
        let input = DESCRIPTORS.get_message_by_name("waterwheel.v1.SubmitRequest").expect("a message");
        let mut out = Vec::new();
        read(&input, text.as_bytes(), &mut out).map(|()| out)
    }

    #[test]
    fn what_is_written_twice_unknown_or_broken_is_refused_with_its_place() {
        for (text, told) in [
            (r#"{"job":{"kind":"a","kind":"b"}}"#, r#"the key "kind" stands there twice at line 1 column 25"#),
            (r#"{"job":{"labels":{"a":"1","a":"2"}}}"#, r#"the key "a" stands there twice"#),
            (r#"{"job":{"when_full":1,"whenFull":2}}"#, r#"the key "whenFull" stands there twice"#),
            (r#"{"job":{"kind":"\ud800"}}"#, "hex escape"),
            (r#"{"job":{"whenFull":"NEVER"}}"#, "unrecognized enum value"),
            ("{\"job\":{\n\"kid\":\"a\"}}", "unrecognized field name 'kid'"),
            (r#"{"job":{"payload":"%"}}"#, "invalid base64"),
            (r#"{"job":{}} x"#, "trailing characters at line 1 column 12"),
            ("", "EOF while parsing a value at line 1 column 0"),
            (r#"{"job":{"kind":1e999}}"#, "number out of range at line 1"),
        ] {
            let refusal = read_submit(text).expect_err(text);
            assert!(refusal.message().contains(told), "{refusal}");
        }
        let resize = DESCRIPTORS.get_message_by_name("waterwheel.v1.ResizeRequest").expect("a message");
        for number in ["-1", "1.5", "4294967296", "1e400", "99999999999999999999", "\"NaN\"", "01", "0x1", "true"] {
            let text = format!("{{\"minWorkers\":{number}}}");
            assert!(read(&resize, text.as_bytes(), &mut Vec::new()).is_err(), "{number}");
        }
        assert!(read_submit(r#"{"job":{"kind":"a","labels":{"a_b":"1","aB":"2"}}}"#).is_ok(), "keys of a map");
        let quoted = read_submit(&format!(r#"{{"{}":1}}"#, "k".repeat(1 << 20))).expect_err("unknown");
        assert!(quoted.message().len() < 5_000 && quoted.message().contains("line 1"), "{quoted}");
        let nested = format!("{}{}", "[".repeat(50_000), "]".repeat(50_000));
        assert!(read_submit(&nested).expect_err("too deep").message().contains("recursion limit exceeded"));
    }

    #[test]
    fn only_the_longest_string_may_be_large() {
        let payload = "QUFB".repeat(1 << 20);
        assert!(read_submit(&format!(r#"{{"job":{{"kind":"a","payload":"{payload}"}}}}"#)).is_ok());
        let labels: Vec<_> = (0..20_000).map(|number| format!("\"{number}\":\"\"")).collect();
        let refusal = read_submit(&format!(r#"{{"job":{{"labels":{{{}}}}}}}"#, labels.join(",")));
        assert_eq!(refusal.expect_err("too large").code(), tonic::Code::ResourceExhausted);
        for (text, longest) in [(r#"{"a":"b\"c\\","d":"e"}"#, 6), (r#"{"a"#, 1), (r#""\"#, 1), ("1", 0)] {
            assert_eq!(longest_string(text.as_bytes()), longest, "{text}");
        }
    }
}
