//! Tables of cases, and what they are checked with.

use std::net::SocketAddr;
use std::time::Duration;

use super::*;

mod origins;
mod samples;
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
