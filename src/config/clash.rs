//! Checks between keys: values that are fine alone and wrong together.

use std::net::SocketAddr;

use super::field::{Size, plain};
use super::model::{Config, Kind, Pool, Queue, Server};
use super::problem::Problem;
use super::reader::Reader;
use crate::model::{DeadlinePolicy, WhenFull};

/// What a configuration without a kind is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoKinds {
    Fault,
    /// The program has handlers of its own.
    Fine,
}

/// Reports every clash. A key whose own value was reported takes part in none.
pub(super) fn report(config: &Config, no_kinds: NoKinds, reader: &mut Reader) {
    let Config { server, ops: _, deadline, drain: _, telemetry: _, pools, kinds } = config;
    if no_kinds == NoKinds::Fault && !reader.mentions("kind") {
        reader.report(Problem::NoKinds, &["kind"]);
    }
    if same_port(server.listen, server.ops_listen) {
        let port = server.ops_listen.port();
        let keys = ["server.ops_listen", "server.listen"];
        reader.report(Problem::SamePort { port }, &keys);
    }
    report_deadlines(deadline, reader);
    for pool in pools {
        report_pool(pool, server, reader);
        report_stray(pool, kinds, reader);
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
fn same_port(a: SocketAddr, b: SocketAddr) -> bool {
    let overlap = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && a.port() != 0 && overlap
}
