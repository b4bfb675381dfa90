//! The keys: which there are, their types, defaults and ranges. Adding one is a line here and a field in the model.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::field::{Size, any, filled, within};
use super::model::{Config, Drain, Pool, Queue};
use super::problem::Problem;
use super::section::Section;
use super::{clash, kind, security, server, telemetry};
use crate::model::{DeadlinePolicy, WhenFull};
use crate::ops;
use crate::telemetry::{Config as Telemetry, LogFormat};

/// Deadlines and runs: long enough to finish something, short enough that a wrong unit shows.
pub(super) const RUN: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(7 * 24 * 3600);

/// Phases of a stop, which may be skipped.
pub(super) const GRACE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(24 * 3600);

/// Output of one job, which may be streamed.
pub(super) const OUTPUT: RangeInclusive<Size> = Size(1)..=Size::gib(1024);

/// Entries of a queue: an index of 24 bits.
const ENTRIES: i64 = 1 << 24;

/// Reads everything. The environment serves `pass_env`.
pub(super) fn config(root: &mut Section<'_>, env: &[(String, String)], no_kinds: clash::NoKinds) -> Config {
    let server = root.section("server", server::read);
    let ops = root.section("ops", ops);
    let deadline = root.section("deadline", deadline);
    let drain = root.section("drain", drain);
    let has_client_ca = server.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let auth = root.section("auth", |section| security::auth(section, has_client_ca));
    let quota = root.section("quota", security::quota);
    let telemetry = root.section("telemetry", telemetry);
    let pools = root.each("pool", pool);
    let context = kind::Context { pools: &pools, env };
    let kinds = root.each("kind", |name, section| kind::read(name, section, &context));
    let kinds = kinds.into_iter().flatten().collect();
    let config = Config { server, ops, deadline, drain, auth, quota, telemetry, kinds, pools };
    clash::report(&config, no_kinds, root.reader());
    config
}

fn ops(section: &mut Section<'_>) -> ops::Options {
    let ops::Options { probes, metrics, debug_tasks } = ops::Options::default();
    ops::Options {
        probes: section.value("probes", probes, any),
        metrics: section.value("metrics", metrics, any),
        debug_tasks: section.value("debug_tasks", debug_tasks, any),
    }
}

fn deadline(section: &mut Section<'_>) -> DeadlinePolicy {
    let margin = Duration::ZERO..=Duration::from_secs(1);
    DeadlinePolicy {
        default: section.value("default", Duration::from_secs(30), within(RUN)),
        max: section.value("max", Duration::from_secs(600), within(RUN)),
        reply_margin: section.value("reply_margin", Duration::from_millis(10), within(margin)),
    }
}

fn drain(section: &mut Section<'_>) -> Drain {
    Drain {
        notice: section.value("notice", Duration::from_secs(5), within(GRACE)),
        finish: section.value("finish", Duration::from_secs(30), within(GRACE)),
        kill: section.value("kill", Duration::from_secs(5), within(GRACE)),
    }
}

fn telemetry(section: &mut Section<'_>) -> Telemetry {
    Telemetry {
        log: section.value("log", telemetry::LogFilter::info(), any).into_string(),
        format: section.value("log_format", LogFormat::Auto, any),
        otlp: section.optional("otlp", any).map(telemetry::Collector::into_string),
        sample_ratio: section.value("sample_ratio", 0.01, within(0.0..=1.0)),
        caller_traces: section.integer("caller_traces", 100, 0..=1_000_000),
        service_name: section.value("service_name", "waterwheel".to_owned(), filled),
    }
}

fn pool(name: &str, section: &mut Section<'_>) -> Pool {
    let (workers, max_workers) = workers(section);
    Pool {
        name: name.to_owned(),
        workers,
        max_workers,
        queue: section.section("queue", queue),
        when_full: section.value("when_full", WhenFull::Reject, any),
        cancel_grace: section.value("cancel_grace", Duration::from_secs(1), within(GRACE)),
        max_stuck: section.integer("max_stuck", 4, 0..=1024),
        tenant_share: section.value("tenant_share", 0.25, share),
        ended_jobs: section.integer("ended_jobs", 1024, 0..=1 << 20),
    }
}

/// A number of workers, or its bounds.
fn workers(section: &mut Section<'_>) -> (usize, usize) {
    const MOST: u32 = 65_536;
    if !section.holds_table("workers") {
        let count = section.count("workers", MOST);
        return (count, count);
    }
    section.section("workers", |bounds| {
        let min = bounds.integer("min", 1, 1..=i64::from(MOST));
        (min, bounds.count("max", MOST))
    })
}

fn queue(section: &mut Section<'_>) -> Queue {
    Queue {
        jobs: section.integer("jobs", 1024, 1..=ENTRIES),
        bytes: section.value("bytes", Size::mib(64), within(OUTPUT)).bytes(),
        waiting: section.integer("waiting", 1024, 0..=ENTRIES),
    }
}

/// A share of nothing would lock everybody out, so 0 itself is excluded.
fn share(key: &str, value: &f64) -> Result<(), Problem> {
    if *value > 0.0 && *value <= 1.0 {
        return Ok(());
    }
    Err(Problem::OutOfRange {
        key: key.to_owned(),
        value: value.to_string(),
        low: "0 (excluded)".into(),
        high: "1".into(),
    })
}
