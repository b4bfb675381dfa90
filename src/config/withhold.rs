//! What of a configuration is shown to nobody, as faults end in logs and `config show` in tickets: the values of
//! programs' variables, who a URL logs in as, and the text of a key that was given in place of its path.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::overlay;
use super::source::{Medium, Text};
use crate::model::{WITHHELD, userinfo, without_userinfo};

/// How the text of a key begins, where its path was meant.
const KEY: &str = "-----BEGIN";

/// A text as it may be shown, and where its places are in it.
pub(super) struct Shown {
    pub(super) text: String,
    cuts: Vec<Range<usize>>,
}

/// The words of a fault without what is withheld.
pub(super) fn from_words(words: &str) -> String {
    let mut words = without_userinfo(words).into_owned();
    if let Some(at) = words.find(KEY) {
        words.truncate(at);
        words.push_str("…: the text of a key or a certificate, which is not shown; give the path of its file");
    }
    words
}

/// A value as it is shown.
pub(super) fn from_value(value: toml::Value) -> toml::Value {
    match value {
        toml::Value::String(text) => toml::Value::String(without_userinfo(&text).into_owned()),
        toml::Value::Array(items) => toml::Value::Array(items.into_iter().map(from_value).collect()),
        other => other,
    }
}

/// A source without what is withheld; none where it holds the text of a key, or variables in what is no TOML: where they
/// begin and end cannot be known.
pub(super) fn from_source(source: &Text) -> Option<Shown> {
    let Text { medium, text } = source;
    if text.contains(KEY) || (matches!(medium, Medium::File(_)) && may_have_variables(text)) {
        return None;
    }
    let mut cuts = userinfo(text);
    variables(medium, text, &mut cuts);
    cuts.retain(|cut| !cut.is_empty());
    cuts.sort_by_key(|cut| cut.start);
    cuts.dedup_by(|next, before| {
        let overlap = next.start < before.end;
        before.end = if overlap { before.end.max(next.end) } else { before.end };
        overlap
    });
    let (mut shown, mut end) = (String::new(), 0);
    for cut in &cuts {
        shown.push_str(&text[end..cut.start]);
        shown.push_str(WITHHELD);
        end = cut.end;
    }
    shown.push_str(&text[end..]);
    Some(Shown { text: shown, cuts })
}

impl Shown {
    /// Where a range of the source is in what is shown of it.
    pub(super) fn range(&self, range: &Range<usize>) -> Range<usize> {
        let (start, _) = self.place(range.start);
        let (first, last) = self.place(range.end);
        // Behind what is cut the range ends with the words in its place.
        start..if range.is_empty() { first } else { last }
    }

    /// The first and the last place that may stand for one of the source.
    fn place(&self, place: usize) -> (usize, usize) {
        let (mut gone, mut added) = (0, 0);
        for cut in &self.cuts {
            if place <= cut.start {
                break;
            }
            if place < cut.end {
                let start = cut.start - gone + added;
                return (start, start + WITHHELD.len());
            }
            gone += cut.len();
            added += WITHHELD.len();
        }
        (place - gone + added, place - gone + added)
    }
}

/// Whether the values under a path are those of a program's variables, or were meant to be: a slip in the key must not
/// print them. The names of kinds and the like may be anything.
pub(super) fn is_withheld<S: AsRef<str>>(path: &[S]) -> bool {
    let is_meant = |(index, key): (usize, &S)| is_env(key.as_ref()) && (index != 1 || is_just_env(key.as_ref()));
    path.iter().enumerate().any(is_meant)
}

/// Whether a collector was given as somebody at a host, even without the scheme that makes it a URL.
fn is_login(path: &[&str], value: &str) -> bool {
    path.last().is_some_and(|key| key.trim().eq_ignore_ascii_case("otlp")) && value.contains('@')
}

/// A value as a message about its key may repeat it; none where it may not.
pub(super) fn repeated(key: &str, value: String) -> Option<String> {
    let path: Vec<_> = key.split('.').collect();
    if is_withheld(&path) {
        return None;
    }
    match value.rsplit_once('@') {
        Some((login, host)) if is_login(&path, &value) => {
            let scheme = login.find("://").map_or("", |at| &login[..at + 3]);
            Some(format!("{scheme}{WITHHELD}@{host}"))
        }
        _ => Some(value),
    }
}

/// Whether somebody left the name of the kind out.
fn is_just_env(key: &str) -> bool {
    key.trim_matches([' ', '\t', '"', '\'']).eq_ignore_ascii_case("env")
}

/// Whether a text that is no TOML may hold variables; an escape may spell anything.
fn may_have_variables(text: &str) -> bool {
    mentions_variables(text) && DeTable::parse(text).is_err()
}

fn mentions_variables(text: &str) -> bool {
    text.to_ascii_lowercase().contains("env") || text.contains("\\u") || text.contains("\\U")
}

fn is_env(key: &str) -> bool {
    let key = key.trim_matches([' ', '\t', '"', '\'']).to_ascii_lowercase().replace('-', "_");
    key != "pass_env" && key.contains("env")
}

fn variables(medium: &Medium, text: &str, cuts: &mut Vec<Range<usize>>) {
    let Some((path, offset)) = overlay::set_by(medium, text) else {
        if let Ok(table) = DeTable::parse(text) {
            within_table(table.get_ref(), &mut Vec::new(), 0, cuts);
        } else {
            logins(text, cuts);
        }
        return;
    };
    let mut path: Vec<&str> = path;
    let value = &text[offset..];
    match DeValue::parse(value) {
        _ if is_withheld(&path) || is_login(&path, value) => cuts.push(offset..text.len()),
        Ok(value) => within_value(value.get_ref(), &mut path, offset, cuts),
        Err(_) if mentions_variables(value) || (value.contains("otlp") && value.contains('@')) => {
            cuts.push(offset..text.len())
        }
        Err(_) => {}
    }
}

fn within_table<'t>(table: &'t DeTable<'_>, path: &mut Vec<&'t str>, offset: usize, cuts: &mut Vec<Range<usize>>) {
    for (key, value) in table {
        path.push(key.get_ref());
        match value.get_ref() {
            DeValue::Table(_) | DeValue::Array(_) => within_value(value.get_ref(), path, offset, cuts),
            other => {
                if is_withheld(path) || other.as_str().is_some_and(|text| is_login(path, text)) {
                    cuts.push(value.span().start + offset..value.span().end + offset);
                }
            }
        }
        path.pop();
    }
}

fn within_value<'t>(value: &'t DeValue<'_>, path: &mut Vec<&'t str>, offset: usize, cuts: &mut Vec<Range<usize>>) {
    match value {
        DeValue::Table(table) => within_table(table, path, offset, cuts),
        DeValue::Array(items) => {
            for item in items.iter() {
                match item.get_ref() {
                    DeValue::Table(_) | DeValue::Array(_) => within_value(item.get_ref(), path, offset, cuts),
                    _ if is_withheld(path) => cuts.push(item.span().start + offset..item.span().end + offset),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// Who logs in to a collector, in a text that is not TOML.
fn logins(text: &str, cuts: &mut Vec<Range<usize>>) {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let shown = line.trim_end();
        if let Some((key, value)) = shown.split_once('=') {
            let path: Vec<_> = key.split('.').collect();
            if is_login(&path, value) {
                cuts.push(start + key.len() + 1..start + shown.len());
            }
        }
        start += line.len();
    }
}
