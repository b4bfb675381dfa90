//! `waterwheel check --env` compares the configuration with the limits of its machine.

use std::process::{Command, Output};

use serde_json::Value;
use waterwheel::config::starter;

/// Runs `check --env` under `sh` after `first`, such as a `ulimit`.
fn check(first: &str, grace: Option<&str>, args: &str) -> Output {
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
    let fits = check(":", Some("42"), "--output json");
    assert_eq!(fits.status.code(), Some(0), "{fits:?}");
    assert_eq!(finding(&fits, "grace")["verdict"], "fits");

    let short = check(":", Some("41"), "");
    assert_eq!(short.status.code(), Some(1), "{short:?}");
    let text = String::from_utf8(short.stdout).unwrap();
    assert!(text.contains("\ngrace   short  41s of 42s needed "), "{text}");
    assert!(
        text.contains("  help: raise terminationGracePeriodSeconds or TimeoutStopSec and WATERWHEEL_GRACE to 42s"),
        "{text}"
    );

    let longer = check(":", Some("42"), "--set drain.finish=31s");
    assert_eq!(longer.status.code(), Some(1), "{longer:?}");
}

#[test]
fn a_file_limit_that_is_too_low_fails_the_check() {
    let output = check("ulimit -n 48", Some("42"), "--output json");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let files = finding(&output, "files");
    assert_eq!((&files["verdict"], &files["have"]), (&"short".into(), &48.into()));
}

#[test]
fn an_unknown_grace_period_does_not_fail_the_check() {
    let output = check(":", None, "--output json");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(finding(&output, "grace")["have"], Value::Null);
}
