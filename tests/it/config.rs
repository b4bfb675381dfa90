//! A configuration is checked as a whole, and says where each of its values comes from.

use std::path::Path;
use std::process::{Command, Output};

const BAD: &str = "\
[pool.cpu]
workers = 0

[kind.digest]
pool = \"cpuu\"
builtin = \"sha255\"
";

#[test]
fn every_fault_of_every_source_is_reported_in_one_run() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ww.toml"), BAD).unwrap();
    let env = [("WATERWHEEL_DRAIN__KILL", "5"), ("WATERWHEEL_SRVER__LISTEN", "127.0.0.1:0")];
    let args = ["check", "--config", "ww.toml", "--set", "pool.cpu.queue.jobs=none"];
    let output = run(dir.path(), &args, &env);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stdout), "");
    let report = text(&output.stderr);
    let lines: Vec<&str> = report.lines().collect();
    let starting = |start: &str| lines.iter().filter(|line| line.trim_start().starts_with(start)).count();
    assert_eq!(starting("error: "), 6, "{report}");
    assert_eq!(starting("= help: "), 6, "{report}");
    for line in [
        "2 | workers = 0",
        "error: kind `digest` runs in pool `cpuu`, which is not declared",
        "  = help: did you mean `sha256`?",
        " | WATERWHEEL_DRAIN__KILL=5",
        " = help: did you mean `server`?",
        " | --set pool.cpu.queue.jobs=none",
    ] {
        assert!(lines.contains(&line), "{line}\n{report}");
    }
}

#[test]
fn programs_get_faults_as_json() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ww.toml"), BAD).unwrap();
    let output = run(dir.path(), &["check", "--config", "ww.toml", "--output", "json"], &[]);
    assert_eq!(output.status.code(), Some(2));
    let report: serde_json::Value = serde_json::from_str(&text(&output.stderr)).unwrap();
    assert_eq!(report["error"]["message"], "the configuration has 3 faults");
    assert_eq!(report["error"]["exit_code"], 2);
    let place = serde_json::json!({ "source": "file", "file": "ww.toml", "line": 2, "column": 11 });
    assert_eq!(report["error"]["faults"][0]["places"], serde_json::json!([place]));
}

#[test]
fn what_init_prints_is_a_good_file() {
    let dir = tempfile::tempdir().unwrap();
    let starter = run(dir.path(), &["config", "init"], &[]);
    std::fs::write(dir.path().join("ww.toml"), &starter.stdout).unwrap();
    let output = run(dir.path(), &["check", "--config", "ww.toml"], &[("WATERWHEEL_POOL__CPU__WORKERS", "8")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let expected = "\
ok: 2 pools and 4 kinds
pools  cpu 8 workers / 64 queued   io 64 workers / 1024 queued
kinds  sha256 gzip sleep echo
";
    assert_eq!(text(&output.stdout), expected);
}

#[test]
fn show_names_the_origin_of_every_value_and_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let starter = run(dir.path(), &["config", "init"], &[]);
    std::fs::write(dir.path().join("ww.toml"), &starter.stdout).unwrap();
    let env = [("WATERWHEEL_CONFIG", "ww.toml"), ("WATERWHEEL_DRAIN__KILL", "1s")];
    let shown = run(dir.path(), &["config", "show", "--origin", "--log", "debug"], &env);
    let shown = text(&shown.stdout);
    let starter = text(&starter.stdout);
    let workers = 1 + starter.lines().position(|line| line == "workers = 64").expect("the starter has such a pool");
    for line in [
        "notice = \"5s\" # default",
        "kill = \"1s\" # env WATERWHEEL_DRAIN__KILL",
        "log = \"debug\" # flag --log",
        &format!("workers = 64 # ww.toml:{workers}"),
    ] {
        assert!(shown.lines().any(|found| found.split_whitespace().eq(line.split(' '))), "{line}\n{shown}");
    }
    std::fs::write(dir.path().join("shown.toml"), &shown).unwrap();
    let again = run(dir.path(), &["config", "show", "--config", "shown.toml"], &[]);
    let values = |toml: &str| toml.parse::<toml::Table>().unwrap();
    assert_eq!(values(&text(&again.stdout)), values(&shown));
}

#[test]
fn a_file_that_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["check", "--config", "none.toml"], &[]);
    assert_eq!(output.status.code(), Some(2));
    let report = text(&output.stderr);
    assert!(report.starts_with("error: cannot read `none.toml`: "), "{report}");
}

/// Runs the program in a directory, with these variables and no others.
fn run(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waterwheel"));
    command.current_dir(dir).args(args).env_clear().envs(env.iter().copied());
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
