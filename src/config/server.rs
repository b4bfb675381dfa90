//! The keys of `[server]`.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use super::field::{Size, Words, any, within};
use super::listen::{Addresses, Networks};
use super::model::Server;
use super::problem::Problem;
use super::section::Section;
use super::security;
use super::withhold::value as shown_value;
use crate::memory::MemoryLimits;
use crate::net::{ConnectionLimits, Http2, ListenAddress};

/// One gRPC message.
const MESSAGE: RangeInclusive<Size> = Size(1)..=Size::gib(1);

/// Memory for messages.
const MEMORY: RangeInclusive<Size> = Size(1)..=Size::gib(1024);

/// Waits for a peer: with less, one on the other side of the earth is shut out.
const WAIT: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);

/// Ages of connections: with less, each call has a connection of its own. The greatest is as good as none.
const AGE: RangeInclusive<Duration> = Duration::from_secs(1)..=YEAR;

/// Times for calls to end in, a round trip at least.
const GRACE: RangeInclusive<Duration> = Duration::from_millis(100)..=YEAR;

/// Of 365.25 days, as it is written.
const YEAR: Duration = Duration::from_secs(31_557_600);

pub(super) fn read(section: &mut Section<'_>) -> Server {
    let listen = section.value("listen", Addresses(vec![loopback(7070)]), any).0;
    let ops_listen = section.value("ops_listen", Addresses(vec![loopback(7071)]), any).0;
    let allow_plaintext = section.value("allow_plaintext", false, any);
    let ops_allow_plaintext = section.value("ops_allow_plaintext", false, any);
    let ops_hosts = section.value("ops_hosts", Words(Vec::new()), hosts).into_strings();
    let proxies = section.value("proxies", Networks::default(), any).0;
    let http_proxies = section.value("http_proxies", Networks::default(), any).0;
    let threads = section.count("threads", 256);
    let max_payload = section.value("max_payload", Size::mib(4), within(MESSAGE)).bytes();
    let max_output = section.value("max_output", Size::kib(4032), within(MESSAGE)).bytes();
    let submit_many_window = section.integer("submit_many_window", 256, 1..=65_536);
    let load_reports = section.value("load_reports", false, any);
    let grpc_web_origins = section.value("grpc_web_origins", Words(Vec::new()), origins).into_strings();
    let max_concurrent_streams = section.integer("max_concurrent_streams", 256, 1..=65_536);
    Server {
        listen,
        ops_listen,
        allow_plaintext,
        ops_allow_plaintext,
        ops_hosts,
        proxies,
        http_proxies,
        threads,
        max_payload,
        max_output,
        submit_many_window,
        load_reports,
        tls: section.section("tls", |section| security::tls(section, &grpc_web_origins)),
        grpc_web_origins,
        connections: section.section("connections", connections),
        http2: section.section("http2", |section| http2(section, max_concurrent_streams)),
        memory: section.section("memory", |section| memory(section, max_payload)),
    }
}

fn connections(section: &mut Section<'_>) -> ConnectionLimits {
    let ConnectionLimits { max, max_per_address, preface_timeout, max_age, max_age_grace, idle_timeout } =
        ConnectionLimits::default();
    ConnectionLimits {
        max: section.integer("max", max as i64, 1..=1_000_000),
        max_per_address: section.integer("max_per_address", max_per_address as i64, 1..=1_000_000),
        preface_timeout: section.value("preface_timeout", preface_timeout, within(WAIT)),
        max_age: section.value("max_age", max_age, within(AGE)),
        max_age_grace: section.value("max_age_grace", max_age_grace, within(GRACE)),
        idle_timeout: section.value("idle_timeout", idle_timeout, within(AGE)),
    }
}

fn http2(section: &mut Section<'_>, max_concurrent_streams: u32) -> Http2 {
    let Http2 {
        max_concurrent_streams: _,
        max_local_resets,
        max_pending_resets,
        max_header_list,
        stream_window,
        connection_window,
        keepalive_interval,
        keepalive_timeout,
    } = Http2::default();
    // The protocol knows no window below its initial one of the connection, and none of 2 GiB.
    let window = Size::kib(64)..=Size::gib(1);
    let mut size = |key, default: u32, range: RangeInclusive<Size>| {
        let size = section.value(key, Size(default.into()), within(range)).bytes();
        u32::try_from(size).expect("the range of the key fits its type")
    };
    let max_header_list = size("max_header_list", max_header_list, Size::kib(4)..=Size::mib(1));
    let stream_window = size("stream_window", stream_window, window.clone());
    let connection_window = size("connection_window", connection_window, window);
    Http2 {
        max_concurrent_streams,
        max_local_resets: section.integer("max_local_resets", max_local_resets as i64, 1..=1_000_000),
        max_pending_resets: section.integer("max_pending_resets", max_pending_resets as i64, 1..=1_000_000),
        max_header_list,
        stream_window,
        connection_window,
        keepalive_interval: section.value("keepalive_interval", keepalive_interval, within(WAIT)),
        keepalive_timeout: section.value("keepalive_timeout", keepalive_timeout, within(WAIT)),
    }
}

fn memory(section: &mut Section<'_>, max_payload: usize) -> MemoryLimits {
    let MemoryLimits { total, per_connection, stall } = MemoryLimits::default();
    let of = |least: usize, payloads: usize| Size::of(least.max(max_payload.saturating_mul(payloads)));
    MemoryLimits {
        total: section.value("total", of(total, 4), within(MEMORY)).bytes(),
        per_connection: section.value("per_connection", of(per_connection, 2), within(MEMORY)).bytes(),
        stall: section.value("stall", stall, within(WAIT)),
    }
}

fn loopback(port: u16) -> ListenAddress {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()
}

/// A page sends its origin as it was written, and no more than that.
fn origins(key: &str, origins: &Words) -> Result<(), Problem> {
    let is_origin = |text: &str| {
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#', '@', ' ', '*']))
    };
    match origins.0.iter().find(|(origin, _)| !is_origin(origin)) {
        None => Ok(()),
        Some((value, _)) => Err(Problem::Malformed {
            key: key.to_owned(),
            expected: "origins of pages, without a path",
            value: shown_value(value),
            example: "[\"https://app.example\"]",
        }),
    }
}

/// A name is told from an address by what calls send, so that it has neither a scheme nor a port.
fn hosts(key: &str, hosts: &Words) -> Result<(), Problem> {
    let is_host = |text: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        (1..=253).contains(&text.len()) && text.chars().all(plain)
    };
    match hosts.0.iter().find(|(host, _)| !is_host(host)) {
        None => Ok(()),
        Some((value, _)) => Err(Problem::Malformed {
            key: key.to_owned(),
            expected: "names of hosts, without a port",
            value: shown_value(value),
            example: "[\"ops.example\"]",
        }),
    }
}
