//! What of a configuration is not shown, as faults end in logs and `config show` in tickets: values below a key `env`,
//! and the userinfo of URLs.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::source::{Medium, Text};
use crate::model::{WITHHELD, userinfo, without_userinfo};

/// Longest value that a message quotes, in characters.
const MAX_VALUE: usize = 256;

/// The lines of a text that some places are in, without its secrets.
pub(super) struct Excerpt {
    pub(super) text: String,
    /// Where the places are in it.
    pub(super) places: Vec<Range<usize>>,
}

/// A value as a message quotes it: in one line of bounded length.
pub(super) fn value(text: &str) -> String {
    let shown = without_userinfo(text).replace(char::is_control, "?");
    match shown.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

/// A value as `config show` has it.
pub(super) fn from_value(value: toml::Value) -> toml::Value {
    match value {
        toml::Value::String(text) => toml::Value::String(without_userinfo(&text).into_owned()),
        toml::Value::Array(items) => toml::Value::Array(items.into_iter().map(from_value).collect()),
        other => other,
    }
}

/// Where a text holds secrets, in order.
pub(super) fn secrets(source: &Text) -> Vec<Range<usize>> {
    let Text { medium, text, .. } = source;
    let start = match medium {
        Medium::File(_) => 0,
        Medium::Environment(name) => name.len() + 1,
        Medium::Flag(flag @ "--set") => text.find('=').map_or(flag.len(), |at| at + 1),
        Medium::Flag(flag) => flag.len() + 1,
    };
    let key = text[..start].to_lowercase().replace("pass_env", "");
    if key.split(|c: char| !c.is_alphanumeric()).any(is_env) {
        return std::iter::once(start..text.len()).collect();
    }
    let value = &text[start..];
    let mut found = Vec::new();
    let parsed = match medium {
        Medium::File(_) => DeTable::parse(text).map(|table| below_table(table.get_ref(), false, &mut found)),
        _ => DeValue::parse(value).map(|value| below(value.get_ref(), value.span(), false, &mut found)),
    };
    if parsed.is_err() {
        unparsed(value, &mut found);
    }
    found.extend(userinfo(value));
    found.sort_by_key(|range| range.start);
    found.into_iter().map(|range| range.start + start..range.end + start).collect()
}

/// The lines of `text` from the first to the last of `places`.
pub(super) fn excerpt(text: &str, places: &[Range<usize>], secrets: &[Range<usize>]) -> Excerpt {
    let first = places.iter().map(|place| place.start).min().unwrap_or_default();
    let last = places.iter().map(|place| place.end).max().unwrap_or_default();
    let start = text[..first].rfind('\n').map_or(0, |at| at + 1);
    let end = text[last..].find('\n').map_or(text.len(), |at| last + at + 1);
    let mut shown = String::new();
    // For each stretch that is shown as it is: where it begins in the text, and where in the excerpt.
    let mut stretches = vec![(start, 0)];
    let mut at = start;
    for secret in secrets.iter().filter(|secret| secret.start < end && secret.end > start) {
        if secret.start >= at {
            shown.push_str(&text[at..secret.start]);
            shown.push_str(WITHHELD);
        }
        let cut = at.max(secret.start)..secret.end.clamp(at, end);
        // What follows keeps the number of its line.
        shown.extend(text[cut.clone()].matches('\n'));
        at = cut.end;
        stretches.push((at, shown.len()));
    }
    shown.push_str(&text[at..end]);
    // A place within a secret is one within what stands for it.
    let place = |at: usize| {
        let next = stretches.partition_point(|(start, _)| *start <= at);
        let (start, begin) = stretches[next.saturating_sub(1)];
        let limit = stretches.get(next).map_or(shown.len(), |(_, begin)| *begin);
        (begin + at - start).min(limit)
    };
    let places = places.iter().map(|range| place(range.start)..place(range.end).max(place(range.start))).collect();
    Excerpt { text: shown, places }
}

/// Whether a key is `env`, or a slip for it.
fn is_env(key: &str) -> bool {
    let key = key.to_lowercase();
    key == "environment" || strsim::osa_distance(&key, "env") <= 1
}

fn below_table(table: &DeTable<'_>, is_secret: bool, found: &mut Vec<Range<usize>>) {
    for (key, value) in table {
        below(value.get_ref(), value.span(), is_secret || is_env(key.get_ref()), found);
    }
}

fn below(value: &DeValue<'_>, range: Range<usize>, is_secret: bool, found: &mut Vec<Range<usize>>) {
    match value {
        DeValue::Table(table) => below_table(table, is_secret, found),
        DeValue::Array(items) => {
            items.iter().for_each(|item| below(item.get_ref(), item.span(), is_secret, found));
        }
        _ if is_secret => found.push(range),
        _ => {}
    }
}

/// What may be secret in a text that is no TOML: all from a key `env` up to the next header of a table.
fn unparsed(text: &str, found: &mut Vec<Range<usize>>) {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut start, mut at) = (0, 0);
    for word in text.split(|c: char| !is_word(c)) {
        let end = start + word.len();
        start = end + text[end..].chars().next().map_or(0, char::len_utf8);
        if end >= at && is_env(word) {
            let header = text[end..].match_indices("\n[").map(|(at, _)| end + at);
            let header = header.into_iter().find(|at| text[at + 2..].trim_start_matches('[').starts_with(is_word));
            at = header.unwrap_or(text.len());
            found.push(end..at);
        }
    }
}
