//! The types of a valid configuration. Each value was checked, and its default filled in, by the table in `keys.rs`,
//! which also documents the keys; `settings.rs` fills in these types.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use ipnet::IpNet;
use serde::Deserialize;

use crate::detached::{KindPolicy, Schedule};
use crate::handler::{Builtin, ExecCommand, KindOptions, WorkerProgram};
use crate::memory::MemoryLimits;
use crate::model::{DeadlinePolicy, WhenFull};
use crate::net::{ConnectionLimits, Http2, ListenAddress, TlsConfig};
use crate::store::{Bounds, DatabaseUrl, PostgresOptions, SqliteOptions};
use crate::{auth, ops, telemetry};

/// The whole configuration: every value checked, every default of `keys.rs` filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Listeners and limits of one call.
    pub server: Server,
    /// Pages of the operator's listener.
    pub ops: ops::Options,
    /// Deadlines of jobs. The default is at most the maximum.
    pub deadline: DeadlinePolicy,
    /// Phases of the drain.
    pub drain: Drain,
    /// Authentication; `None` if it is off.
    pub auth: Option<auth::Config>,
    /// Quotas of tenants, over all pools.
    pub quota: auth::QuotaConfig,
    /// The store of detached jobs.
    pub store: Store,
    /// Jobs that recur, in the order of the file. Each names a kind.
    pub schedules: Vec<Schedule>,
    /// Logs and traces: the filter and the collector are known to parse.
    pub telemetry: telemetry::Config,
    /// Pools, in the order of the file. Names are unique.
    pub pools: Vec<Pool>,
    /// Kinds, in the order of the file. Names are unique; each names a pool in `pools`. Empty only if the program has
    /// Rust handlers.
    pub kinds: Vec<Kind>,
}

/// `[server]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Server {
    /// Addresses of the gRPC listener; port 0 lets the system choose. Never empty.
    #[serde(skip)]
    pub listen: Vec<ListenAddress>,
    /// Addresses of the operator's listener; port 0 lets the system choose. Never empty.
    #[serde(skip)]
    pub ops_listen: Vec<ListenAddress>,
    /// Whether other machines are served in plaintext.
    pub allow_plaintext: bool,
    /// Whether the operator's listener serves other machines in plaintext.
    pub ops_allow_plaintext: bool,
    /// Names by which the operator's listener may be called, beside `localhost` and addresses. With none, a loopback
    /// address takes `localhost` only, and other addresses take any name.
    pub ops_hosts: Vec<String>,
    /// Networks of proxies whose connections begin with a PROXY header.
    #[serde(skip)]
    pub proxies: Vec<IpNet>,
    /// Networks of proxies that open connections of their own, without a PROXY header. `max_per_address` does not bound
    /// them.
    #[serde(skip)]
    pub http_proxies: Vec<IpNet>,
    /// Threads that serve connections.
    pub threads: usize,
    /// Largest payload of one job, in bytes.
    pub max_payload: usize,
    /// Largest output of one unary result, in bytes. The default leaves room for the rest of the message within 4 MiB,
    /// the limit of most clients.
    pub max_output: usize,
    /// Jobs in flight on one `SubmitMany` call.
    pub submit_many_window: usize,
    /// Whether each answer reports the load of the process in an ORCA trailer, of 90 bytes.
    pub load_reports: bool,
    /// Origins of pages that may call by gRPC-Web, which also lets callers speak HTTP/1.1. Empty turns gRPC-Web off.
    pub grpc_web_origins: Vec<String>,
    /// TLS of the gRPC listeners; `None` without a certificate.
    #[serde(skip)]
    pub tls: Option<TlsConfig>,
    /// Bounds of the number and the age of connections.
    #[serde(skip)]
    pub connections: ConnectionLimits,
    /// Bounds of HTTP/2 on one connection.
    #[serde(skip)]
    pub http2: Http2,
    /// `[server.memory]`: bounds of incomplete messages and unread answers.
    #[serde(skip)]
    pub memory: MemoryLimits,
}

/// `[drain]`: the sum of the phases must fit the orchestrator's grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Drain {
    /// Time in which health says NOT_SERVING while jobs are still accepted.
    pub notice: Duration,
    /// Time in which new jobs are refused while queued and running ones finish.
    pub finish: Duration,
    /// Time that running jobs have to stop before they are forced.
    pub kill: Duration,
}

/// `[store]`: where detached jobs are. Without a path, a URL and `memory`, there are none.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Store {
    /// File of SQLite. Not beside a URL.
    pub path: Option<PathBuf>,
    /// Database of PostgreSQL.
    pub url: Option<DatabaseUrl>,
    /// File with the password for the database.
    pub password_file: Option<PathBuf>,
    /// Certificates that the one of the database is checked against.
    pub ca_file: Option<PathBuf>,
    /// Whether they are in memory if there is neither.
    pub memory: bool,
    /// Most jobs that have not ended.
    pub max_jobs: u64,
    /// Most bytes of payloads and outputs, those of ended jobs included.
    pub max_bytes: u64,
}

/// `[pool.NAME]`: a bulkhead with its own queue and workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Name, of the form `[a-z][a-z0-9_-]{0,62}`.
    pub name: String,
    /// `workers`, or `workers.min`: workers that the pool keeps.
    pub workers: usize,
    /// `workers.max`: the pool chooses the number of its workers between the two by its load. The same as the least
    /// where `workers` is a number.
    pub max_workers: usize,
    /// Bounds of the queue.
    pub queue: Queue,
    /// What happens to a job that finds the queue full.
    pub when_full: WhenFull,
    /// Time between asking a job to stop and forcing it.
    pub cancel_grace: Duration,
    /// Blocking workers that may be replaced while stuck.
    pub max_stuck: usize,
    /// Largest part of the queue for one tenant while another is present; 1 lets it have all.
    pub tenant_share: f64,
    /// Ended jobs that are remembered, for `waterwheel jobs` and `explain`, divided among the threads.
    pub ended_jobs: usize,
}

/// `queue` of a pool.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Queue {
    /// Most jobs in the queue.
    pub jobs: usize,
    /// Most payload bytes in the queue, at least `server.max_payload`. Each worker holds one payload beside that.
    pub bytes: usize,
    /// Most callers that wait for capacity where `when_full` is wait.
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
    /// Retries and retention of its detached jobs.
    pub policy: KindPolicy,
    /// Its handler.
    pub handler: Handler,
}

/// Handler of a kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Handler {
    /// A handler that is part of this program.
    Builtin(Builtin),
    /// One process per job. The program was found and executable when the configuration was read.
    Exec(ExecCommand),
    /// A program that stays. It was found and executable when the configuration was read.
    Program(WorkerProgram),
    /// Workers that attach from elsewhere.
    Remote {
        /// All such kinds of the pool.
        kinds: BTreeSet<String>,
        /// Time between asking a job to stop and giving it up.
        cancel_grace: Duration,
    },
}

impl Store {
    /// Whether there is one.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.path.is_some() || self.url.is_some() || self.memory
    }

    /// Most jobs and bytes.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        Bounds { max_jobs: self.max_jobs, max_bytes: self.max_bytes }
    }

    /// The file; `None` without a path.
    #[must_use]
    pub fn sqlite(&self) -> Option<SqliteOptions> {
        Some(SqliteOptions { bounds: self.bounds(), ..SqliteOptions::new(self.path.as_ref()?) })
    }

    /// The database; `None` without a URL.
    #[must_use]
    pub fn postgres(&self) -> Option<PostgresOptions> {
        let (password_file, ca_file) = (self.password_file.clone(), self.ca_file.clone());
        let options = PostgresOptions::new(self.url.clone()?);
        Some(PostgresOptions { password_file, ca_file, bounds: self.bounds(), ..options })
    }
}
