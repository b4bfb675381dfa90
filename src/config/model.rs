//! What a valid configuration says, converted once to rich types.

use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

use crate::handler::{Builtin, ExecCommand, KindOptions};
use crate::memory::MemoryLimits;
use crate::model::{DeadlinePolicy, WhenFull};
use crate::net::{ConnectionLimits, Http2, ListenAddress, TlsConfig};
use crate::{auth, ops, telemetry};

/// The whole configuration: every value checked, every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Listeners and limits of one call.
    pub server: Server,
    /// Pages of the operator's listener.
    pub ops: ops::Options,
    /// Deadlines of jobs; its default is at most its maximum.
    pub deadline: DeadlinePolicy,
    /// Phases of the drain.
    pub drain: Drain,
    /// Who is let in; none where everybody is.
    pub auth: Option<auth::Config>,
    /// What one tenant may use, whatever the pool.
    pub quota: auth::QuotaConfig,
    /// Logs and traces: the filter and the collector are known to parse.
    pub telemetry: telemetry::Config,
    /// Pools, in the order of the file. Names are unique.
    pub pools: Vec<Pool>,
    /// Kinds, in the order of the file. Names are unique; each names a pool in `pools`. Empty only where the program has
    /// handlers of its own.
    pub kinds: Vec<Kind>,
}

/// `[server]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Server {
    /// Addresses of the gRPC listener. Default 127.0.0.1:7070; port 0 lets the system choose. Never empty.
    #[serde(skip)]
    pub listen: Vec<ListenAddress>,
    /// Addresses of the operator's listener. Default 127.0.0.1:7071; port 0 lets the system choose. Never empty.
    #[serde(skip)]
    pub ops_listen: Vec<ListenAddress>,
    /// Whether other machines are served in plaintext. Default false.
    pub allow_plaintext: bool,
    /// Whether the operator's listener alone serves other machines in plaintext. Default false.
    pub ops_allow_plaintext: bool,
    /// Names by which the operator's listener may be called, beside `localhost` and addresses. Default none: on a loopback
    /// address no other name, elsewhere any.
    pub ops_hosts: Vec<String>,
    /// Networks of proxies whose connections begin with a PROXY header. Default none.
    #[serde(skip)]
    pub proxies: Vec<IpNet>,
    /// Networks of proxies that make connections of their own, without a PROXY header: `max_per_address` does not bound
    /// them. Default none.
    #[serde(skip)]
    pub http_proxies: Vec<IpNet>,
    /// Threads that serve connections. Default one per CPU; 1 to 256.
    pub threads: usize,
    /// Largest payload of one job, in bytes. Default 4 MiB.
    pub max_payload: usize,
    /// Most output that one unary result may hold, in bytes. Default 4 MiB less 64 KiB: with what is beside it in the
    /// message, it is within what a client takes that sets no limit of its own.
    pub max_output: usize,
    /// Jobs in flight on one `SubmitMany` call. Default 256; 1 to 65536.
    pub submit_many_window: usize,
    /// Whether each answer tells the load of the process in an ORCA trailer. Default false: it is 90 bytes.
    pub load_reports: bool,
    /// Origins of pages that may call by gRPC-Web, which also lets callers speak HTTP/1.1. Default none: gRPC-Web is off.
    pub grpc_web_origins: Vec<String>,
    /// TLS of the gRPC listeners of a network; none where it names no certificate.
    #[serde(skip)]
    pub tls: Option<TlsConfig>,
    /// How many connections there may be, and how long they last.
    #[serde(skip)]
    pub connections: ConnectionLimits,
    /// Bounds of HTTP/2 on one connection.
    #[serde(skip)]
    pub http2: Http2,
    /// `[server.memory]`: bounds of what unfinished messages and unread answers hold. `total` by default 256 MiB, or four
    /// payloads; `per_connection` 64 MiB, or two payloads, at most `total`; `stall` 10 s.
    #[serde(skip)]
    pub memory: MemoryLimits,
}

/// `[drain]`: the sum of the phases must fit the orchestrator's grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Drain {
    /// Time in which health says NOT_SERVING while jobs are still accepted. Default 5 s.
    pub notice: Duration,
    /// Time in which new jobs are refused while queued and running ones finish. Default 30 s.
    pub finish: Duration,
    /// Time for what still runs to stop before it is forced. Default 5 s.
    pub kill: Duration,
}

/// `[pool.NAME]`: a bulkhead with its own queue and workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Name, of the form `[a-z][a-z0-9_-]{0,62}`.
    pub name: String,
    /// `workers`, or `workers.min`: workers that the pool keeps. Default one per CPU; 1 to 65536. Of `min` the default is 1.
    pub workers: usize,
    /// `workers.max`: most workers, between which and the least the pool chooses by its load. As many as the least where
    /// `workers` is a number. Default one per CPU; 1 to 65536.
    pub max_workers: usize,
    /// Bounds of the queue.
    pub queue: Queue,
    /// What becomes of a job that meets a full queue. Default reject.
    pub when_full: WhenFull,
    /// Time between asking a job to stop and forcing it. Default 1 s.
    pub cancel_grace: Duration,
    /// Blocking workers that may be replaced while stuck. Default 4; 0 to 1024.
    pub max_stuck: usize,
    /// Most of the queue that one tenant may hold while another is present; 1 lets it have all. Default 0.25; above 0, at
    /// most 1.
    pub tenant_share: f64,
    /// Ended jobs that are remembered, for `waterwheel jobs` and `explain`, a share of each thread. Default 1024; 0 to 1048576.
    pub ended_jobs: usize,
}

/// `queue` of a pool.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Queue {
    /// Most jobs in the queue. Default 1024; 1 to 16777216.
    pub jobs: usize,
    /// Most bytes of payload in the queue; each worker holds one payload beside that. Default 64 MiB; at least
    /// `server.max_payload`.
    pub bytes: usize,
    /// Most callers that wait for room where `when_full` is wait. Default 1024; 0 to 16777216.
    pub waiting: usize,
}

/// `[kind.NAME]`: a handler under the name that callers use.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Name, of the form `[a-z][a-z0-9_-]{0,62}`.
    pub name: String,
    /// Pool that runs the jobs of this kind; always one of [`Config::pools`].
    pub pool: String,
    /// Bounds of its jobs. Without `max_output`, [`Server::max_output`] bounds a unary result, and nothing a stream, of
    /// which the server holds no more than a few chunks.
    pub options: KindOptions,
    /// What runs.
    pub handler: Handler,
}

/// What runs the jobs of a kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Handler {
    /// A handler that is part of this program.
    Builtin(Builtin),
    /// One process per job. The program was found and executable when the configuration was read.
    Exec(ExecCommand),
}
