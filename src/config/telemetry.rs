//! Values of `[telemetry]` that have a syntax of their own.

use tracing_subscriber::filter::Targets;

use super::fault::Fault;
use super::field::{Field, misfit};
use super::problem::Problem;
use super::tree::Node;
use super::withhold::value as shown;

/// What a line of log may have, the least first.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A filter of log lines that is known to parse.
pub(super) struct LogFilter(String);

/// URL of a collector: `http://host`, with a port where it is not the default one.
pub(super) struct Collector(String);

impl LogFilter {
    pub(super) fn info() -> Self {
        Self("info".into())
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

impl Collector {
    pub(super) fn into_string(self) -> String {
        self.0
    }
}

impl Field for LogFilter {
    const EXPECTED: &'static str = "a log filter";
    const EXAMPLE: &'static str = "\"info,waterwheel=debug\"";

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        let filter = String::read(node, key).map_err(|_| misfit::<Self>(node, key))?;
        // An empty part would parse: as a filter that mutes everything, or as the target of all.
        let whole = filter.split([',', '=']).all(|part| !part.trim().is_empty());
        let valid = whole && filter.parse::<Targets>().is_ok();
        // It would be taken for a target, so that a slip in a level mutes all the others.
        if let Some(word) = filter.split(',').map(str::trim).find(|word| valid && is_no_directive(word)) {
            let known = LEVELS.to_vec();
            return Err(Fault::at(Problem::UnknownName { key: key.to_owned(), value: shown(word), known }, &node.span));
        }
        valid.then_some(Self(filter)).ok_or_else(|| misfit::<Self>(node, key))
    }

    fn show(&self) -> toml::Value {
        self.0.show()
    }
}

impl Field for Collector {
    const EXPECTED: &'static str = "an http:// URL of a collector";
    const EXAMPLE: &'static str = "\"http://127.0.0.1:4317\"";

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        let url = String::read(node, key).map_err(|_| misfit::<Self>(node, key))?;
        if is_collector(&url) {
            return Ok(Self(url));
        }
        Err(misfit::<Self>(node, key))
    }

    fn show(&self) -> toml::Value {
        self.0.show()
    }
}

/// Whether a word is neither a level nor says of what it is one.
fn is_no_directive(word: &str) -> bool {
    let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word)) || word.parse::<u8>().is_ok();
    !is_level && !word.is_empty() && !word.contains(['=', '[', ':']) && word != "waterwheel"
}

/// Spans go over gRPC without TLS, so the URL has no path, no user and no other scheme.
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
