//! The types of a valid configuration. The table in `keys_and_defaults.rs` documents the keys, checks the values, and fills in the
//! defaults; `settings.rs` builds these types.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use ipnet::IpNet;
use serde::Deserialize;

use crate::detached::Schedule;
use crate::handler::{Builtin, ExecCommand, KindOptions, WorkerProgram};
use crate::memory::MemoryLimits;
use crate::model::DeadlinePolicy;
use crate::net::{ConnectionLimits, Http2, ListenAddress, TlsConfig};
use crate::store::{Bounds, DatabaseUrl, KindPolicy, PostgresOptions, SqliteOptions};
use crate::{auth, ops, pool, telemetry};

/// The whole configuration: every value is checked, and every default is filled in.
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
    /// Recurring jobs, in the order of the file. Each names a kind.
    pub schedules: Vec<Schedule>,
    /// Logs and traces. The filter and the collector address are valid.
    pub telemetry: telemetry::Config,
    /// Pools, in the order of the file. Names are unique.
    pub pools: Vec<Pool>,
    /// Kinds, in the order of the file. Names are unique; each kind names a pool in `pools`. Empty only if the program
    /// has Rust handlers.
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
    /// Whether the server accepts plaintext connections from other machines.
    pub allow_plaintext: bool,
    /// Whether the operators' listener accepts plaintext connections from other machines.
    pub ops_allow_plaintext: bool,
    /// Accepted host names of the operators' listener, besides `localhost` and IP addresses. If empty, a loopback
    /// address accepts only `localhost`, and other addresses accept any name.
    pub ops_hosts: Vec<String>,
    /// Networks of proxies whose connections begin with a PROXY header.
    #[serde(skip)]
    pub proxies: Vec<IpNet>,
    /// Networks of proxies that open connections of their own, without a PROXY header. `max_per_address` does not limit
    /// them.
    #[serde(skip)]
    pub http_proxies: Vec<IpNet>,
    /// Threads that serve connections.
    pub threads: usize,
    /// Largest payload of one job, in bytes.
    pub max_payload: usize,
    /// Largest output of one unary result, in bytes. The default leaves space for the rest of the message within 4 MiB,
    /// the limit of most clients.
    pub max_output: usize,
    /// Jobs in flight on one `SubmitMany` call.
    pub submit_many_window: usize,
    /// Whether each answer reports the load of the process, in an ORCA trailer of 90 bytes.
    pub load_reports: bool,
    /// Origins of pages that may call by gRPC-Web, which also allows HTTP/1.1. If empty, gRPC-Web is off.
    pub grpc_web_origins: Vec<String>,
    /// TLS of the gRPC listeners; `None` without a certificate.
    #[serde(skip)]
    pub tls: Option<TlsConfig>,
    /// Limits of the number and the age of connections.
    pub connections: ConnectionLimits,
    /// HTTP/2 limits of one connection.
    pub http2: Http2,
    /// `[server.memory]`: memory bounds of incomplete messages and unread answers.
    pub memory: MemoryLimits,
}

/// `[drain]`: the sum of the phases must fit in the orchestrator's grace period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Drain {
    /// Time in which health is NOT_SERVING while jobs are still accepted.
    pub notice: Duration,
    /// Time in which new jobs are refused while queued and running ones finish.
    pub finish: Duration,
    /// Time that running jobs have to stop before they are forced.
    pub kill: Duration,
}

/// `[store]`: the store of detached jobs. Without a path, a URL and `memory`, there is none.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Store {
    /// SQLite file. Not allowed with a URL.
    pub path: Option<PathBuf>,
    /// PostgreSQL database.
    pub url: Option<DatabaseUrl>,
    /// File with the password for the database.
    pub password_file: Option<PathBuf>,
    /// Certificate authorities that may sign the database's certificate.
    pub ca_file: Option<PathBuf>,
    /// Whether jobs are kept in memory if there is no path and no URL.
    pub memory: bool,
    /// Most jobs and bytes.
    #[serde(flatten)]
    pub bounds: Bounds,
}

/// `[pool.NAME]`: a bulkhead with its own queue and workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Name, of the form `[a-z][a-z0-9_-]{0,62}`.
    pub name: String,
    /// Its settings, including those of the server that apply to every pool.
    pub settings: pool::Settings,
}

/// `[kind.NAME]`: a handler, and the name by which callers use it.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Name, of the form `[a-z][a-z0-9_-]{0,62}`.
    pub name: String,
    /// Pool that runs the jobs of this kind; always one of [`Config::pools`].
    pub pool: String,
    /// Limits of its jobs. Without `max_output`, [`Server::max_output`] limits a unary result. A stream then has no
    /// limit, because the server buffers only a few chunks.
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
    /// One process per job. The program existed and was executable when the configuration was read.
    Exec(ExecCommand),
    /// A long-running program. It existed and was executable when the configuration was read.
    Program(WorkerProgram),
    /// Attached workers.
    Remote {
        /// All remote kinds of the pool.
        kinds: BTreeSet<String>,
        /// Time between asking a job to stop and giving it up.
        cancel_grace: Duration,
    },
}

impl Store {
    /// Whether there is a store.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.path.is_some() || self.url.is_some() || self.memory
    }

    /// The file; `None` without a path.
    #[must_use]
    pub fn sqlite(&self) -> Option<SqliteOptions> {
        Some(SqliteOptions { bounds: self.bounds, ..SqliteOptions::new(self.path.as_ref()?) })
    }

    /// The database; `None` without a URL.
    #[must_use]
    pub fn postgres(&self) -> Option<PostgresOptions> {
        let (password_file, ca_file) = (self.password_file.clone(), self.ca_file.clone());
        let options = PostgresOptions::new(self.url.clone()?);
        Some(PostgresOptions { password_file, ca_file, bounds: self.bounds, ..options })
    }
}
