//! Redacts secrets, because faults end up in logs, and the output of `config show` in tickets. Secret are the values
//! below a key `env`, those of a key that ends in `url`, and the userinfo of URLs elsewhere.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::source::{Medium, Text};
use crate::model::{WITHHELD, userinfo, without_userinfo};

/// Longest value that a message quotes, in characters.
const MAX_VALUE: usize = 256;

/// The lines of a text around some positions, with secrets replaced.
pub(super) struct Excerpt {
    pub(super) text: String,
    /// The positions, as ranges of `text`.
    pub(super) places: Vec<Range<usize>>,
}

/// Formats a value for a message: without userinfo, in one line, and cut after [`MAX_VALUE`] characters.
pub(super) fn quote(text: &str) -> String {
    let shown = without_userinfo(text).replace(char::is_control, "?");
    match shown.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

/// Replaces the userinfo of URLs in a value for `config show`. Secret values arrive withheld.
pub(super) fn redacted(value: toml::Value) -> toml::Value {
    match value {
        toml::Value::String(text) => toml::Value::String(without_userinfo(&text).into_owned()),
        toml::Value::Array(items) => toml::Value::Array(items.into_iter().map(redacted).collect()),
        other => other,
    }
}

/// Byte ranges of the secrets in a text, in order.
pub(super) fn secret_ranges(source: &Text) -> Vec<Range<usize>> {
    let Text { medium, text, .. } = source;
    let start = match medium {
        Medium::File(_) => 0,
        Medium::Environment(name) => name.len() + 1,
        Medium::Flag(flag @ "--set") => text.find('=').map_or(flag.len(), |at| at + 1),
        Medium::Flag(flag) => flag.len() + 1,
    };
    // `pass_env` has names of variables, and not their values.
    let key = text[..start].to_lowercase().replace("pass_env", "");
    if key.split(|c: char| !c.is_alphanumeric()).any(is_secret_key) {
        return std::iter::once(start..text.len()).collect();
    }
    let value = &text[start..];
    let mut found = Vec::new();
    let parsed = match medium {
        Medium::File(_) => DeTable::parse(text).map(|table| DeValue::Table(table.into_inner())),
        _ => DeValue::parse(value).map(Spanned::into_inner),
    };
    match parsed {
        Ok(parsed) => secrets_of_value(&parsed, 0..value.len(), false, &mut found),
        Err(_) if matches!(medium, Medium::File(_)) && is_foreign(text) => found.push(0..text.len()),
        Err(_) => secrets_of_invalid_toml(value, &mut found),
    }
    // If a quotation mark ends a secret too early, the parser may take the rest of the secret for a comment.
    let comments = found.iter().filter_map(|it| value[it.end..].lines().next()?.find('#').map(|at| it.end + at));
    let comments = comments.map(|at| at..value[at..].find('\n').map_or(value.len(), |length| at + length));
    found.extend(comments.collect::<Vec<_>>());
    found.extend(userinfo(value));
    found.sort_by_key(|range| range.start);
    found.into_iter().map(|range| range.start + start..range.end + start).collect()
}

/// The lines of `text` from the first to the last of `places`. `(withheld)` replaces each of `secrets`, which are
/// sorted.
pub(super) fn excerpt(text: &str, places: &[Range<usize>], secrets: &[Range<usize>]) -> Excerpt {
    let first = places.iter().map(|place| place.start).min().unwrap_or_default();
    let last = places.iter().map(|place| place.end).max().unwrap_or_default();
    let start = text[..first].rfind('\n').map_or(0, |at| at + 1);
    let end = text[last..].find('\n').map_or(text.len(), |at| last + at + 1);
    let mut shown = String::new();
    // For each unchanged part: its start in the text, and its start in the excerpt.
    let mut unchanged = vec![(start, 0)];
    let mut at = start;
    for secret in secrets.iter().filter(|secret| secret.start < end && secret.end > start) {
        if secret.start >= at {
            shown.push_str(&text[at..secret.start]);
            shown.push_str(WITHHELD);
        }
        let cut = at.max(secret.start)..secret.end.clamp(at, end);
        // Keep the line breaks, so that later lines keep their numbers.
        shown.extend(text[cut.clone()].matches('\n'));
        at = cut.end;
        unchanged.push((at, shown.len()));
    }
    shown.push_str(&text[at..end]);
    // A position within a secret becomes a position in its replacement.
    let place = |at: usize| {
        let next = unchanged.partition_point(|(start, _)| *start <= at);
        let (source_start, excerpt_start) = unchanged[next.saturating_sub(1)];
        let limit = unchanged.get(next).map_or(shown.len(), |(_, excerpt_start)| *excerpt_start);
        (excerpt_start + at - source_start).min(limit)
    };
    let places = places.iter().map(|range| place(range.start)..place(range.end).max(place(range.start))).collect();
    Excerpt { text: shown, places }
}

/// Whether a key is `env`, `url` or `listen_url`, or a misspelling of one.
fn is_secret_key(key: &str) -> bool {
    let key = key.to_lowercase();
    let is_near = |name| strsim::osa_distance(&key, name) <= 1;
    key == "environment" || ["env", "url"].into_iter().any(is_near) || key.ends_with("url")
}

/// Adds the ranges of all values that are below a secret key, or are secret themselves.
fn secrets_of_value(value: &DeValue<'_>, range: Range<usize>, is_secret: bool, found: &mut Vec<Range<usize>>) {
    match value {
        DeValue::Table(table) => {
            for (key, value) in table {
                let is_secret = is_secret || is_secret_key(key.get_ref());
                secrets_of_value(value.get_ref(), value.span(), is_secret, found);
            }
        }
        DeValue::Array(items) => {
            items.iter().for_each(|item| secrets_of_value(item.get_ref(), item.span(), is_secret, found));
        }
        _ if is_secret => found.push(range),
        _ => {}
    }
}

/// Whether invalid TOML is not a configuration at all, such as a private key. It is true for an empty text as well.
pub(super) fn is_foreign(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("-----")) || DeTable::parse_recoverable(text).0.get_ref().is_empty()
}

/// Possible secrets in a text that is not valid TOML: everything from a key `env` to the next table header, or to the
/// end.
fn secrets_of_invalid_toml(text: &str, found: &mut Vec<Range<usize>>) {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut start, mut at) = (0, 0);
    for word in text.split(|c: char| !is_word(c)) {
        let end = start + word.len();
        start = end + text[end..].chars().next().map_or(0, char::len_utf8);
        if end >= at && is_secret_key(word) {
            let header = text[end..].match_indices("\n[").map(|(at, _)| end + at);
            let header = header.into_iter().find(|at| text[at + 2..].trim_start_matches('[').starts_with(is_word));
            at = header.unwrap_or(text.len());
            found.push(end..at);
        }
    }
}
