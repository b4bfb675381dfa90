//! Tables of cases, and what they are checked with.

use std::net::SocketAddr;
use std::time::Duration;

use super::*;

mod origins;
mod rendering;
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
