//! Tables of cases, and what they are checked with. Files that are shown to users, and the keys in
//! docs/configuration.md.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use super::*;
use crate::{
    config::{
        handler::EXEC_KEYS,
        keys_and_defaults::{KEYS, Key},
        value_type::{Syntax, ValueType, duration, plain, size},
    },
    handler::Builtin,
    model::WhenFull,
};

mod origins;
mod secrets;
mod security;
mod written;

/// A pool and a kind that are fine, so that a case shows only its own faults.
const FINE: &str = "
[pool.base]
[kind.echo]
pool = \"base\"
builtin = \"echo\"
";

/// The flags of the table.
const FLAGS: [&str; 4] = ["--listen", "--ops-listen", "--max-payload", "--set"];

/// What goes in, and the report that comes out.
struct Case {
    file: &'static str,
    env: &'static [(&'static str, &'static str)],
    flags: &'static [(&'static str, &'static str, &'static str)],
    faults: &'static str,
}

impl Case {
    const NONE: Self = Self { file: "", env: &[], flags: &[], faults: "" };

    fn load(&self) -> Result<Loaded, Faults> {
        load(&sources(&format!("{}{FINE}", self.file), self.env, self.flags))
    }
}

/// Every case reports exactly its faults, as a terminal shows them. `FINE` follows the file of each.
fn check(cases: &[Case]) {
    for case in cases {
        let faults = case.load().expect_err(case.file).to_string();
        let lines: Vec<&str> = faults.lines().map(str::trim_end).collect();
        assert_eq!(lines.join("\n"), case.faults.trim_matches('\n'), "{}", case.file);
    }
}

/// The cases of the table: variables and flags behind `$`, the lines of a file, and the faults behind `>`.
///
/// `FINE` follows each file.
#[test]
fn every_fault_says_where_it_is_and_what_to_do() {
    let (mut input, mut expected) = (Vec::new(), Vec::new());
    let table = include_str!("tests/faults.txt").lines().filter(|line| !line.starts_with("## "));
    for line in table.chain([""]) {
        if line.starts_with('>') {
            expected.push(line);
            continue;
        }
        if !expected.is_empty() {
            assert_eq!(faults(&input), expected, "{input:?}");
            input.clear();
            expected.clear();
        }
        input.push(line);
    }
}

/// The faults of a case: their places, what is wrong, and what to do.
fn faults(input: &[&str]) -> Vec<String> {
    let (set, file): (Vec<&str>, Vec<&str>) = input.iter().partition(|line| line.starts_with("$ "));
    let (mut env, mut flags) = (Vec::new(), Vec::new());
    for (name, value) in set.iter().filter_map(|line| line[2..].split_once('=')) {
        match name.split_once(' ') {
            Some((flag, key)) => {
                flags.push((FLAGS.into_iter().find(|known| *known == flag).expect(flag), key, value));
            }
            None => env.push((name, value)),
        }
    }
    let file = file.join("\n");
    let faults = load(&sources(&format!("{file}{FINE}"), &env, &flags)).expect_err(&file).to_json();
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let place = |place: &serde_json::Value| {
        let source = place.get("name").map_or_else(|| place["line"].to_string(), text);
        format!("{source}:{}", place["column"])
    };
    let brief = |fault: &serde_json::Value| {
        let places: Vec<_> = fault["places"].as_array().expect("a list").iter().map(place).collect();
        let what = format!("> {} {}", places.join(" "), text(&fault["message"]));
        [what, format!("> = {}", text(&fault["help"]))]
    };
    faults.as_array().expect("a list").iter().flat_map(brief).collect()
}

fn sources(text: &str, env: &[(&str, &str)], flags: &[(&'static str, &str, &str)]) -> Sources {
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let flag = |(flag, key, value): &(&'static str, &str, &str)| Flag {
        flag,
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    Sources {
        file: Some(SourceFile { name: "ww.toml".to_owned(), text: text.to_owned() }),
        env: env.iter().map(pair).collect(),
        flags: flags.iter().map(flag).collect(),
        cpus: 3,
    }
}

fn ok(text: &str, env: &[(&str, &str)], flags: &[(&'static str, &str, &str)]) -> Loaded {
    let loaded = load(&sources(text, env, flags));
    loaded.unwrap_or_else(|faults| panic!("{faults}"))
}

#[test]
fn a_report_shows_each_place_in_its_source() {
    check(CASES);
}

const CASES: &[Case] = &[
    Case {
        file: r#"[drain]
kill = "1s"
kill = "2s"
[drain]
"#,
        faults: r#"
error: not valid TOML: duplicate key
 --> ww.toml:3:1
  |
3 | kill = "2s"
  | ^^^^
  |
  = help: merge the two, or remove one

error: not valid TOML: duplicate key
 --> ww.toml:4:2
  |
4 | [drain]
  |  ^^^^^
  |
  = help: merge the two, or remove one
"#,
        ..Case::NONE
    },
    Case {
        file: "[pool.cpu]
workers = { min = 16, max = 2 }",
        faults: r#"
error: `pool.cpu.workers.min` is more than `pool.cpu.workers.max`
 --> ww.toml:2:19
  |
2 | workers = { min = 16, max = 2 }
  |                   ^^        -
  |
  = help: lower `pool.cpu.workers.min` or raise `pool.cpu.workers.max`
"#,
        ..Case::NONE
    },
    Case {
        env: &[("WATERWHEEL_POOL__BASE__WORKERS", "eight")],
        faults: r#"
error: `pool.base.workers`: `eight` is not a whole number or "cpus"
--> environment:1:32
 |
 | WATERWHEEL_POOL__BASE__WORKERS=eight
 |                                ^^^^^
 |
 = help: write it like `8`
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[server]
listen = "127.0.0.1:1""#,
        flags: &[("--ops-listen", "server.ops_listen", "127.0.0.1:1")],
        faults: r#"
error: two listeners claim 127.0.0.1:1
 --> command line:1:14
  |
  | --ops-listen 127.0.0.1:1
  |              ^^^^^^^^^^^
  |
 ::: ww.toml:2:10
  |
2 | listen = "127.0.0.1:1"
  |          -------------
  |
  = help: give each listener an address of its own
"#,
        ..Case::NONE
    },
];

#[test]
fn faults_of_all_sources_come_in_one_report_in_their_order() {
    let case = Case {
        file: "[drain]\nkill = 5",
        env: &[("WATERWHEEL_DRAIN__FINISH", "x")],
        flags: &[("--listen", "server.listen", "x")],
        ..Case::NONE
    };
    let faults = case.load().unwrap_err().to_json();
    let faults = faults.as_array().unwrap();
    let places: Vec<_> = faults.iter().map(|fault| fault["places"].clone()).collect();
    let expected = serde_json::json!([
        [{ "source": "file", "file": "ww.toml", "line": 2, "column": 8 }],
        [{ "source": "env", "name": "WATERWHEEL_DRAIN__FINISH", "column": 26 }],
        [{ "source": "flag", "name": "--listen", "column": 10 }],
    ]);
    assert_eq!(serde_json::json!(places), expected);
    let help = "write it like `\"127.0.0.1:7070\"`";
    assert_eq!(faults[2]["help"], help);
}

#[test]
fn the_starter_has_two_pools_and_every_builtin() {
    let config = ok(&starter::text(), &[], &[]).config;
    let pools =
        config.pools.iter().map(|pool| (pool.name.as_str(), pool.settings.workers.get(), pool.settings.queue_jobs));
    assert_eq!(pools.collect::<Vec<_>>(), [("cpu", 3, 64), ("io", 64, 1024)]);
    assert_eq!(config.pools[1].settings.when_full, WhenFull::Wait);
    let kinds: BTreeSet<_> = config.kinds.iter().map(|kind| kind.name.as_str()).collect();
    assert_eq!(kinds, Builtin::NAMES.iter().copied().collect(), "src/config/starter.toml, and the help of `dev`");
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
        let at_default = shown.filter(|setting| setting.origin == Origin::Default);
        at_default.map(|setting| setting.path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(left_at_default(&spelled.settings), Vec::<String>::new());
}

#[test]
fn the_examples_of_the_starter_load() {
    let dir = security::files();
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
        Syntax::Parsed(what, _) | Syntax::Withheld(what, _) => what.to_owned(),
    };
    match value_type {
        ValueType::Boolean | ValueType::Command | ValueType::Secret => value_type.expected().to_owned(),
        ValueType::Count(high) => format!("1 to {high}, or `\"cpus\"`"),
        ValueType::Integer(low, high) => format!("{low} to {high}"),
        ValueType::Number(low, high) => format!("{low} to {high}"),
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

/// `WATERWHEEL_WRITE_DOCS=1 cargo test --lib documented` writes the table.
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
        return;
    }
    assert!(text == whole, "run `WATERWHEEL_WRITE_DOCS=1 cargo test --lib documented` and look at the difference");
}

#[test]
fn every_key_of_exec_is_documented() {
    let documented = include_str!("../../docs/exec.md");
    for key in EXEC_KEYS {
        assert!(documented.contains(&format!("\n{key} = ")), "docs/exec.md does not document {key}");
    }
}

/// A key without a field in the settings would be accepted, and have no effect. Keys that can be changed alone are
/// tried.
#[test]
fn changing_a_default_changes_the_settings() {
    let program = "[program.worker]\ncommand = [\"/bin/sh\"]\n[kind.work]\npool = \"base\"\nprogram = \"worker\"\n";
    let file = format!("{FINE}[kind.exec]\npool = \"base\"\nexec = [\"/bin/sh\"]\n{program}");
    let with = |key: &str, value: &str| ok(&file, &[], &[("--set", key, value)]).config;
    let other = |key: &Key| match key.takes {
        ValueType::Boolean => Some(if key.default == Some("true") { "false" } else { "true" }.to_owned()),
        ValueType::Integer(low, high) | ValueType::Count(low @ high) => Some((low.max(2)).min(high).to_string()),
        ValueType::Number(..) => Some("0.5".to_owned()),
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
