//! Builds the configuration of `model.rs` from valid values.

use std::num::{NonZeroU32, NonZeroUsize};

use super::{
    handler,
    model::{Config, Kind, Pool, Server},
    values::Values,
};
use crate::{
    auth::{self, Jwt, Pattern, PrincipalPattern, QuotaConfig, Rpc, Rpcs, Rule},
    detached::Schedule,
    handler::KindOptions,
    model::{DeadlinePolicy, KindLimits, Limit, Rate},
    net::{Http2, ListenAddress, TlsConfig},
    pool,
};

/// All settings. `env` is the environment for `pass_env`.
pub(super) fn read(values: &Values, env: &[(String, String)]) -> Config {
    let names = |table| values.names(table).into_iter().map(|(name, _)| name);
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
    Some(TlsConfig { http1: !pages.is_empty(), ..values.section("server.tls") })
}

/// `[auth.jwt]`, if it is complete.
pub(super) fn jwt(values: &Values) -> Option<Jwt> {
    let is_whole = ["jwks", "issuer", "audience"].iter().all(|key| values.is_set(&format!("auth.jwt.{key}")));
    (is_whole && !values.is_faulty_within("auth.jwt")).then(|| values.section("auth.jwt"))
}

/// Parses texts that are known to be valid.
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
    let rules = values.names("auth.rule").into_iter().map(|(name, _)| rule(values, name)).collect();
    (jwt.is_some() || has_client_ca).then(|| auth::Config { jwt, rules, ops: values.required("auth.ops") })
}

fn rule(values: &Values, name: String) -> Rule {
    let key = |key: &str| format!("auth.rule.{name}.{key}");
    let texts = |name| values.required::<Vec<String>>(&key(name));
    let rpcs = texts("rpcs").iter().fold(Rpcs::default(), |rpcs, name| match Rpc::named(name) {
        Some(rpc) => rpcs.with(rpc),
        None => Rpcs::ALL,
    });
    Rule {
        principals: texts("principals").iter().filter_map(|text| PrincipalPattern::parse(text)).collect(),
        rpcs,
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
        },
        ..values.section(&table)
    };
    Kind { pool, options, policy: values.section(&table), handler, name }
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
