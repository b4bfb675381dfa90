//! Checks between keys: values that are fine alone and wrong together.

use super::field::{Size, plain};
use super::model::{Config, Kind, Pool, Queue, Server};
use super::problem::Problem;
use super::reader::Reader;
use crate::memory::MemoryLimits;
use crate::model::{DeadlinePolicy, WhenFull};
use crate::net::ListenAddress;

/// What a configuration without a kind is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoKinds {
    Fault,
    /// The program has handlers of its own.
    Fine,
}

/// Reports every clash. A key whose own value was reported takes part in none.
pub(super) fn report(config: &Config, no_kinds: NoKinds, reader: &mut Reader) {
    let Config { server, ops: _, deadline, drain: _, auth: _, quota: _, telemetry: _, pools, kinds } = config;
    if no_kinds == NoKinds::Fault && !reader.mentions("kind") {
        reader.report(Problem::NoKinds, &["kind"]);
    }
    report_listeners(server, reader);
    report_memory(server, reader);
    report_deadlines(deadline, reader);
    for pool in pools {
        report_pool(pool, server, reader);
        report_stray(pool, kinds, reader);
    }
}

fn report_listeners(server: &Server, reader: &mut Reader) {
    let Server { listen, ops_listen, allow_plaintext, ops_allow_plaintext, tls, .. } = server;
    let all: Vec<&ListenAddress> = listen.iter().chain(ops_listen).collect();
    for (index, address) in all.iter().enumerate() {
        let keys: &[&str] =
            if index < listen.len() { &["server.listen"] } else { &["server.ops_listen", "server.listen"] };
        if all[..index].iter().any(|other| overlap(other, address)) {
            reader.report(Problem::SameAddress { address: address.to_string() }, keys);
        }
        // The operator's listener speaks no TLS.
        let (may_be_public, otherwise) = if index < listen.len() {
            (tls.is_some(), "add [server.tls], or set `server.allow_plaintext = true`")
        } else {
            (*ops_allow_plaintext, "or set `server.ops_allow_plaintext = true`")
        };
        if !allow_plaintext && !may_be_public && address.is_public() {
            let key = keys[0].to_owned();
            reader.report(Problem::Plaintext { key, address: address.to_string(), otherwise }, &keys[..1]);
        }
    }
}

fn report_memory(server: &Server, reader: &mut Reader) {
    let MemoryLimits { total, per_connection, stall: _ } = server.memory;
    for (key, memory) in [("total", total), ("per_connection", per_connection)] {
        if server.max_payload > memory {
            let problem = Problem::PayloadOverMemory {
                key: format!("server.memory.{key}"),
                payload: plain(&Size::of(server.max_payload)),
                memory: plain(&Size::of(memory)),
            };
            reader.report(problem, &[&format!("server.memory.{key}"), "server.max_payload"]);
        }
    }
    if per_connection > total {
        reader.report(Problem::MemoryOverTotal, &["server.memory.per_connection", "server.memory.total"]);
    }
}

fn report_deadlines(deadline: &DeadlinePolicy, reader: &mut Reader) {
    let DeadlinePolicy { default, max, reply_margin } = deadline;
    if default > max {
        let keys = ["deadline.default", "deadline.max"];
        reader.report(Problem::DefaultOverMax, &keys);
    }
    if reply_margin >= default {
        let keys = ["deadline.reply_margin", "deadline.default"];
        reader.report(Problem::MarginOverDefault, &keys);
    }
}

fn report_pool(pool: &Pool, server: &Server, reader: &mut Reader) {
    let key = |key: &str| format!("pool.{}.{key}", pool.name);
    let Queue { jobs: _, bytes, waiting } = pool.queue;
    if server.max_payload > bytes {
        let problem = Problem::PayloadOverQueue {
            pool: pool.name.clone(),
            payload: plain(&Size::of(server.max_payload)),
            queue: plain(&Size::of(bytes)),
        };
        reader.report(problem, &[&key("queue.bytes"), "server.max_payload"]);
    }
    if pool.workers > pool.max_workers {
        let pool = pool.name.clone();
        reader.report(Problem::WorkersOverMax { pool }, &[&key("workers.min"), &key("workers.max")]);
    }
    if pool.when_full == WhenFull::Wait && waiting == 0 {
        let pool = pool.name.clone();
        let keys = [&key("queue.waiting"), &*key("when_full")];
        reader.report(Problem::NoWaiting { pool }, &keys);
    }
}

/// A pool that no file declares and no kind uses is most likely a slip in the name of a variable or a flag.
fn report_stray(pool: &Pool, kinds: &[Kind], reader: &mut Reader) {
    let path = format!("pool.{}", pool.name);
    let used = kinds.iter().any(|kind| kind.pool == pool.name);
    if !used && !reader.in_file(&path) {
        let known = reader.declared("pool");
        let pool = pool.name.clone();
        reader.report(Problem::StrayPool { pool, known }, &[&path]);
    }
}

/// Port 0 is a port of its own each time; an unspecified address takes the port on all of them.
fn overlap(a: &ListenAddress, b: &ListenAddress) -> bool {
    match (a, b) {
        (ListenAddress::Tcp(a), ListenAddress::Tcp(b)) => {
            let meet = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
            a.port() == b.port() && a.port() != 0 && meet
        }
        (ListenAddress::Unix { path: a, mode: _ }, ListenAddress::Unix { path: b, mode: _ }) => a == b,
        (ListenAddress::Systemd(a), ListenAddress::Systemd(b)) => a == b,
        _ => false,
    }
}
