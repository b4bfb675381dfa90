//! Types that a value can be read as: one table of what each takes, how it parses and how it is shown.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::fault::Fault;
use super::problem::{Problem, WrittenProblem};
use super::source::Span;
use super::tree::{Data, Node};
use super::withhold::value;
use crate::model::WITHHELD;

/// A type that a key can take.
pub(super) trait Field: Sized {
    /// What the key takes, with its article.
    const EXPECTED: &'static str;
    /// A value that would do, as TOML.
    const EXAMPLE: &'static str;

    /// Reads the value of `key`, or says why it cannot be read.
    fn read(node: &Node, key: &str) -> Result<Self, Fault>;

    /// The value as TOML that reads as the same value.
    fn show(&self) -> toml::Value;
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Size(pub(super) u64);

/// A number, or one per CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Count {
    Cpus,
    Exactly(i64),
}

/// Strings with their places.
#[derive(Clone, Debug)]
pub(super) struct Words(pub(super) Vec<(String, Span)>);

impl Words {
    pub(super) fn into_strings(self) -> Vec<String> {
        self.0.into_iter().map(|(word, _)| word).collect()
    }
}

/// Accepts every value of the type.
pub(super) fn any<T>(_key: &str, _value: &T) -> Result<(), Problem> {
    Ok(())
}

/// Accepts values in the range, bounds included.
pub(super) fn within<T: Field + PartialOrd>(range: RangeInclusive<T>) -> impl Fn(&str, &T) -> Result<(), Problem> {
    move |key, value| {
        if range.contains(value) {
            return Ok(());
        }
        Err(Problem::OutOfRange {
            key: key.to_owned(),
            value: plain(value),
            low: plain(range.start()),
            high: plain(range.end()),
        })
    }
}

/// Accepts every string but the empty one.
pub(super) fn filled<S: AsRef<str>>(key: &str, value: &S) -> Result<(), Problem> {
    let key = key.to_owned();
    let example = String::EXAMPLE;
    (!value.as_ref().is_empty()).then_some(()).ok_or(Problem::Empty { key, example })
}

/// The fault of a value that is no `T`.
pub(super) fn misfit<T: Field>(node: &Node, key: &str) -> Fault {
    let key = key.to_owned();
    let (expected, example) = (T::EXPECTED, T::EXAMPLE);
    let text = match (&node.bare, &node.data) {
        (Some(bare), _) => Some(bare.clone()),
        (None, Data::String(string)) => Some(string.clone()),
        // Where a number may stand, the sign is what does not fit.
        (None, Data::Integer(integer)) if *integer < 0 => Some(integer.to_string()),
        (None, _) => None,
    };
    let problem = match text {
        Some(given) => Problem::Malformed { key, expected, value: value(&given), example },
        None => Problem::WrongType { key, expected, found: node.data.type_name(), example },
    };
    Fault::at(problem, &node.span)
}

/// A value as a message shows it: without quotes.
pub(super) fn plain<T: Field>(value: &T) -> String {
    match value.show() {
        toml::Value::String(string) => string,
        other => other.to_string(),
    }
}

impl Words {
    /// Words that stand nowhere: a default.
    pub(super) fn of(words: &[&str]) -> Self {
        let nowhere = Span { text: 0, range: 0..0 };
        Self(words.iter().map(|word| ((*word).to_owned(), nowhere.clone())).collect())
    }
}

impl Size {
    const UNITS: [(&'static str, u64); 5] =
        [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

    pub(super) const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    pub(super) const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    pub(super) const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    /// A length in memory as a size.
    pub(super) fn of(bytes: usize) -> Self {
        Self(bytes as u64)
    }

    /// The size as a length in memory.
    pub(super) fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = &text[digits.len()..];
        let (_, scale) = Self::UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
        let count: u64 = digits.trim_end().parse().ok()?;
        count.checked_mul(*scale).map(Self)
    }
}

impl Field for String {
    const EXPECTED: &'static str = "a string";
    const EXAMPLE: &'static str = "\"text\"";

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        let string = match (&node.data, &node.bare) {
            (Data::String(string), _) | (_, Some(string)) => string,
            (_, None) => return Err(misfit::<Self>(node, key)),
        };
        if string.contains('\0') {
            let key = key.to_owned();
            return Err(Fault::at(Problem::Nul { key }, &node.span));
        }
        if string.contains(WITHHELD) {
            let key = key.to_owned();
            return Err(Fault::at(Problem::Withheld { key }, &node.span));
        }
        Ok(string.clone())
    }

    fn show(&self) -> toml::Value {
        toml::Value::String(self.clone())
    }
}

impl Field for bool {
    const EXPECTED: &'static str = "a boolean";
    const EXAMPLE: &'static str = "true";

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        match node.data {
            Data::Boolean(boolean) => Ok(boolean),
            _ => Err(misfit::<Self>(node, key)),
        }
    }

    fn show(&self) -> toml::Value {
        toml::Value::Boolean(*self)
    }
}

impl Field for i64 {
    const EXPECTED: &'static str = "a whole number";
    const EXAMPLE: &'static str = "16";

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        match node.data {
            Data::Integer(integer) => Ok(integer),
            _ => Err(misfit::<Self>(node, key)),
        }
    }

    fn show(&self) -> toml::Value {
        toml::Value::Integer(*self)
    }
}

impl Field for f64 {
    const EXPECTED: &'static str = "a number";
    const EXAMPLE: &'static str = "0.5";

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        match node.data {
            Data::Float(float) => Ok(float),
            // Ratios are small; integers beyond 2^53 are out of range in any case.
            Data::Integer(integer) => Ok(integer as Self),
            _ => Err(misfit::<Self>(node, key)),
        }
    }

    fn show(&self) -> toml::Value {
        toml::Value::Float(*self)
    }
}

impl Field for Count {
    const EXPECTED: &'static str = "a whole number or \"cpus\"";
    const EXAMPLE: &'static str = "8";

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        match &node.data {
            Data::Integer(integer) => Ok(Self::Exactly(*integer)),
            Data::String(string) if string == "cpus" => Ok(Self::Cpus),
            _ => Err(misfit::<Self>(node, key)),
        }
    }

    fn show(&self) -> toml::Value {
        match self {
            Self::Cpus => toml::Value::String("cpus".into()),
            Self::Exactly(count) => toml::Value::Integer(*count),
        }
    }
}

impl Field for Duration {
    const EXPECTED: &'static str = "a duration";
    const EXAMPLE: &'static str = "\"30s\"";

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        let parsed = match &node.data {
            Data::String(string) => humantime::parse_duration(string).ok(),
            _ => None,
        };
        parsed.ok_or_else(|| misfit::<Self>(node, key))
    }

    fn show(&self) -> toml::Value {
        toml::Value::String(humantime::format_duration(*self).to_string())
    }
}

impl Field for Size {
    const EXPECTED: &'static str = "a size in bytes";
    const EXAMPLE: &'static str = "\"4MiB\"";

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        let parsed = match &node.data {
            Data::String(string) => Self::parse(string),
            Data::Integer(integer) => u64::try_from(*integer).ok().map(Self),
            _ => None,
        };
        match parsed {
            // Whoever wants so few bytes can say so.
            Some(Self(count @ 1..1024)) if matches!(node.data, Data::Integer(_)) => {
                Err(Fault::at(WrittenProblem::NoUnit { key: key.to_owned(), count }.into(), &node.span))
            }
            Some(size) => Ok(size),
            None => Err(misfit::<Self>(node, key)),
        }
    }

    fn show(&self) -> toml::Value {
        let fits = |(_, scale): &&(&str, u64)| self.0.is_multiple_of(*scale) && self.0 >= *scale;
        let (unit, scale) = Self::UNITS.iter().find(fits).unwrap_or(&("B", 1));
        toml::Value::String(format!("{}{unit}", self.0 / scale))
    }
}

impl Field for Words {
    const EXPECTED: &'static str = "an array of strings";
    const EXAMPLE: &'static str = "[\"one\", \"two\"]";

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        words::<Self>(node, key)
    }

    fn show(&self) -> toml::Value {
        let words = self.0.iter().map(|(word, _)| word.show());
        toml::Value::Array(words.collect())
    }
}

/// Strings, where `T` may be them.
fn words<T: Field>(node: &Node, key: &str) -> Result<Words, Fault> {
    let Data::Array(items) = &node.data else {
        return Err(misfit::<T>(node, key));
    };
    let word = |item: &Node| match &item.data {
        Data::String(_) => Ok((String::read(item, key)?, item.span.clone())),
        _ => Err(misfit::<T>(item, key)),
    };
    items.iter().map(word).collect::<Result<_, _>>().map(Words)
}
