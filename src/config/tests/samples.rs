//! The starter file, the documented keys (docs/configuration.md, docs/exec.md), and the effect of each key on the settings.

use super::{FINE, Setting, ok, starter};
use crate::{
    config::{
        handler::EXEC_KEYS,
        keys_and_defaults::{KEYS, Key},
        value_type::{Syntax, ValueType, duration, plain, size},
    },
    model::WhenFull,
};

#[test]
fn the_starter_has_two_pools_and_every_builtin() {
    let config = ok(&starter::text(), &[], &[]).config;
    let pools =
        config.pools.iter().map(|pool| (pool.name.as_str(), pool.settings.workers.get(), pool.settings.queue_jobs));
    assert_eq!(pools.collect::<Vec<_>>(), [("cpu", 3, 64), ("io", 64, 1024)]);
    assert_eq!(config.pools[1].settings.when_full, WhenFull::Wait);
    let kinds = config.kinds.iter().map(|kind| (kind.name.as_str(), kind.pool.as_str()));
    let expected = [("sha256", "cpu"), ("gzip", "cpu"), ("sleep", "io"), ("echo", "io")];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

#[test]
fn the_starter_comments_out_every_default_as_it_is() {
    // After one `#`, a line of TOML shows a default. After two, it shows an example of a key without a default.
    let spelled: String = starter::text()
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(key) if key.contains(" = ") => format!("{key}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let spelled = ok(&spelled, &[], &[]);
    let silent = ok(&starter::text(), &[], &[]);
    assert_eq!(spelled.config, silent.config);
    let left_at_default = |settings: &[Setting]| {
        let shown = settings.iter().filter(|setting| {
            let path = &setting.path;
            !path.starts_with("kind.") && !path.starts_with("pool.io.")
        });
        let shown = shown.filter(|setting| setting.value.is_some());
        let at_default = shown.filter(|setting| setting.origin == super::Origin::Default);
        at_default.map(|setting| setting.path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(left_at_default(&spelled.settings), Vec::<String>::new());
}

#[test]
fn the_examples_of_the_starter_load() {
    let dir = super::security::files();
    let mut examples = starter::text().replace("## ", "").replace("/usr/bin/convert", "/bin/sh");
    for (named, file) in [
        ("tls.crt", "tls.crt"),
        ("tls.key", "tls.key"),
        ("clients.crt", "tls.crt"),
        ("jwks.json", "jwks.json"),
        ("database.crt", "tls.crt"),
        ("database.password", "jwks.json"),
    ] {
        let path = dir.path().join(file);
        examples = examples.replace(&format!("\"{named}\""), &format!("{path:?}"));
    }
    // Only one store may be configured: this keeps the database.
    let examples = examples.replace("path = \"waterwheel.db\"", "# ");
    let config = ok(&examples, &[("HOME", "/root")], &[]).config;
    let rule = &config.auth.as_ref().expect("callers are known").rules[0];
    assert_eq!((rule.name.as_str(), rule.principals.len(), rule.tenant.as_deref()), ("web", 3, Some("web")));
    assert_eq!(config.quota.named.len(), 1);
    assert_eq!(config.telemetry.otlp.as_deref(), Some("http://127.0.0.1:4317"));
    let kind = config.kinds.last().expect("the starter has kinds");
    assert_eq!((kind.name.as_str(), kind.options.max_output), ("thumbnail", Some(16 << 20)));
}

/// What a key takes, for readers.
fn describe(value_type: ValueType) -> String {
    let of = |syntax| match syntax {
        Syntax::OneOf(names) => format!("`{}`", names.join("`, `")),
        Syntax::Parsed(what, _) => what.to_owned(),
    };
    match value_type {
        ValueType::Boolean | ValueType::Command | ValueType::Secret => value_type.expected().to_owned(),
        ValueType::Count(high) => format!("1 to {high}, or `\"cpus\"`"),
        ValueType::Integer(low, high) => format!("{low} to {high}"),
        ValueType::Number(low, high) => format!("{low} to {high}"),
        ValueType::Share => "above 0, at most 1".to_owned(),
        ValueType::Size(low, high) => format!("{} to {}", plain(&size(low)), plain(&size(high))),
        ValueType::Duration(low, high) => format!("{} to {}", plain(&duration(low)), plain(&duration(high))),
        ValueType::Text(syntax) => of(syntax),
        ValueType::Texts(syntax) => format!("array; each {}", of(syntax)),
        ValueType::OneOrMore(syntax) => format!("one or an array; each {}", of(syntax)),
        ValueType::Path => "a path".to_owned(),
    }
}

fn row(key: &Key) -> String {
    let path = key.path.replace(".*", ".NAME");
    let default = key.default.map_or_else(String::new, |default| format!("`{}`", default.replace('\'', "\"")));
    format!("| `{path}` | {} | {default} | {} |\n", describe(key.takes), key.doc())
}

/// `WATERWHEEL_WRITE_DOCS=1 cargo test documented` writes the table.
#[test]
#[expect(clippy::disallowed_methods, reason = "a run of the tests may be asked to write the table")]
fn the_documented_keys_are_those_of_the_table() {
    const BEGIN: &str = "| key | takes | default | what it is for |\n|---|---|---|---|\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("there is a table of keys");
    let after = rest.find("\n\n").map_or("", |end| &rest[end + 1..]);
    let table: String = KEYS.iter().map(row).collect();
    let whole = format!("{before}{BEGIN}{table}{after}");
    if std::env::var_os("WATERWHEEL_WRITE_DOCS").is_some() {
        std::fs::write(path, &whole).unwrap();
    }
    assert!(text == whole, "run `WATERWHEEL_WRITE_DOCS=1 cargo test documented` and look at the difference");
}

#[test]
fn every_key_of_exec_is_documented() {
    let documented = include_str!("../../../docs/exec.md");
    for key in EXEC_KEYS {
        assert!(documented.contains(&format!("\n{key} = ")), "docs/exec.md does not document {key}");
    }
}

/// A key without a field in the settings would be accepted, and have no effect. Keys that can be changed alone are tried.
#[test]
fn changing_a_default_changes_the_settings() {
    let program = "[program.worker]\ncommand = [\"/bin/sh\"]\n[kind.work]\npool = \"base\"\nprogram = \"worker\"\n";
    let file = format!("{FINE}[kind.exec]\npool = \"base\"\nexec = [\"/bin/sh\"]\n{program}");
    let with = |key: &str, value: &str| ok(&file, &[], &[("--set", key, value)]).config;
    let other = |key: &Key| match key.takes {
        ValueType::Boolean => Some(if key.default == Some("true") { "false" } else { "true" }.to_owned()),
        ValueType::Integer(low, high) | ValueType::Count(low @ high) => Some((low.max(2)).min(high).to_string()),
        ValueType::Share => Some("0.5".to_owned()),
        ValueType::Duration(_, high) => Some(format!("{}ms", high.as_millis().min(31_000))),
        ValueType::Text(Syntax::OneOf(names)) => names.last().map(|name| (*name).to_owned()),
        _ => None,
    };
    let base = ok(&file, &[], &[]).config;
    for key in
        KEYS.iter().filter(|key| !key.path.contains("tls") && !key.path.starts_with("auth") && key.default.is_some())
    {
        let is_of_exec = key.segment(2).is_some_and(|name| EXEC_KEYS.contains(&name));
        let kind = if is_of_exec { "kind.exec" } else { "kind.echo" };
        let path =
            key.path.replace("pool.*", "pool.base").replace("kind.*", kind).replace("program.*", "program.worker");
        if let Some(value) = other(key).filter(|_| !path.contains('*')) {
            assert_ne!(with(&path, &value), base, "{path} = {value}");
        }
    }
}
