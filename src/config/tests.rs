//! Tables of cases, and what they are checked with.

use std::net::SocketAddr;
use std::time::Duration;

use super::*;

mod clashes;
mod kinds;
mod origins;
mod programs;
mod samples;
mod secrets;
mod security;
mod syntax;
mod values;
mod variables;
mod written;

/// A pool and a kind that are fine, so that a case shows only its own faults.
const FINE: &str = "
[pool.base]
[kind.echo]
pool = \"base\"
builtin = \"echo\"
";

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

/// Every case reports exactly its faults. `FINE` follows the file of each.
fn check(cases: &[Case]) {
    for case in cases {
        let faults = case.load().expect_err(case.file).to_string();
        let lines: Vec<&str> = faults.lines().map(str::trim_end).collect();
        assert_eq!(lines.join("\n"), case.faults.trim_matches('\n'), "{}", case.file);
    }
}

/// Every file reports exactly its faults: the line and column of each place, what is wrong, and what to do. `FINE`
/// follows each.
fn check_files(cases: &[(&str, &str)]) {
    for (file, expected) in cases {
        let faults = load(&sources(&format!("{file}{FINE}"), &[], &[])).expect_err(file).to_json();
        let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
        let brief = |fault: &serde_json::Value| {
            let places = fault["places"].as_array().expect("a list").iter();
            let places: String = places.map(|place| format!("{}:{} ", place["line"], place["column"])).collect();
            format!("{places}{}\n  = {}", text(&fault["message"]), text(&fault["help"]))
        };
        let found: Vec<String> = faults.as_array().expect("a list").iter().map(brief).collect();
        assert_eq!(found.join("\n"), expected.trim_matches('\n'), "{file}");
    }
}

/// Every line of TOML reports one fault: what is wrong, and what to do. `FINE` follows each.
fn check_lines(cases: &[(&str, &str, &str)]) {
    for (line, what, help) in cases {
        let faults = load(&sources(&format!("{line}{FINE}"), &[], &[])).expect_err(line);
        let found: Vec<(String, String)> =
            faults.iter().map(|fault| (fault.message.clone(), fault.help.clone())).collect();
        assert_eq!(found, [((*what).to_owned(), (*help).to_owned())], "{line}");
    }
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
