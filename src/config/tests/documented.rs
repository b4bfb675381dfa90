//! The table of keys in docs/configuration.md, and the ways from the table to the settings.

use super::{FINE, ok};
use crate::config::{
    keys::{KEYS, Key, OF_PROGRAMS},
    value_type::{Syntax, ValueType, duration, plain, size},
};

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

/// A key that no field of the settings has would be read, and have no effect.
#[test]
fn every_key_has_an_effect() {
    let program = "[program.worker]\ncommand = [\"/bin/sh\"]\n[kind.work]\npool = \"base\"\nprogram = \"worker\"\n";
    let file = format!("{FINE}[kind.program]\npool = \"base\"\nexec = [\"/bin/sh\"]\n{program}");
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
        let is_of_program = key.segment(2).is_some_and(|name| OF_PROGRAMS.contains(&name));
        let kind = if is_of_program { "kind.program" } else { "kind.echo" };
        let path =
            key.path.replace("pool.*", "pool.base").replace("kind.*", kind).replace("program.*", "program.worker");
        if let Some(value) = other(key).filter(|_| !path.contains('*')) {
            assert_ne!(with(&path, &value), base, "{path} = {value}");
        }
    }
}
