//! Types of values: how they are parsed and displayed.

use std::{ops::RangeInclusive, path::Path, time::Duration};

use super::{
    fault::choose,
    program, redact,
    source::Span,
    syntax::Checked,
    tree::{Data, Node},
};
use crate::model::WITHHELD;

/// Type of a key's value. Bounds are inclusive.
#[derive(Clone, Copy)]
pub(super) enum ValueType {
    Boolean,
    Integer(i64, i64),
    /// A number from 1, or `"cpus"`: one for each CPU.
    Count(i64),
    Number(f64, f64),
    /// Above 0 and at most 1. A share of 0 would refuse everything.
    Share,
    /// A number of bytes.
    Size(u64, u64),
    Duration(Duration, Duration),
    Text(Syntax),
    Texts(Syntax),
    OneOrMore(Syntax),
    /// A file name, relative to the directory of its source.
    Path,
    /// A program and its arguments.
    Command,
    /// A text that is never displayed.
    Secret,
}

/// Syntax of a text.
#[derive(Clone, Copy)]
pub(super) enum Syntax {
    OneOf(&'static [&'static str]),
    /// Name of the syntax with its article, and its check.
    Parsed(&'static str, fn(&str) -> Checked),
}

/// A valid value of a key.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// The displayed value, as TOML with the same meaning.
    pub(super) shown: toml::Value,
    /// The value for the settings: bytes for a size, an array if the key allows several values.
    pub(super) typed: toml::Value,
}

/// The fault of a value.
#[derive(Clone, Debug)]
pub(super) struct Invalid {
    /// The rest of the message, after the name of the key.
    pub(super) what: String,
    /// Help, if the key's example is not enough.
    pub(super) help: Option<String>,
}

impl ValueType {
    /// Checks the value of a node. Returns a fault with its position. Relative paths start in `directory`.
    pub(super) fn read(self, node: &Node, directory: &Path) -> Result<Value, (Invalid, Span)> {
        let value = match (self, &node.data) {
            (Self::OneOrMore(syntax) | Self::Texts(syntax), Data::Array(items)) if self.takes(items) => {
                return texts(items, |text| syntax.read(text));
            }
            (Self::Command, Data::Array(items)) if self.takes(items) => {
                let words = texts(items, |word| program::word(word, directory))?;
                let wrong = words.typed[0].as_str().and_then(|program| program::fault(Path::new(program)));
                return wrong.map_or(Ok(words), |wrong| Err((wrong, items[0].span.clone())));
            }
            (_, data) => self.number(data).unwrap_or_else(|| self.text(node, directory)),
        };
        value.map_err(|invalid| (invalid, node.span.clone()))
    }

    /// The type with its article.
    pub(super) fn expected(self) -> &'static str {
        match self {
            Self::Boolean => "a boolean",
            Self::Integer(..) => "a whole number",
            Self::Count(_) => "a whole number or \"cpus\"",
            Self::Number(..) | Self::Share => "a number",
            Self::Size(..) => "a size",
            Self::Duration(..) => "a duration",
            Self::Text(_) | Self::Path | Self::Secret => "a string",
            Self::Texts(_) | Self::Command => "an array of strings",
            Self::OneOrMore(_) => "a string or an array of strings",
        }
    }

    fn takes(self, items: &[Node]) -> bool {
        matches!(self, Self::Texts(_)) || !items.is_empty()
    }

    /// A number, or a text that represents one; `None` for other types and values.
    fn number(self, data: &Data) -> Option<Result<Value, Invalid>> {
        let integer = toml::Value::Integer;
        Some(match (self, data) {
            (Self::Boolean, Data::Boolean(boolean)) => Ok(toml::Value::Boolean(*boolean).into()),
            (Self::Integer(low, high), Data::Integer(value)) => within(*value, low..=high, integer),
            (Self::Count(high), Data::Integer(value)) => within(*value, 1..=high, integer),
            (Self::Count(_), Data::String(word)) if word == "cpus" => Ok(word.clone().into()),
            (Self::Number(low, high), Data::Float(value)) => within(*value, low..=high, toml::Value::Float),
            (Self::Share, Data::Float(value)) if *value > 0.0 && *value <= 1.0 => Ok(toml::Value::Float(*value).into()),
            (Self::Share, Data::Float(value)) => Err(Invalid::range(&value.to_string(), "0 (excluded)", "1")),
            // Such numbers are small; integers beyond 2^53 are out of range anyway.
            (Self::Number(..) | Self::Share, Data::Integer(value)) => return self.number(&Data::Float(*value as f64)),
            (Self::Size(..), Data::Integer(value @ 1..1024)) => {
                let help = format!("write the unit, as in `\"{value}MiB\"`, or `\"{value}B\"`");
                Err(Invalid::text(&value.to_string(), "a size with a unit", Some(help)))
            }
            (Self::Size(low, high), Data::Integer(value)) => within(u64::try_from(*value).ok()?, low..=high, size),
            (Self::Size(low, high), Data::String(text)) => within(bytes(text)?, low..=high, size),
            (Self::Duration(low, high), Data::String(text)) => {
                within(humantime::parse_duration(text).ok()?, low..=high, duration)
            }
            _ => return None,
        })
    }

    /// Checks texts, and reports every value that no type accepts.
    fn text(self, node: &Node, directory: &Path) -> Result<Value, Invalid> {
        let (text, is_bare) = match (&node.data, &node.bare) {
            (Data::String(text), bare) => (text.clone(), bare.is_some()),
            (_, Some(bare)) => (bare.clone(), true),
            // A negative number of bytes: the unit is not the fault.
            (Data::Integer(value @ ..0), None) if matches!(self, Self::Size(..)) => (value.to_string(), false),
            (data, None) => return Err(Invalid::kind(self.expected(), data.type_name())),
        };
        match self {
            Self::Text(syntax) => syntax.read(&text).map(Value::from),
            Self::OneOrMore(syntax) => {
                let text = syntax.read(&text)?;
                Ok(Value { typed: toml::Value::Array(vec![text.clone().into()]), shown: text.into() })
            }
            Self::Path if !text.is_empty() => {
                Ok(directory.join(unmasked(&text)?).to_string_lossy().into_owned().into())
            }
            Self::Secret => Ok(Value { typed: unmasked(&text)?.into(), shown: WITHHELD.into() }),
            Self::Texts(_) | Self::Command if !is_bare => Err(Invalid::kind(self.expected(), node.data.type_name())),
            _ => Err(Invalid::text(&text, self.expected(), None)),
        }
    }
}

impl Syntax {
    pub(super) fn read(self, text: &str) -> Result<String, Invalid> {
        let text = unmasked(text)?;
        match self {
            Self::Parsed(expected, read) => read(&text).map_err(|help| Invalid::text(&text, expected, help)),
            Self::OneOf(names) if names.contains(&&*text) => Ok(text),
            Self::OneOf(names) => Err(Invalid::text(&text, "one of its values", Some(choose(&text, names)))),
        }
    }
}

impl Invalid {
    /// The value has another type than expected.
    fn kind(expected: &str, found: &str) -> Self {
        Self { what: format!(" must be {expected}, not {found}"), help: None }
    }

    /// The text has another syntax than expected.
    pub(super) fn text(text: &str, expected: &str, help: Option<String>) -> Self {
        Self { what: format!(": `{}` is not {expected}", redact::quote(text)), help }
    }

    /// The value is outside of its bounds.
    fn range(value: &str, low: &str, high: &str) -> Self {
        let help = Some(format!("give a value from {low} to {high}"));
        Self { what: format!(" is {value}, outside of {low} to {high}"), help }
    }
}

impl<T: Into<toml::Value>> From<T> for Value {
    fn from(value: T) -> Self {
        let shown = value.into();
        Self { typed: shown.clone(), shown }
    }
}

/// A value for a message: without quotes.
pub(super) fn plain(value: &Value) -> String {
    match &value.shown {
        toml::Value::String(string) => string.clone(),
        other => other.to_string(),
    }
}

/// A number of bytes.
pub(super) fn size(bytes: u64) -> Value {
    let fits = |(_, scale): &&(&str, u64)| bytes.is_multiple_of(*scale) && bytes >= *scale;
    let (unit, scale) = UNITS.iter().find(fits).unwrap_or(&("B", 1));
    let typed = toml::Value::Integer(i64::try_from(bytes).unwrap_or(i64::MAX));
    Value { shown: format!("{}{unit}", bytes / scale).into(), typed }
}

const UNITS: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[digits.len()..];
    let (_, scale) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    digits.trim_end().parse::<u64>().ok()?.checked_mul(*scale)
}

pub(super) fn duration(duration: Duration) -> Value {
    let secs = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    // In serde's format of a duration.
    let fields = [("secs", secs), ("nanos", duration.subsec_nanos().into())];
    let fields = fields.map(|(name, value)| (name.to_owned(), toml::Value::Integer(value)));
    let typed = toml::Value::Table(fields.into_iter().collect());
    Value { shown: humantime::format_duration(duration).to_string().into(), typed }
}

fn within<T: PartialOrd + Copy, V: Into<Value>>(
    value: T,
    range: RangeInclusive<T>,
    show: impl Fn(T) -> V,
) -> Result<Value, Invalid> {
    if range.contains(&value) {
        return Ok(show(value).into());
    }
    let [value, low, high] = [value, *range.start(), *range.end()].map(|value| plain(&show(value).into()));
    Err(Invalid::range(&value, &low, &high))
}

fn texts(items: &[Node], read: impl Fn(&str) -> Result<String, Invalid>) -> Result<Value, (Invalid, Span)> {
    let text = |item: &Node| match &item.data {
        Data::String(text) => read(text).map(toml::Value::String),
        other => Err(Invalid::kind("an array of strings", other.type_name())),
    };
    let items = items.iter().map(|item| text(item).map_err(|invalid| (invalid, item.span.clone())));
    items.collect::<Result<Vec<_>, _>>().map(|items| toml::Value::Array(items).into())
}

/// A text that a program can receive, and that is not the placeholder of a secret.
pub(super) fn unmasked(text: &str) -> Result<String, Invalid> {
    if text.contains('\0') {
        return Err(Invalid::kind("a string without NUL", "one with it"));
    }
    if text.contains(WITHHELD) {
        return Err(Invalid::kind("the value itself", "the text that `config show` prints instead of it"));
    }
    Ok(text.to_owned())
}
