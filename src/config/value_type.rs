//! Types of values and syntaxes of texts: how they are parsed and displayed.

use std::{net::IpAddr, ops::RangeInclusive, path::Path, time::Duration};

use ipnet::IpNet;
use tracing_subscriber::filter::Targets;

use super::{
    fault::choose,
    handler, redact,
    source::Span,
    tree::{Data, Node},
};
use crate::{
    auth::{PrincipalPattern, Rpc},
    detached::Calendar,
    handler::ExecCommand,
    model::{MAX_TENANT, WITHHELD},
    net::{InvalidListenAddress, ListenAddress},
    store::DatabaseUrl,
};

/// Type of a key's value. Bounds are inclusive.
#[derive(Clone, Copy)]
pub(super) enum ValueType {
    Boolean,
    Integer(i64, i64),
    /// A number from 1, or `"cpus"`: one for each CPU.
    Count(i64),
    Number(f64, f64),
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
    /// The same for a text that may have a secret in any part, so that no fault quotes it.
    Withheld(&'static str, fn(&str) -> Checked),
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
                let words = texts(items, |word| handler::word(word, directory))?;
                let wrong = words.typed[0].as_str().and_then(|program| handler::program_fault(Path::new(program)));
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
            Self::Number(..) => "a number",
            Self::Size(..) => "a size",
            Self::Duration(..) => "a duration",
            Self::Text(_) | Self::Path | Self::Secret => "a string",
            Self::Texts(_) | Self::Command => "an array of strings",
            Self::OneOrMore(_) => "a string or an array of strings",
        }
    }

    /// Whether an array may have this many items: only `Texts` may be empty.
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
            // Such numbers are small; integers beyond 2^53 are out of range anyway.
            (Self::Number(..), Data::Integer(value)) => return self.number(&Data::Float(*value as f64)),
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

    /// Checks a text. Reports a value of any other type.
    fn text(self, node: &Node, directory: &Path) -> Result<Value, Invalid> {
        let (text, is_bare) = match (&node.data, &node.bare) {
            (Data::String(text), bare) => (text.clone(), bare.is_some()),
            (_, Some(bare)) => (bare.clone(), true),
            // A negative number of bytes: the unit is not the fault.
            (Data::Integer(value @ ..0), None) if matches!(self, Self::Size(..)) => (value.to_string(), false),
            (data, None) => return Err(Invalid::type_of(self.expected(), data.type_name())),
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
            Self::Texts(_) | Self::Command if !is_bare => Err(Invalid::type_of(self.expected(), node.data.type_name())),
            _ => Err(Invalid::text(&text, self.expected(), None)),
        }
    }
}

impl Syntax {
    pub(super) fn read(self, text: &str) -> Result<String, Invalid> {
        let text = unmasked(text)?;
        match self {
            Self::Parsed(expected, read) => read(&text).map_err(|help| Invalid::text(&text, expected, help)),
            Self::Withheld(expected, read) => {
                read(&text).map_err(|help| Invalid { what: format!(" is not {expected}"), help })
            }
            Self::OneOf(names) if names.contains(&&*text) => Ok(text),
            Self::OneOf(names) => Err(Invalid::text(&text, "one of its values", Some(choose(&text, names)))),
        }
    }
}

impl Invalid {
    /// The value has another type than expected.
    fn type_of(expected: &str, found: &str) -> Self {
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
        other => Err(Invalid::type_of("an array of strings", other.type_name())),
    };
    let items = items.iter().map(|item| text(item).map_err(|invalid| (invalid, item.span.clone())));
    items.collect::<Result<Vec<_>, _>>().map(|items| toml::Value::Array(items).into())
}

/// A text that a program can receive, and that is not the placeholder of a secret.
pub(super) fn unmasked(text: &str) -> Result<String, Invalid> {
    if text.contains('\0') {
        return Err(Invalid::type_of("a string without NUL", "one with it"));
    }
    if text.contains(WITHHELD) {
        return Err(Invalid::type_of("the value itself", "the text that `config show` prints instead of it"));
    }
    Ok(text.to_owned())
}

/// The text to display, or help if the key's example is not enough.
type Checked = Result<String, Option<String>>;

pub(super) const STRING: Syntax = Syntax::Parsed("a string", |text| Ok(text.to_owned()));
pub(super) const WORD: Syntax = Syntax::Parsed("a text of one character or more", |text| check(text, !text.is_empty()));
pub(super) const CRON: Syntax =
    Syntax::Parsed("a pattern of cron", |text| Calendar::parse(text, "UTC").map(|_| text.to_owned()).map_err(Some));
pub(super) const TIMEZONE: Syntax =
    Syntax::Parsed("a time zone of the IANA database", |text| check(text, Calendar::parse("* * * * *", text).is_ok()));
pub(super) const ADDRESS: Syntax = Syntax::Parsed("an address: IP:PORT, unix:/path or systemd:N", |text| {
    let address: ListenAddress = text.parse().map_err(|error| match error {
        InvalidListenAddress::Form => None,
        other => Some(other.to_string()),
    })?;
    Ok(address.to_setting())
});
pub(super) const NETWORK: Syntax = Syntax::Parsed("a network", |text| {
    let address = || text.parse().map(|address: IpAddr| IpNet::from(address.to_canonical()));
    let network = text.parse::<IpNet>().or_else(|_| address());
    network.map(|network| network.to_string()).map_err(|_| None)
});
pub(super) const HOST: Syntax = Syntax::Parsed("a name of a host, without a port", |text| {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    check(text, (1..=253).contains(&text.len()) && text.chars().all(plain))
});
/// Browsers send the origin without a path.
pub(super) const ORIGIN: Syntax = Syntax::Parsed("an origin of pages, without a path", |text| {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    check(text, host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ', '*'])))
});
pub(super) const COLLECTOR: Syntax =
    Syntax::Parsed("an http:// URL of a collector", |text| check(text, is_collector(text)));
pub(super) const DATABASE: Syntax = Syntax::Withheld("a postgres:// URL of a database", |text| {
    DatabaseUrl::try_from(text.to_owned()).map(|_| text.to_owned()).map_err(|error| Some(error.to_string()))
});
pub(super) const TENANT: Syntax = Syntax::Parsed("a name of 1 to 128 bytes", |text| {
    check(text, (1..=MAX_TENANT).contains(&text.len()) && !text.chars().any(char::is_control))
});
pub(super) const PRINCIPAL: Syntax = Syntax::Parsed("a pattern of callers", |text| {
    let help = "begin with `spiffe://`, `subject:` or `jwt:`; `**` is everyone with credentials, `anonymous` everyone \
                without";
    check_or(text, PrincipalPattern::parse(text).is_some(), help)
});
pub(super) const RPC: Syntax = Syntax::Parsed("a name of an RPC, or `*`", |text| {
    let known = Rpc::NAMES.map(|(name, _)| name);
    check_or(text, text == "*" || known.contains(&text), choose(text, &known))
});
pub(super) const ENV_NAME: Syntax = Syntax::Parsed("a name of a variable", |text| {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = !text.is_empty() && !text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(word);
    check_or(text, is_name, "use letters, digits and `_`, and no digit first").and_then(|name| unreserved(&name))
});
pub(super) const ENV_COPY: Syntax = Syntax::Parsed("a name of a variable that a job may have", unreserved);
/// Metrics, health names and variables contain these names, so they stay simple.
pub(super) const NAME: Syntax = Syntax::Parsed("a name", |text| name(text).map_err(Some));
/// The text, if it is a valid name of a pool, a kind or a program.
///
/// # Errors
/// The rules for names.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let tail = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    let is_name = text.starts_with(|c: char| c.is_ascii_lowercase()) && text.len() <= 63 && text.chars().all(tail);
    let help = "write a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`";
    if is_name { Ok(text.to_owned()) } else { Err(help.to_owned()) }
}
/// Only the canonical form is valid, so that "3" and "03" are not the same code twice.
pub(super) const EXIT_CODE: Syntax = Syntax::Parsed("an exit code of a failure", |text| {
    let is_code = text.parse::<u8>().is_ok_and(|code| code > 0 && code.to_string() == text);
    check_or(text, is_code, "give a code from 1 to 255, like `\"3\" = \"NOT_FOUND\"`")
});
pub(super) const LOG_FILTER: Syntax = Syntax::Parsed("a filter of log lines", |text| {
    // An empty part would be valid for the parser: it would mute everything, or apply to all targets.
    let whole = text.split([',', '=']).all(|part| !part.trim().is_empty());
    check(text, whole && text.parse::<Targets>().is_ok())?;
    // The parser would take a misspelled level as a target, which mutes all others.
    let is_directive = |word: &str| {
        let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word)) || word.parse::<u8>().is_ok();
        is_level || word.contains(['=', '[', ':']) || word == "waterwheel"
    };
    match text.split(',').map(str::trim).find(|word| !is_directive(word)) {
        Some(word) => Err(Some(format!("`{word}` is not a level; {}", choose(word, &LEVELS)))),
        None => Ok(text.to_owned()),
    }
});

/// Log levels, from the lowest.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

fn check(text: &str, fits: bool) -> Checked {
    if fits { Ok(text.to_owned()) } else { Err(None) }
}

fn check_or(text: &str, fits: bool, help: impl Into<String>) -> Checked {
    check(text, fits).map_err(|_| Some(help.into()))
}

/// Accepts names that are not reserved for the variables of a job.
fn unreserved(text: &str) -> Checked {
    let reserved = ExecCommand::RESERVED;
    let help =
        format!("choose a name that does not begin with {reserved}, which is reserved for the variables of each job");
    check_or(text, !text.starts_with(reserved), help)
}

/// Spans are exported by gRPC without TLS, so the URL has no path, no user and no other scheme.
fn is_collector(url: &str) -> bool {
    let Some(authority) = url.strip_prefix("http://") else {
        return false;
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '[' | ']' | ':');
    let port_fits = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    !host.is_empty() && host.chars().all(plain) && port_fits
}
