//! The syntaxes of strings, with help for invalid ones.

use std::net::IpAddr;

use ipnet::IpNet;
use tracing_subscriber::filter::Targets;

use super::{
    fault::choose,
    value_type::Syntax::{self, Parsed},
};
use crate::{
    auth::{PrincipalPattern, Rpc},
    detached::Calendar,
    handler::ExecCommand,
    model::MAX_TENANT,
    net::{InvalidListenAddress, ListenAddress},
    store::DatabaseUrl,
};

/// The text to display, or help if the key's example is not enough.
pub(super) type Checked = Result<String, Option<String>>;

pub(super) const STRING: Syntax = Parsed("a string", |text| Ok(text.to_owned()));
pub(super) const WORD: Syntax = Parsed("a text of one character or more", |text| check(text, !text.is_empty()));
pub(super) const CRON: Syntax =
    Parsed("a pattern of cron", |text| Calendar::parse(text, "UTC").map(|_| text.to_owned()).map_err(Some));
pub(super) const TIMEZONE: Syntax =
    Parsed("a time zone of the IANA database", |text| check(text, Calendar::parse("* * * * *", text).is_ok()));
pub(super) const ADDRESS: Syntax = Parsed("an address: IP:PORT, unix:/path or systemd:N", |text| {
    let address: ListenAddress = text.parse().map_err(|error| match error {
        InvalidListenAddress::Form => None,
        other => Some(other.to_string()),
    })?;
    Ok(address.to_setting())
});
pub(super) const NETWORK: Syntax = Parsed("a network", |text| {
    let address = || text.parse().map(|address: IpAddr| IpNet::from(address.to_canonical()));
    let network = text.parse::<IpNet>().or_else(|_| address());
    network.map(|network| network.to_string()).map_err(|_| None)
});
pub(super) const HOST: Syntax = Parsed("a name of a host, without a port", |text| {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    check(text, (1..=253).contains(&text.len()) && text.chars().all(plain))
});
/// Browsers send the origin without a path.
pub(super) const ORIGIN: Syntax = Parsed("an origin of pages, without a path", |text| {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    check(text, host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ', '*'])))
});
pub(super) const COLLECTOR: Syntax = Parsed("an http:// URL of a collector", |text| check(text, is_collector(text)));
pub(super) const DATABASE: Syntax = Parsed("a postgres:// URL of a database", |text| {
    DatabaseUrl::try_from(text.to_owned()).map(|_| text.to_owned()).map_err(|error| Some(error.to_string()))
});
pub(super) const TENANT: Syntax = Parsed("a name of 1 to 128 bytes", |text| {
    check(text, (1..=MAX_TENANT).contains(&text.len()) && !text.chars().any(char::is_control))
});
pub(super) const PRINCIPAL: Syntax = Parsed("a pattern of callers", |text| {
    let help = "begin with `spiffe://`, `subject:` or `jwt:`; `**` is everyone with credentials, `anonymous` everyone \
                without";
    check(text, PrincipalPattern::parse(text).is_some()).map_err(|_| Some(help.to_owned()))
});
pub(super) const RPC: Syntax = Parsed("a name of an RPC, or `*`", |text| {
    let known = Rpc::NAMES.map(|(name, _)| name);
    check(text, text == "*" || known.contains(&text)).map_err(|_| Some(choose(text, &known)))
});
pub(super) const ENV_NAME: Syntax = Parsed("a name of a variable", |text| {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = !text.is_empty() && !text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(word);
    let help = || Some("use letters, digits and `_`, and no digit first".to_owned());
    check(text, is_name).map_err(|_| help()).and_then(|name| unreserved(&name))
});
pub(super) const ENV_COPY: Syntax = Parsed("a name of a variable that a job may have", unreserved);
/// Metrics, health names and variables contain these names, so they stay simple.
pub(super) const NAME: Syntax = Parsed("a name", |text| name(text).map_err(Some));
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
pub(super) const EXIT_CODE: Syntax = Parsed("an exit code of a failure", |text| {
    let is_code = text.parse::<u8>().is_ok_and(|code| code > 0 && code.to_string() == text);
    check(text, is_code).map_err(|_| Some("give a code from 1 to 255, like `\"3\" = \"NOT_FOUND\"`".to_owned()))
});
pub(super) const LOG_FILTER: Syntax = Parsed("a filter of log lines", |text| {
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

/// Accepts names that are not reserved for the variables of a job.
fn unreserved(text: &str) -> Checked {
    let reserved = ExecCommand::RESERVED;
    let help = || {
        Some(format!(
            "choose a name that does not begin with {reserved}, which is reserved for the variables of each job"
        ))
    };
    check(text, !text.starts_with(reserved)).map_err(|_| help())
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
