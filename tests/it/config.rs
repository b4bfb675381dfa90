//! `waterwheel check` reports all faults of a configuration.

use std::{
    path::Path,
    process::{Command, Output},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;

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
fn check_prints_faults_as_json() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ww.toml"), BAD).unwrap();
    let output = run(dir.path(), &["check", "--config", "ww.toml", "--output", "json"], &[]);
    assert_eq!(output.status.code(), Some(2));
    let report: Value = serde_json::from_str(&text(&output.stderr)).unwrap();
    assert_eq!(report["error"]["message"], "the configuration has 3 faults");
    assert_eq!(report["error"]["exit_code"], 2);
    let place = serde_json::json!({ "source": "file", "file": "ww.toml", "line": 2, "column": 11 });
    assert_eq!(report["error"]["faults"][0]["places"], serde_json::json!([place]));
}

#[test]
fn a_file_that_is_no_configuration_is_not_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
    for text_of_file in [&*pem, &format!("[server]\n{pem}"), "hunter2"] {
        std::fs::write(dir.path().join("key"), text_of_file).unwrap();
        let report = text(&run(dir.path(), &["check", "--config", "key"], &[]).stderr);
        assert!(report.contains("it is not TOML") && report.contains("key:1:1"), "{report}");
        assert!(text_of_file.lines().all(|line| line == "[server]" || !report.contains(line)), "{report}");
    }
}

/// Reading a pipe or a device could block, or never end.
#[test]
fn a_configuration_must_be_a_regular_file_of_limited_size() {
    let dir = tempfile::tempdir().unwrap();
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, dir.path().join("ww.toml"), FileType::Fifo, mode, 0).unwrap();
    std::fs::File::create(dir.path().join("huge.toml")).unwrap().set_len(1 << 40).unwrap();
    for (file, what) in [
        ("none.toml", "no such file"),
        ("ww.toml", "it is a pipe, and only regular files are read"),
        (".", "it is a directory, and only regular files are read"),
        ("/dev/zero", "it is a device, and only regular files are read"),
        ("huge.toml", "it is larger than 4 MiB"),
    ] {
        let output = run(dir.path(), &["check", "--config", file], &[]);
        let report = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{report}");
        assert!(report.starts_with(&format!("error: cannot read `{file}`: {what}")), "{report}");
    }
}

/// Runs the program in a directory, with only these environment variables.
fn run(dir: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waterwheel"));
    command.current_dir(dir).args(args).env_clear().envs(env.iter().copied());
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
