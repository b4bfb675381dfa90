//! What of a configuration is shown, as faults end in logs and `config show` in tickets. A value is shown where a reader
//! of the schema took it as one that may be: what stands under keys that no reader knows, the values of programs'
//! variables and what has not the form of the path that was asked for are withheld, and so are comments, and who a URL
//! logs in as. What is no TOML is read by no reader; of it only single lines are shown, see [`broken`].

mod broken;
mod excerpt;

use std::collections::BTreeSet;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::overlay;
use super::source::{Span, Text};
pub(super) use crate::model::shown::{is_name, is_path, is_value, name, value};
use crate::model::{WITHHELD, userinfo, without_userinfo};
pub(super) use excerpt::Shown;

/// Where the values begin that may be shown: the number of their text, and the place in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Open(BTreeSet<(usize, usize)>);

impl Open {
    /// Notes a value that may be shown.
    pub(super) fn add(&mut self, span: &Span) {
        self.0.insert((span.text, span.range.start));
    }

    /// Whether any value may be shown.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The words of a fault without what is withheld.
pub(super) fn from_words(words: &str) -> String {
    without_userinfo(words).into_owned()
}

/// A value as it is shown.
pub(super) fn from_value(value: toml::Value) -> toml::Value {
    match value {
        toml::Value::String(text) => toml::Value::String(without_userinfo(&text).into_owned()),
        toml::Value::Array(items) => toml::Value::Array(items.into_iter().map(from_value).collect()),
        other => other,
    }
}

/// A source as it is shown. `number` is that of its text.
pub(super) fn from_source<'t>(source: &'t Text, number: usize, open: &Open) -> Shown<'t> {
    #[cfg(test)]
    PREPARED.set(PREPARED.get() + 1);
    let Text { medium, text, .. } = source;
    let is_open = |start: usize| open.0.contains(&(number, start));
    let mut shown = Shown::of(text);
    let mut end = 0;
    let values = match overlay::set_by(medium, text) {
        None => match DeTable::parse(text) {
            Ok(table) => sorted(|values| within_table(table.get_ref(), 0, values)),
            Err(_) => return broken::shown(text),
        },
        Some(set) => {
            for key in set.keys.into_iter().filter(|key| !is_name(&text[key.clone()])) {
                shown.cut(key, WITHHELD);
            }
            end = set.value;
            let value = DeValue::parse(&text[end..]);
            sorted(|values| match &value {
                Ok(value) => within_value(value.get_ref(), end..text.len(), end, values),
                Err(_) => values.push(end..text.len()),
            })
        }
    };
    for value in values {
        names(text, end..value.start, &mut shown);
        end = value.end;
        if is_open(value.start) {
            let logins = userinfo(&text[value.clone()]);
            logins.into_iter().for_each(|cut| shown.cut(cut.start + value.start..cut.end + value.start, WITHHELD));
        } else {
            shown.cut(value, WITHHELD);
        }
    }
    names(text, end..text.len(), &mut shown);
    shown.whole()
}

#[cfg(test)]
thread_local! {
    /// How many sources were prepared for being shown.
    pub(super) static PREPARED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    /// How many bytes of them were given to be drawn.
    pub(super) static EXCERPTED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn sorted(find: impl FnOnce(&mut Vec<Range<usize>>)) -> Vec<Range<usize>> {
    let mut values = Vec::new();
    find(&mut values);
    values.sort_by_key(|value| value.start);
    values
}

/// The places of all values that are neither a table nor an array.
fn within_table(table: &DeTable<'_>, offset: usize, values: &mut Vec<Range<usize>>) {
    for value in table.values() {
        let range = value.span();
        within_value(value.get_ref(), range.start + offset..range.end + offset, offset, values);
    }
}

fn within_value(value: &DeValue<'_>, range: Range<usize>, offset: usize, values: &mut Vec<Range<usize>>) {
    match value {
        DeValue::Table(table) => within_table(table, offset, values),
        DeValue::Array(items) => {
            for item in items.iter() {
                let range = item.span();
                within_value(item.get_ref(), range.start + offset..range.end + offset, offset, values);
            }
        }
        _ => values.push(range),
    }
}

/// The name of a variable as it may be repeated.
pub(super) fn name_of_variable(text: &str) -> &str {
    if text.split("__").all(is_name) { text } else { WITHHELD }
}

/// Cuts out of the text between two values the comments, and the keys that are no names.
fn names(text: &str, range: Range<usize>, shown: &mut Shown<'_>) {
    let structure = |c: char| c.is_whitespace() || matches!(c, '.' | '=' | ',' | '[' | ']' | '{' | '}');
    let mut at = range.start;
    while let Some(first) = text[at..range.end].chars().next() {
        let rest = &text[at..range.end];
        let (length, is_shown) = match first {
            '#' => (rest.find('\n').unwrap_or(rest.len()), false),
            '"' | '\'' => {
                let length = quoted(rest, first);
                (length, is_name(rest[1..length].trim_end_matches(first)))
            }
            _ if structure(first) => (first.len_utf8(), true),
            _ => {
                let ends = |c: char| structure(c) || matches!(c, '#' | '"' | '\'');
                let length = rest.find(ends).unwrap_or(rest.len());
                (length, is_name(&rest[..length]))
            }
        };
        if !is_shown {
            shown.cut(at..at + length, if first == '#' { "" } else { WITHHELD });
        }
        at += length;
    }
}

/// How long the quoted key is with which a text begins.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let closes = |(_, c): &(usize, char)| {
        let closes = *c == quote && !escaped;
        escaped = *c == '\\' && quote == '"' && !escaped;
        closes
    };
    text.char_indices().skip(1).find(closes).map_or(text.len(), |(at, _)| at + 1)
}
