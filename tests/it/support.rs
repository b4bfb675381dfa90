//! What the tests share: kinds made of closures, signals that hold handlers, and the look of a pool at rest.

#[path = "../../src/store/tests/cluster.rs"]
mod cluster;
mod kinds;
mod lateness;
mod pki;
mod rest;
mod signals;

use std::io::{Write as _, stderr};

pub(crate) use cluster::Cluster;
pub(crate) use kinds::{blocking_kind, echo, kind, pool, slow};
pub(crate) use lateness::lateness;
pub(crate) use pki::{Authority, Files, Leaf, Name, TlsClient, toml_string};
pub(crate) use rest::{assert_balanced, assert_idle, meet, meeting};
pub(crate) use signals::{BlockingGate, Counter, Gate, holding_clock, pass_time, until};

/// The size of a test, which a variable overrides for longer runs.
pub(crate) fn size(variable: &str, default: usize) -> usize {
    let text = std::env::var(variable);
    text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text:?} is not a number")))
}

/// Says that a test could not run, and why, past what the harness captures.
pub(crate) fn skipped(why: &str) {
    let line = format!("SKIPPED: {why}\n");
    stderr().write_all(line.as_bytes()).expect("a place for it");
}
