//! Workers that `waterwheel worker new` writes in other languages, and the conformance tests of `waterwheel worker
//! test`.

use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

/// Languages with their file extensions and the commands that run such a file.
const LANGUAGES: [(&str, &str, &[&str]); 6] = [
    ("python", "py", &["python3"]),
    ("node", "mjs", &["node"]),
    ("go", "go", &["go", "run"]),
    ("java", "java", &["java"]),
    ("ruby", "rb", &["ruby"]),
    ("bash", "sh", &["bash"]),
];

async fn waterwheel(directory: &TempDir, args: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waterwheel"));
    command.args(args).current_dir(directory.path()).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap(), text)
}

/// Runs the conformance tests. Returns the exit code, the name and verdict of each test, and the output.
async fn verdicts(directory: &TempDir, command: &[&str]) -> (i32, Vec<(String, String)>, String) {
    let args: Vec<_> = ["worker", "test", "--timeout", "2m", "--output", "json", "--"]
        .into_iter()
        .chain(command.iter().copied())
        .collect();
    let (exit, text) = waterwheel(directory, &args).await;
    let rows = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let text_of = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let verdicts = rows.map(|row| (text_of(&row, "test"), text_of(&row, "verdict"))).collect();
    (exit, verdicts, text)
}

/// A language that is not installed is skipped. `.ci/run` needs all but Ruby, which it installs if it can.
#[tokio::test]
async fn a_generated_worker_of_each_language_passes_every_conformance_test() {
    let directory = tempfile::tempdir().unwrap();
    for (language, extension, run) in LANGUAGES {
        if Command::new(run[0]).arg("--help").output().await.is_err() {
            eprintln!("{} is not installed", run[0]);
            continue;
        }
        let (exit, said) = waterwheel(&directory, &["worker", "new", "--language", language, "thumb"]).await;
        assert_eq!(exit, 0, "{said}");
        let file = format!("thumb.{extension}");
        let command: Vec<_> = run.iter().copied().chain([file.as_str()]).collect();
        let (exit, verdicts, text) = verdicts(&directory, &command).await;
        let passed = verdicts.iter().filter(|(_, verdict)| verdict == "pass").count();
        assert_eq!((exit, passed, verdicts.len()), (0, 15, 15), "{language}: {text}");
    }
}

/// Each worker breaks one rule, and the report names it.
#[tokio::test]
async fn a_worker_that_breaks_the_protocol_fails_the_matching_test() {
    let directory = tempfile::tempdir().unwrap();
    let ready = r#"echo '{"ready":{"protocol":1,"kinds":["conformance"]}}' >&4; "#;
    for (script, test, seen) in [
        ("exit 7", "ready", "closed descriptor 4 (exit status: 7)"),
        ("echo hello >&4; read y <&3", "ready", "hello"),
        (r#"echo '{"ready":{"protocol":2}}' >&4; read y <&3"#, "ready", "version 2"),
        (&format!(r#"{ready} read x <&3; echo '{{"done":{{"id":"9"}}}}' >&4"#), "echo of no bytes", "job `9`"),
        (
            &format!(r#"{ready} read x <&3; echo '{{"done":{{"id":"1"}},"bytes":3}}' >&4; printf abc >&4"#),
            "echo of no bytes",
            "3 bytes",
        ),
    ] {
        let (exit, verdicts, text) = verdicts(&directory, &["bash", "-c", script]).await;
        let failed = verdicts.iter().find(|(name, _)| name == test).expect("each test is reported");
        assert_eq!((exit, failed.1.as_str()), (1, "fail"), "{script}: {text}");
        assert!(text.contains(seen), "{seen}: {text}");
    }
}

#[tokio::test]
async fn tests_that_need_the_conformance_kind_are_skipped_without_it() {
    let directory = tempfile::tempdir().unwrap();
    let own = include_str!("../../examples/workers/thumbnail.py").replace("\"conformance\": conformance", "");
    std::fs::write(directory.path().join("own.py"), own).unwrap();
    let (exit, verdicts, text) = verdicts(&directory, &["python3", "own.py"]).await;
    let count = |wanted: &str| verdicts.iter().filter(|(_, verdict)| verdict == wanted).count();
    assert_eq!((exit, count("pass"), count("skip")), (0, 4, 11), "{text}");
}
