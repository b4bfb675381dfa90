//! `waterwheel check` reports all faults of a configuration and compares it with its machine; `config show` prints origins.

use std::{
    path::Path,
    process::{Command, Output},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;
use waterwheel::config::starter;

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
fn config_init_prints_a_valid_configuration() {
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
fn config_show_prints_the_origin_of_every_value_and_its_output_is_valid() {
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
fn the_error_names_a_missing_file() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["check", "--config", "none.toml"], &[]);
    assert_eq!(output.status.code(), Some(2));
    let report = text(&output.stderr);
    assert!(report.starts_with("error: cannot read `none.toml`: "), "{report}");
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

/// Paths in the file are relative to its directory. Paths in variables and flags are relative to the working directory.
#[test]
fn relative_paths_are_resolved_by_their_source() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("conf")).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let cert = rcgen::CertificateParams::default().self_signed(&key).unwrap();
    let config = "server.tls = { cert = \"tls.crt\", key = \"tls.key\", client_ca = \"tls.crt\" }\n\
                  [auth.rule.all]\nprincipals = [\"**\"]\nrpcs = [\"*\"]\n\
                  [pool.one]\n[kind.echo]\npool = \"one\"\nbuiltin = \"echo\"\n";
    std::fs::write(dir.path().join("conf/ww.toml"), config).unwrap();
    let check = |env: &[(&str, &str)], flags: &[&str]| {
        let output = run(dir.path(), &[&["check", "--config", "conf/ww.toml"], flags].concat(), env);
        (output.status.code(), text(&output.stderr))
    };
    let (code, report) = check(&[], &[]);
    assert_eq!(code, Some(2));
    for key in ["cert", "key", "client_ca"] {
        let missing = format!("error: `server.tls.{key}`: cannot read it: no such file or directory");
        assert!(report.contains(&missing), "{report}");
    }
    std::fs::write(dir.path().join("conf/tls.crt"), cert.pem()).unwrap();
    std::fs::write(dir.path().join("conf/tls.key"), key.serialize_pem()).unwrap();
    assert_eq!(check(&[], &[]), (Some(0), String::new()));

    let env = [("WATERWHEEL_SERVER__TLS__KEY", "tls.key")];
    let (code, report) = check(&env, &["--set", "server.tls.client_ca=tls.crt"]);
    assert_eq!((code, report.matches("error: ").count()), (Some(2), 2), "{report}");
    let env = [("WATERWHEEL_SERVER__TLS__KEY", "conf/tls.key")];
    assert_eq!(check(&env, &["--set", "server.tls.client_ca=conf/tls.crt"]), (Some(0), String::new()));
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

/// Runs `check --env` under `sh` after `first`, such as a `ulimit`.
fn check_env(first: &str, grace: Option<&str>, args: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("ww.toml");
    std::fs::write(&config, starter::text()).unwrap();
    let program = env!("CARGO_BIN_EXE_waterwheel");
    let line = format!(
        "{first}; exec {program} check --env --config {} --set server.connections.max=100 {args}",
        config.display()
    );
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &line]).env_remove("WATERWHEEL_GRACE");
    if let Some(grace) = grace {
        command.env("WATERWHEEL_GRACE", grace);
    }
    command.output().unwrap()
}

fn finding(output: &Output, name: &str) -> Value {
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let findings = json["env"].as_array().expect("a list").clone();
    findings.into_iter().find(|finding| finding["name"] == name).expect("the list has every finding")
}

#[test]
fn a_grace_period_shorter_than_the_drain_fails_the_check() {
    let fits = check_env(":", Some("42"), "--output json");
    assert_eq!(fits.status.code(), Some(0), "{fits:?}");
    assert_eq!(finding(&fits, "grace")["verdict"], "fits");

    let short = check_env(":", Some("41"), "");
    assert_eq!(short.status.code(), Some(1), "{short:?}");
    let text = String::from_utf8(short.stdout).unwrap();
    assert!(text.contains("\ngrace   short  41s of 42s needed "), "{text}");
    assert!(
        text.contains("  help: raise terminationGracePeriodSeconds or TimeoutStopSec and WATERWHEEL_GRACE to 42s"),
        "{text}"
    );

    let longer = check_env(":", Some("42"), "--set drain.finish=31s");
    assert_eq!(longer.status.code(), Some(1), "{longer:?}");
}

#[test]
fn a_file_limit_that_is_too_low_fails_the_check() {
    let output = check_env("ulimit -n 48", Some("42"), "--output json");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let files = finding(&output, "files");
    assert_eq!((&files["verdict"], &files["have"]), (&"short".into(), &48.into()));
}

#[test]
fn an_unknown_grace_period_does_not_fail_the_check() {
    let output = check_env(":", None, "--output json");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(finding(&output, "grace")["have"], Value::Null);
}
