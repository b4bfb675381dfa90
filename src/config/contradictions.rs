//! Checks between keys: finds values that are valid alone, but not together. `values.rs` checks single values.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use serde::de::DeserializeOwned;

use super::{
    Warning,
    fault::closest,
    handler, keys_and_defaults, model, redact,
    value_type::{plain, size},
    values::Values,
};
use crate::{
    auth,
    model::Share,
    net::{ListenAddress, Tls, TlsFile},
    store,
};

/// Whether a configuration without a kind is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoKinds {
    Fault,
    /// The program has its own handlers.
    Fine,
}

/// Reports every contradiction. Keys whose value was already reported are ignored.
pub(super) fn report(values: &mut Values, no_kinds: NoKinds, env: &[(String, String)]) {
    report_listeners(values);
    report_deadlines(values);
    report_memory(values);
    report_tls(values);
    report_auth(values);
    report_store(values);
    report_burst(values, "quota");
    for tenant in values.names("quota.tenant") {
        report_burst(values, &format!("quota.tenant.{tenant}"));
    }
    if no_kinds == NoKinds::Fault {
        warn_of_unknown_names(values);
    }
    report_kinds(values, no_kinds, env);
    report_pools(values);
    report_schedules(values, no_kinds);
}

/// The keys that set up a store.
const STORES: [&str; 3] = ["store.path", "store.url", "store.memory"];

fn report_listeners(values: &mut Values) {
    let may = |key: &str| values.get::<bool>(key) != Some(false);
    let (any, ops) = (may("server.allow_plaintext"), may("server.ops_allow_plaintext"));
    let has_tls = ["server.tls.cert", "server.tls.key"].iter().all(|file| values.is_set(file));
    // The operators' listener has no TLS.
    for (keys, may_be_public, otherwise) in [
        (&["server.listen"][..], any || has_tls, "add [server.tls], or set `server.allow_plaintext = true`"),
        (&["server.ops_listen", "server.listen"], any || ops, "or set `server.ops_allow_plaintext = true`"),
    ] {
        let mut claimed = keys[1..].iter().flat_map(|key| model::addresses(values, key)).collect::<Vec<_>>();
        for address in model::addresses(values, keys[0]) {
            if claimed.iter().any(|other| overlap(other, &address)) {
                let message = format!("two listeners claim {address}");
                values.contradiction(keys, message, "give each listener an address of its own");
            }
            if !may_be_public && address.is_public() {
                let message = format!("`{}` is {address}, which would serve other machines in plaintext", keys[0]);
                let help = format!("listen on a loopback address or a Unix socket, {otherwise}");
                values.contradiction(&keys[..1], message, help);
            }
            claimed.push(address);
        }
    }
}

fn report_deadlines(values: &mut Values) {
    let [default, max, margin] = ["deadline.default", "deadline.max", "deadline.reply_margin"];
    report_more::<Duration>(values, default, "longer", max);
    if values.get::<Duration>(margin) >= values.get(default) {
        let message = format!("`{margin}` leaves nothing of `{default}`");
        values.contradiction(&[margin, default], message, format!("lower `{margin}` or raise `{default}`"));
    }
}

fn report_memory(values: &mut Values) {
    let [total, one] = ["server.memory.total", "server.memory.per_connection"];
    report_payload(values, total);
    report_payload(values, one);
    report_more::<u64>(values, one, "more", total);
}

/// Reports that `small` is more than `large`.
fn report_more<T: DeserializeOwned + PartialOrd>(values: &mut Values, small: &str, more: &str, large: &str) {
    if values.get::<T>(small) > values.get(large) {
        let help = format!("lower `{small}` or raise `{large}`");
        values.contradiction(&[small, large], format!("`{small}` is {more} than `{large}`"), help);
    }
}

/// The largest payload must fit in the queue and in the memory bounds.
fn report_payload(values: &mut Values, key: &str) {
    let [payload, bound] = ["server.max_payload", key].map(|key| values.get::<u64>(key).unwrap_or_default());
    if payload > bound {
        let [payload, bound] = [payload, bound].map(|bytes| plain(&size(bytes)));
        let message = format!("the largest payload is {payload}, and `{key}` is {bound}");
        let help = format!("raise `{key}` or lower `server.max_payload`");
        values.contradiction(&[key, "server.max_payload"], message, help);
    }
}

fn report_tls(values: &mut Values) {
    let [cert, key, ca] = ["server.tls.cert", "server.tls.key", "server.tls.client_ca"];
    report_lack(values, key, cert);
    report_lack(values, cert, key);
    if !values.is_set(key) {
        report_need(values, ca, &[cert]);
    }
    let Some(config) = model::tls(values) else { return };
    for error in Tls::open(config).err().into_iter().flat_map(|errors| errors.0) {
        let file = match error.file {
            TlsFile::Cert => cert,
            TlsFile::Key => key,
            TlsFile::ClientCa => ca,
        };
        values.contradiction(&[file], format!("`{file}`: {}", error.fault), error.fault.help(error.file));
    }
}

fn report_auth(values: &mut Values) {
    let [jwks, issuer, audience] = ["auth.jwt.jwks", "auth.jwt.issuer", "auth.jwt.audience"];
    report_lack(values, issuer, jwks);
    report_lack(values, audience, jwks);
    for key in [issuer, audience, "auth.jwt.tenant_claim"] {
        report_need(values, key, &[jwks]);
    }
    if let Some(error) = model::jwt(values).and_then(|jwt| auth::check_keys(&jwt).err()) {
        let help = "put the issuer's public keys there, as a JSON Web Key Set";
        values.contradiction(&[jwks], format!("`{jwks}`: {error}"), help);
    }
    let rules = values.names("auth.rule");
    for rule in &rules {
        let table = format!("auth.rule.{rule}");
        report_lack(values, &format!("{table}.principals"), &table);
        report_lack(values, &format!("{table}.rpcs"), &table);
    }
    let ways = [[jwks, issuer, audience], ["server.tls.client_ca", "server.tls.cert", "server.tls.key"]];
    let is_known = ways.iter().any(|keys| keys.iter().all(|key| values.is_set(key)));
    let is_tried = ways.iter().any(|keys| values.has(keys[0]));
    if is_known && rules.is_empty() && !values.is_faulty_within("auth") {
        let help = "add [auth.rule.NAME] with `principals` and `rpcs`";
        values.contradiction(&["auth"], "callers are authenticated, but no rule allows any call", help);
    }
    if !is_tried && !rules.is_empty() && !values.is_faulty_within("auth") {
        let help = "add `server.tls.client_ca` or [auth.jwt], or remove the rules";
        values.contradiction(&["auth.rule"], "there are rules for callers, but no way to authenticate them", help);
    }
}

/// Warns about kinds that a rule allows and nothing serves, and about quotas of tenants that no rule gives to a caller.
fn warn_of_unknown_names(values: &mut Values) {
    let kinds = values.names("kind");
    let list =
        |name: &str, key: &str| values.get::<Vec<String>>(&format!("auth.rule.{name}.{key}")).unwrap_or_default();
    let rules = values.names("auth.rule");
    let mut warnings = Vec::new();
    for rule in &rules {
        for kind in list(rule, "kinds") {
            let pattern = auth::Pattern::new(&kind);
            if !kinds.iter().any(|name| pattern.matches(name)) {
                let kind = redact::quote(&kind);
                let message = format!("`auth.rule.{rule}.kinds` has `{kind}`, but no such kind is configured");
                warnings.push((message, closest(&kind, &kinds).map(str::to_owned)));
            }
        }
    }
    let tenants: Option<Vec<String>> = rules
        .iter()
        .map(|rule| values.get(&format!("auth.rule.{rule}.tenant")).filter(|tenant| tenant != "*"))
        .collect();
    // Without rules, callers name their tenants.
    if let Some(tenants) = tenants.filter(|tenants| !tenants.is_empty()) {
        for tenant in values.names("quota.tenant").into_iter().filter(|tenant| !tenants.contains(tenant)) {
            let message = format!("`quota.tenant.{tenant}` is for a tenant that no rule names");
            warnings.push((message, closest(&tenant, &tenants).map(str::to_owned)));
        }
    }
    values.warnings.extend(warnings.into_iter().map(|(message, closest)| {
        let help =
            closest.map_or("correct the name, or remove it".to_owned(), |closest| format!("did you mean `{closest}`?"));
        Warning { message, help }
    }));
}

fn report_store(values: &mut Values) {
    let [path, url, password, ca] = ["store.path", "store.url", "store.password_file", "store.ca_file"];
    if values.is_set(path) && values.is_set(url) {
        values.contradiction(&[path, url], format!("`{path}` and `{url}` are two stores"), "keep one of the two");
    }
    report_need(values, password, &[url]);
    report_need(values, "store.listen_url", &[url]);
    report_need(values, ca, &[url]);
    let checks = [
        (password, values.get(password).and_then(|path: PathBuf| store::read_password(&path).err())),
        (ca, values.get(ca).and_then(|path: PathBuf| store::read_authorities(&path).err())),
    ];
    for (key, error) in checks {
        if let Some(error) = error {
            values.contradiction(&[key], format!("`{key}`: {error}"), "name a file that the server can read");
        }
    }
}

/// Reports that `path` is not set although `beside` is, which is a key or a table.
fn report_lack(values: &mut Values, path: &str, beside: &str) {
    if values.get::<toml::Value>(path).is_none() && values.has(beside) {
        let help = format!("add `{path} = {}`", keys_and_defaults::example(path));
        values.contradiction(&[beside, path], format!("`{path}` is not set"), help);
    }
}

/// Reports that `path` has no effect, if it is set and none of `needs` is.
fn report_need(values: &mut Values, path: &str, needs: &[&str]) {
    let is_there = |key: &&str| values.is_set(key) || values.is_faulty(key);
    if values.is_set(path) && !needs.iter().any(is_there) {
        let needs = needs.join("` or `");
        let message = format!("`{path}` has no effect without `{needs}`");
        values.contradiction(&[path], message, format!("set `{needs}`, or remove it"));
    }
}

fn report_burst(values: &mut Values, table: &str) {
    report_need(values, &format!("{table}.burst"), &[&format!("{table}.rate")]);
}

fn report_pools(values: &mut Values) {
    let pools = values.names("pool");
    let used: BTreeSet<String> = values.names("kind").iter().filter_map(|kind| pool_of(values, kind)).collect();
    for pool in &pools {
        let table = format!("pool.{pool}");
        let key = |key: &str| format!("{table}.{key}");
        report_payload(values, &key("queue.bytes"));
        report_more::<u64>(values, &key("workers.min"), "more", &key("workers.max"));
        let [when_full, waiting] = [key("when_full"), key("queue.waiting")];
        let waits = values.get::<String>(&when_full).is_some_and(|when_full| when_full == "wait");
        if waits && values.get::<u64>(&waiting) == Some(0) {
            let message = format!("`{when_full}` is \"wait\", and `{waiting}` is 0");
            let help = format!("raise `{waiting}`, or set `{when_full}` to \"reject\", \"shed\" or \"drop_oldest\"");
            values.contradiction(&[&waiting, &when_full], message, help);
        }
        report_remote(values, pool);
        // The name of a variable or a flag is probably misspelled.
        if !used.contains(pool) && !values.is_in_file(&table) {
            let add = format!("add [{table}] to the file");
            let help = meant(values, "pool", pool, &add).unwrap_or(format!("{add}, or a kind that uses it"));
            let message = format!("pool `{pool}` is not in the file, and no kind uses it");
            values.contradiction(&[&table], message, help);
        }
    }
}

/// Reports kinds without attached workers in a pool of remote kinds.
fn report_remote(values: &mut Values, pool: &str) {
    let kinds = values.kinds_of(pool).into_iter();
    let (remote, own): (Vec<_>, Vec<_>) =
        kinds.partition(|kind| values.get::<bool>(&format!("kind.{kind}.remote")) == Some(true));
    let [Some(remote), own] = [remote.first(), own.first()] else { return };
    let remote = format!("kind.{remote}.remote");
    if let Some(own) = own {
        let message = format!("pool `{pool}` has attached workers, but its kind `{own}` is not remote");
        let help = format!("give [kind.{own}] another pool, or `remote = true`");
        values.contradiction(&[&format!("kind.{own}"), &remote], message, help);
    }
    let workers = format!("pool.{pool}.workers");
    if values.has(&workers) {
        let message = format!("`{workers}` has no effect: the workers of the pool attach from elsewhere");
        values.contradiction(&[&workers, &remote], message, format!("remove `{workers}`"));
    }
}

fn report_kinds(values: &mut Values, no_kinds: NoKinds, env: &[(String, String)]) {
    let kinds = values.names("kind");
    if no_kinds == NoKinds::Fault && kinds.is_empty() && !values.is_faulty_within("kind") {
        let help = "add [kind.NAME]; `waterwheel config init` prints a file to start from";
        values.contradiction(&[], "no kinds are configured, so no job can run", help);
    }
    for kind in &kinds {
        let table = format!("kind.{kind}");
        let key = |key: &str| format!("{table}.{key}");
        for limit in [key("limit"), key("limit.per_key")] {
            report_burst(values, &limit);
        }
        let per_key = ["concurrency", "rate"].map(|bound| key(&format!("limit.per_key.{bound}")));
        report_need(values, &key("limit.per_key.keys"), &per_key.each_ref().map(String::as_str));
        report_share(values, &key("limit.share"));
        if !values.is_in_file(&table) && handler::keys_of(kind, values).is_empty() {
            let help = meant(values, "kind", kind, "give it `exec` or `builtin`")
                .unwrap_or(format!("add [{table}] to the file, or set its `exec` or `builtin` too"));
            values.contradiction(&[&table], format!("kind `{kind}` is not in the file"), help);
            continue;
        }
        handler::report(kind, values);
        report_pool_of(values, kind);
        handler::report_program(&table, "exec", values, env);
    }
    report_programs(values, &kinds, env);
}

/// Only servers that share a database know their number.
fn report_share(values: &mut Values, share: &str) {
    if values.get(share) == Some(Share::Divide) {
        report_need(values, share, &["store.url"]);
    }
}

fn report_programs(values: &mut Values, kinds: &[String], env: &[(String, String)]) {
    let programs = values.names("program");
    let mut used = BTreeSet::new();
    for kind in kinds {
        let key = format!("kind.{kind}.program");
        report_undeclared(values, &format!("kind `{kind}` is run by program"), &key, "program", " with its `command`");
        used.extend(values.get::<String>(&key));
    }
    for program in &programs {
        let table = format!("program.{program}");
        report_lack(values, &format!("{table}.command"), &table);
        handler::report_program(&table, "command", values, env);
        if !used.contains(program) && !values.is_faulty_within("kind") {
            let help = format!("add `program = \"{program}\"` to a [kind.NAME], or remove it");
            values.contradiction(&[&table], format!("program `{program}` runs no kind"), help);
        }
    }
}

fn report_schedules(values: &mut Values, no_kinds: NoKinds) {
    let has_store = STORES.iter().any(|key| values.is_set(key) || values.is_faulty(key));
    for schedule in values.names("schedule") {
        let table = format!("schedule.{schedule}");
        let kind = format!("{table}.kind");
        report_lack(values, &format!("{table}.cron"), &table);
        report_lack(values, &kind, &table);
        if no_kinds == NoKinds::Fault {
            report_undeclared(values, &format!("`{kind}` is"), &kind, "kind", "");
        }
        if !has_store {
            let message = format!("schedule `{schedule}` has no store to keep its jobs in");
            values.contradiction(&[&table], message, "add `store.path = \"waterwheel.db\"`");
        }
    }
}

fn report_pool_of(values: &mut Values, kind: &str) {
    let [table, key] = [format!("kind.{kind}"), format!("kind.{kind}.pool")];
    if pool_of(values, kind).is_none() {
        let help = "add `pool = \"NAME\"`, one of the [pool.NAME] sections";
        values.contradiction(&[&table, &key], format!("kind `{kind}` names no pool"), help);
    }
    report_undeclared(values, &format!("kind `{kind}` runs in pool"), &key, "pool", "");
}

/// Reports that the value of `key` names no section of `table`. `what` begins the message, and `more` ends the help.
fn report_undeclared(values: &mut Values, what: &str, key: &str, table: &str, more: &str) {
    let Some(name) = values.get::<String>(key) else { return };
    let section = format!("{table}.{name}");
    if values.names(table).contains(&name) || values.is_faulty(&section) || values.is_faulty(table) {
        return;
    }
    let add = format!("add [{section}]{more}");
    let help = meant(values, table, &name, &add).unwrap_or(add);
    values.contradiction(&[key], format!("{what} `{}`, which is not declared", redact::quote(&name)), help);
}

fn pool_of(values: &Values, kind: &str) -> Option<String> {
    values.get(&format!("kind.{kind}.pool"))
}

/// Help that suggests the most similar name that the file has in `table`, or else `otherwise`. `None` if none is
/// similar.
fn meant(values: &Values, table: &str, given: &str, otherwise: &str) -> Option<String> {
    let mut known = values.names(table);
    known.retain(|name| values.is_in_file(&format!("{table}.{name}")));
    closest(given, &known).map(|close| format!("did you mean `{close}`? else {otherwise}"))
}

/// Whether two listeners cannot have these addresses. Port 0 is never taken; an unspecified address takes its port on
/// all addresses.
fn overlap(a: &ListenAddress, b: &ListenAddress) -> bool {
    match (a, b) {
        (ListenAddress::Tcp(a), ListenAddress::Tcp(b)) => {
            let meet = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
            a.port() == b.port() && a.port() != 0 && meet
        }
        (ListenAddress::Unix { path: a, mode: _ }, ListenAddress::Unix { path: b, mode: _ }) => a == b,
        (a, b) => a == b,
    }
}
