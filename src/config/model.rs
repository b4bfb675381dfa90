//! The types of a valid configuration, and how they are built from valid values. The table in `keys_and_defaults.rs`
//! documents the keys, checks the values, and fills in the defaults.

use std::{
    collections::BTreeSet,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use ipnet::IpNet;
use serde::Deserialize;

use super::{handler, values::Values};
use crate::{
    auth::{self, Jwt, Pattern, PrincipalPattern, QuotaConfig, Rpc, Rule},
    detached::Schedule,
    handler::{Builtin, ExecCommand, IdleLeave, KindOptions, WorkerProgram},
    memory::MemoryLimits,
    model::{DeadlinePolicy, KindLimits, Limit, Rate},
    net::{ConnectionLimits, Http2, ListenAddress, TlsConfig},
    ops, pool,
    store::{Bounds, DatabaseUrl, KindPolicy, PostgresOptions, SqliteOptions},
    telemetry,
};

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
    pub quota: QuotaConfig,
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
    /// Whether callers may call by HTTP and JSON, which also allows HTTP/1.1.
    pub json: bool,
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
    /// PostgreSQL database, or a pooler in front of it.
    pub url: Option<DatabaseUrl>,
    /// The database itself, to listen to other replicas.
    pub listen_url: Option<DatabaseUrl>,
    /// Whether statements are prepared once for each connection.
    pub prepared: bool,
    /// File with the password for the database.
    pub password_file: Option<PathBuf>,
    /// Certificate authorities that may sign the database's certificate.
    pub ca_file: Option<PathBuf>,
    /// Whether jobs are kept in memory if there is no path and no URL.
    pub memory: bool,
    /// Maximum number of jobs and bytes.
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
        /// When those that idle leave.
        idle_leave: Option<IdleLeave>,
    },
}

impl Store {
    /// Whether there is a store.
    pub fn is_some(&self) -> bool {
        self.path.is_some() || self.url.is_some() || self.memory
    }

    /// The file; `None` without a path.
    pub fn sqlite(&self) -> Option<SqliteOptions> {
        Some(SqliteOptions { bounds: self.bounds, ..SqliteOptions::new(self.path.as_ref()?) })
    }

    /// The database; `None` without a URL.
    pub fn postgres(&self) -> Option<PostgresOptions> {
        Some(PostgresOptions {
            listen_url: self.listen_url.clone(),
            prepared: self.prepared,
            password_file: self.password_file.clone(),
            ca_file: self.ca_file.clone(),
            bounds: self.bounds,
            ..PostgresOptions::new(self.url.clone()?)
        })
    }
}

/// All settings. `env` is the environment for `pass_env`.
pub(super) fn read(values: &Values, env: &[(String, String)]) -> Config {
    let names = |table| values.names(table).into_iter();
    let server = server(values);
    let deadline = values.section("deadline");
    Config {
        ops: values.section("ops"),
        deadline,
        drain: values.section("drain"),
        auth: auth(values),
        quota: QuotaConfig {
            each: values.section("quota"),
            tenants: values.required("quota.tenants"),
            named: names("quota.tenant")
                .map(|name| (name.clone(), values.section(&format!("quota.tenant.{name}"))))
                .collect(),
        },
        store: values.section("store"),
        schedules: names("schedule")
            .map(|name| Schedule { name: name.clone(), ..values.section(&format!("schedule.{name}")) })
            .collect(),
        telemetry: values.section("telemetry"),
        pools: names("pool").map(|name| pool(values, name, &server, deadline)).collect(),
        kinds: names("kind").map(|name| kind(values, name, env)).collect(),
        server,
    }
}

/// The addresses of a key; empty if they were reported.
pub(super) fn addresses(values: &Values, key: &str) -> Vec<ListenAddress> {
    parsed(&values.get::<Vec<String>>(key).unwrap_or_default())
}

/// `[server.tls]`, if both of its files are set.
pub(super) fn tls(values: &Values) -> Option<TlsConfig> {
    let is_whole = values.is_set("server.tls.cert") && values.is_set("server.tls.key");
    if !is_whole || values.is_faulty_within("server.tls") {
        return None;
    }
    let pages: Vec<String> = values.get("server.grpc_web_origins").unwrap_or_default();
    let http1 = !pages.is_empty() || values.required("server.json");
    Some(TlsConfig { http1, ..values.section("server.tls") })
}

/// `[auth.jwt]`, if it is complete.
pub(super) fn jwt(values: &Values) -> Option<Jwt> {
    let is_whole = ["jwks", "issuer", "audience"].iter().all(|key| values.is_set(&format!("auth.jwt.{key}")));
    (is_whole && !values.is_faulty_within("auth.jwt")).then(|| values.section("auth.jwt"))
}

/// Parses texts that were checked.
fn parsed<T: std::str::FromStr>(texts: &[String]) -> Vec<T> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

fn server(values: &Values) -> Server {
    let networks = |key| parsed(&values.required::<Vec<String>>(key));
    let read: Server = values.section("server");
    Server {
        listen: addresses(values, "server.listen"),
        ops_listen: addresses(values, "server.ops_listen"),
        proxies: networks("server.proxies"),
        http_proxies: networks("server.http_proxies"),
        tls: tls(values),
        http2: Http2 { max_concurrent_streams: values.required("server.max_concurrent_streams"), ..read.http2 },
        ..read
    }
}

fn auth(values: &Values) -> Option<auth::Config> {
    let jwt = jwt(values);
    let has_client_ca = tls(values).is_some_and(|tls| tls.client_ca.is_some());
    let rules = values.names("auth.rule").into_iter().map(|name| rule(values, name)).collect();
    (jwt.is_some() || has_client_ca).then(|| auth::Config { jwt, rules, ops: values.required("auth.ops") })
}

fn rule(values: &Values, name: String) -> Rule {
    let key = |key: &str| format!("auth.rule.{name}.{key}");
    let texts = |name| values.required::<Vec<String>>(&key(name));
    Rule {
        principals: texts("principals").iter().filter_map(|text| PrincipalPattern::parse(text)).collect(),
        rpcs: texts("rpcs").iter().flat_map(|name| Rpc::named(name)).collect(),
        kinds: texts("kinds").iter().map(|kind| Pattern::new(kind)).collect(),
        tenant: values.get(&key("tenant")),
        max_criticality: values.required(&key("max_criticality")),
        may_shed: values.required(&key("may_shed")),
        name,
    }
}

fn pool(values: &Values, name: String, server: &Server, deadline: DeadlinePolicy) -> Pool {
    let key = |key: &str| format!("pool.{name}.{key}");
    let fixed = values.get(&key("workers"));
    let [workers, max]: [NonZeroUsize; 2] =
        ["workers.min", "workers.max"].map(|bound| fixed.unwrap_or_else(|| values.required(&key(bound))));
    let settings = pool::Settings {
        workers,
        max_workers: Some(max).filter(|max| *max > workers),
        queue_jobs: values.required(&key("queue.jobs")),
        queue_bytes: values.required(&key("queue.bytes")),
        queue_waiting: values.required(&key("queue.waiting")),
        when_full: values.required(&key("when_full")),
        tenant_share: values.required(&key("tenant_share")),
        cancel_grace: values.required(&key("cancel_grace")),
        max_stuck: values.required(&key("max_stuck")),
        ended_jobs: values.required(&key("ended_jobs")),
        recorded_jobs: values.required(&key("recorded_jobs")),
        stale_after: values.get(&key("stale_after")),
        slow_poll: values.required("telemetry.slow_poll"),
        max_payload: server.max_payload,
        max_output: server.max_output,
        deadline,
        shards: server.threads,
    };
    Pool { name, settings }
}

fn kind(values: &Values, name: String, env: &[(String, String)]) -> Kind {
    let table = format!("kind.{name}");
    let key = |key: &str| format!("{table}.{key}");
    let pool: String = values.required(&key("pool"));
    let handler = handler::read(&name, &pool, values, env);
    let options = KindOptions {
        limits: KindLimits {
            all: limit(values, &key("limit")),
            per_key: limit(values, &key("limit.per_key")),
            keys: values.get(&key("limit.per_key.keys")).unwrap_or(KindLimits::default().keys),
            share: values.get(&key("limit.share")).unwrap_or_default(),
        },
        ..values.section(&table)
    };
    let has_key_limit = options.limits.per_key.is_set();
    let policy = KindPolicy { has_key_limit, ..values.section(&table) };
    Kind { pool, options, policy, handler, name }
}

fn limit(values: &Values, table: &str) -> Limit {
    let rate = values.get::<f64>(&format!("{table}.rate"));
    let burst = values.get(&format!("{table}.burst"));
    Limit {
        concurrency: values.get(&format!("{table}.concurrency")),
        rate: rate.map(|rate| Rate::per_second(rate, burst.unwrap_or_else(|| tenth(rate)))),
    }
}

/// The burst for `rate`: the starts of a tenth of a second, at least one. Timers are inexact, and delayed starts must
/// not be lost.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate in its range, over ten")]
fn tenth(rate: f64) -> NonZeroU32 {
    NonZeroU32::new((rate / 10.0) as u32).unwrap_or(NonZeroU32::MIN)
}
