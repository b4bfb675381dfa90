//! Shared by the tests: kinds made of closures, signals that block handlers, and checks of an idle pool.

#[path = "../../src/store/tests/cluster.rs"]
mod cluster;
mod idle;
mod kinds;
mod lateness;
mod pki;
mod signals;

use std::io::{Write as _, stderr};

pub(crate) use cluster::Cluster;
pub(crate) use idle::{assert_balanced, assert_idle, meet, meeting};
pub(crate) use kinds::{blocking_kind, deaf, echo, gated, gated_counting, kind, polite, pool, slow};
pub(crate) use lateness::lateness;
pub(crate) use pki::{Authority, Files, KEYS, Leaf, Name, TlsClient, toml_string};
pub(crate) use signals::{BlockingGate, Counter, Gate, holding_clock, pass_time, until};

/// The size of a test. An environment variable overrides it for longer runs.
pub(crate) fn size(variable: &str, default: usize) -> usize {
    let text = std::env::var(variable);
    text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text:?} is not a number")))
}

/// Prints why a test was skipped. The test harness does not capture the line.
pub(crate) fn skipped(why: &str) {
    let line = format!("SKIPPED: {why}\n");
    stderr().write_all(line.as_bytes()).expect("stderr is writable");
}
