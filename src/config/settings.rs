//! Builds the configuration of `model.rs` from valid values.

use std::num::NonZeroU32;

use super::{
    model::{Config, Handler, Kind, Pool, Server},
    program,
    values::Values,
};
use crate::{
    auth::{self, Jwt, Pattern, QuotaConfig, Rpc, Rpcs, Rule},
    detached::{KindPolicy, Schedule},
    handler::KindOptions,
    model::{KindLimits, Limit, Rate},
    net::{Http2, ListenAddress, TlsConfig},
};

/// All settings. The environment is for `pass_env`.
pub(super) fn read(values: &Values, env: &[(String, String)]) -> Config {
    let names = |table| values.names(table).into_iter().map(|(name, _)| name);
    Config {
        server: server(values),
        ops: values.section("ops"),
        deadline: values.section("deadline"),
        drain: values.section("drain"),
        auth: auth(values),
        quota: QuotaConfig {
            each: values.section("quota"),
            tenants: value(values, "quota.tenants"),
            named: names("quota.tenant")
                .map(|name| (name.clone(), values.section(&format!("quota.tenant.{name}"))))
                .collect(),
        },
        store: values.section("store"),
        schedules: names("schedule")
            .map(|name| Schedule { name: name.clone(), ..values.section(&format!("schedule.{name}")) })
            .collect(),
        telemetry: values.section("telemetry"),
        pools: names("pool").map(|name| pool(values, name)).collect(),
        kinds: names("kind").map(|name| kind(values, name, env)).collect(),
    }
}

/// Addresses of a key; none if they were reported.
pub(super) fn addresses(values: &Values, key: &str) -> Vec<ListenAddress> {
    parsed(&values.get::<Vec<String>>(key).unwrap_or_default())
}

/// `[server.tls]`, if it names its files.
pub(super) fn tls(values: &Values) -> Option<TlsConfig> {
    let is_whole = values.is_set("server.tls.cert") && values.is_set("server.tls.key");
    if !is_whole || values.is_faulty_within("server.tls") {
        return None;
    }
    let pages: Vec<String> = values.get("server.grpc_web_origins").unwrap_or_default();
    Some(TlsConfig { http1: !pages.is_empty(), ..values.section("server.tls") })
}

/// `[auth.jwt]`, if it is complete.
pub(super) fn jwt(values: &Values) -> Option<Jwt> {
    let is_whole = ["jwks", "issuer", "audience"].iter().all(|key| values.is_set(&format!("auth.jwt.{key}")));
    (is_whole && !values.is_faulty_within("auth.jwt")).then(|| values.section("auth.jwt"))
}

fn value<T: serde::de::DeserializeOwned>(values: &Values, path: &str) -> T {
    values.get(path).expect("a key with a default has a value")
}

/// Parses texts that were checked before.
fn parsed<T: std::str::FromStr>(texts: &[String]) -> Vec<T> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

fn server(values: &Values) -> Server {
    let networks = |key| parsed(&value::<Vec<String>>(values, key));
    Server {
        listen: addresses(values, "server.listen"),
        ops_listen: addresses(values, "server.ops_listen"),
        proxies: networks("server.proxies"),
        http_proxies: networks("server.http_proxies"),
        tls: tls(values),
        http2: Http2 {
            max_concurrent_streams: value(values, "server.max_concurrent_streams"),
            ..values.section("server.http2")
        },
        connections: values.section("server.connections"),
        memory: values.section("server.memory"),
        ..values.section("server")
    }
}

fn auth(values: &Values) -> Option<auth::Config> {
    let jwt = jwt(values);
    let has_client_ca = tls(values).is_some_and(|tls| tls.client_ca.is_some());
    let rules = values.names("auth.rule").into_iter().map(|(name, _)| rule(values, name)).collect();
    (jwt.is_some() || has_client_ca).then(|| auth::Config { jwt, rules, ops: value(values, "auth.ops") })
}

fn rule(values: &Values, name: String) -> Rule {
    let key = |key: &str| format!("auth.rule.{name}.{key}");
    let texts = |name| value::<Vec<String>>(values, &key(name));
    let rpcs = texts("rpcs").iter().fold(Rpcs::default(), |rpcs, name| match Rpc::named(name) {
        Some(rpc) => rpcs.with(rpc),
        None => Rpcs::ALL,
    });
    Rule {
        principals: parsed(&texts("principals")),
        rpcs,
        kinds: texts("kinds").iter().map(|kind| Pattern::new(kind)).collect(),
        tenant: values.get(&key("tenant")),
        max_criticality: value(values, &key("max_criticality")),
        may_shed: value(values, &key("may_shed")),
        name,
    }
}

fn pool(values: &Values, name: String) -> Pool {
    let key = |key: &str| format!("pool.{name}.{key}");
    let fixed: Option<usize> = values.get(&key("workers"));
    let bound = |bound: &str| fixed.unwrap_or_else(|| value(values, &key(bound)));
    Pool {
        workers: bound("workers.min"),
        max_workers: bound("workers.max"),
        queue: values.section(&key("queue")),
        when_full: value(values, &key("when_full")),
        cancel_grace: value(values, &key("cancel_grace")),
        max_stuck: value(values, &key("max_stuck")),
        tenant_share: value(values, &key("tenant_share")),
        ended_jobs: value(values, &key("ended_jobs")),
        name,
    }
}

fn kind(values: &Values, name: String, env: &[(String, String)]) -> Kind {
    let key = |key: &str| format!("kind.{name}.{key}");
    let pool: String = value(values, &key("pool"));
    let worker = values.get::<String>(&key("program")).and_then(|of| program::read_worker(&of, &pool, values, env));
    let handler = match (values.get(&key("builtin")), worker) {
        (Some(builtin), _) => Handler::Builtin(builtin),
        (None, Some(worker)) => Handler::Program(worker),
        (None, None) if values.has(&key("remote")) => Handler::Remote {
            kinds: values
                .names("kind")
                .into_iter()
                .map(|(kind, _)| kind)
                .filter(|kind| runs_in(values, kind, &pool))
                .collect(),
            cancel_grace: value(values, &format!("pool.{pool}.cancel_grace")),
        },
        (None, None) => Handler::Exec(program::read(&name, values, env).expect("a kind has a handler")),
    };
    let options = KindOptions {
        run_timeout: values.get(&key("run_timeout")),
        max_output: values.get(&key("max_output")),
        idempotent: value(values, &key("idempotent")),
        cancel_grace: None,
        limits: KindLimits {
            all: limit(values, &key("limit")),
            per_key: limit(values, &key("limit.per_key")),
            keys: values.get(&key("limit.per_key.keys")).unwrap_or(KindLimits::default().keys),
        },
    };
    let policy = KindPolicy {
        retry: values.section(&key("retry")),
        retain_for: value(values, &key("retain_for")),
        retain_dead_for: value(values, &key("retain_dead_for")),
    };
    Kind { pool, options, policy, handler, name }
}

fn runs_in(values: &Values, kind: &str, pool: &str) -> bool {
    values.get::<String>(&format!("kind.{kind}.pool")).as_deref() == Some(pool)
}

fn limit(values: &Values, table: &str) -> Limit {
    let rate = values.get::<f64>(&format!("{table}.rate"));
    let burst = values.get(&format!("{table}.burst"));
    Limit {
        concurrency: values.get(&format!("{table}.concurrency")),
        rate: rate.map(|rate| Rate::per_second(rate, burst.unwrap_or_else(|| tenth(rate)))),
    }
}

/// The starts of a tenth of a second, at least one: timers are inexact, and the starts that they delay must not be lost.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate in its range, over ten")]
fn tenth(rate: f64) -> NonZeroU32 {
    NonZeroU32::new((rate / 10.0) as u32).unwrap_or(NonZeroU32::MIN)
}
