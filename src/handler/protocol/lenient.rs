//! Reads what a worker means, where it says it badly. A mistake in one field is not a reason to lose the job. A line
//! that cannot be read fails the job that it names, and not the worker.

use std::fmt::Display;

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

use super::{Failed, FromWorker, shown};

/// A text; empty if it is null. Any other value is shown as JSON.
pub(super) fn text<'de, D: Deserializer<'de>>(value: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(value)? {
        Value::String(text) => text,
        Value::Null => String::new(),
        other => other.to_string(),
    })
}

/// A number, or the text of one, as the JSON of protobuf writes 64 bits; `None` for anything else.
pub(super) fn number<'de, D: Deserializer<'de>>(value: D) -> Result<Option<f64>, D::Error> {
    let value = Value::deserialize(value)?;
    let number: Option<f64> = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    Ok(number.filter(|number| number.is_finite()))
}

/// A truth value; `None` for anything else.
pub(super) fn flag<'de, D: Deserializer<'de>>(value: D) -> Result<Option<bool>, D::Error> {
    Value::deserialize(value).map(|value| value.as_bool())
}

/// A list; empty if it is null.
pub(super) fn list<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    Option::deserialize(value).map(Option::unwrap_or_default)
}

/// A number of bytes; 0 if it is null. Nothing else can be ignored here, because the bytes that follow are not a line.
pub(super) fn count<'de, D: Deserializer<'de>>(value: D) -> Result<u64, D::Error> {
    match Value::deserialize(value)? {
        Value::Null => Ok(0),
        value => value.as_u64().ok_or_else(|| D::Error::custom(format!("`bytes` is {value}"))),
    }
}

/// The message of a line that is not sound, and the number of bytes that follow; `None` unless it names a job. Failures
/// and progress are rebuilt from what is legible. Anything else becomes [`FromWorker::Unreadable`], because half a
/// result must not pass for one.
pub(super) fn salvage(line: &[u8], fault: impl Display) -> Option<(FromWorker, u64)> {
    let line = &*String::from_utf8_lossy(line);
    let id = digits(field(line, "id")?)?.to_owned();
    let bytes = field(line, "bytes").and_then(|count| count.split([',', '}']).next()?.trim().parse().ok());
    let message = if field(line, "progress").is_some() {
        FromWorker::Progress { id, fraction: None, message: text_of(line, "message") }
    } else if field(line, "failed").is_some() {
        let value = field(line, "retryable").unwrap_or_default();
        let retryable = [true, false].into_iter().find(|flag| value.starts_with(&flag.to_string()));
        let (code, message) = (text_of(line, "code"), text_of(line, "message"));
        FromWorker::Failed(Failed { id, code, message, retryable, ..Failed::default() })
    } else {
        let what = format!("the worker sent a message that cannot be read ({fault}): {}", shown(line.as_bytes()));
        FromWorker::Unreadable { id, what, is_answer: field(line, "output").is_none() }
    };
    Some((message, bytes.unwrap_or(0)))
}

/// What follows the name of a field and its colon. A text that equals the name has no colon behind it, and inside of a
/// longer text the quotes of a name are escaped.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let name = format!("\"{name}\"");
    let mut found = line.match_indices(&name).map(|(at, _)| line[at + name.len()..].trim_start());
    found.find_map(|rest| rest.strip_prefix(':')).map(str::trim_start)
}

/// The text of a field. Half a character and unknown escapes are left as they were written.
fn text_of(line: &str, name: &str) -> String {
    let Some(text) = field(line, name).and_then(|value| value.strip_prefix('"')) else { return String::new() };
    let mut is_escaped = false;
    let end = text.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    let text = &text[..end.unwrap_or(text.len())];
    serde_json::from_str(&format!("\"{text}\"")).unwrap_or_else(|_| text.to_owned())
}

/// The digits at the start of a value, with or without quotes.
fn digits(value: &str) -> Option<&str> {
    let value = value.trim_start_matches('"');
    let end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    (end > 0).then(|| &value[..end])
}
