//! `waterwheel store` on the file of a server.

use std::{path::Path, process::Command};

use super::{CONFIG, Jobs, work};
use crate::process::Process;

/// Whether the command succeeded, and all that it printed.
fn store(verb: &str, directory: &Path) -> (bool, String) {
    let args = ["store", verb, "jobs.db"];
    let ended = Command::new(env!("CARGO_BIN_EXE_waterwheel")).args(args).current_dir(directory).output().unwrap();
    (ended.status.success(), String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap())
}

#[tokio::test]
async fn a_file_is_checked_and_exported_while_no_server_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("waterwheel.toml");
    std::fs::write(&path, CONFIG).unwrap();
    assert!(!store("export", dir.path()).0 && !dir.path().join("jobs.db").exists(), "it makes none");
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let done = jobs.created(work("echo", "hello")).await;
    jobs.ended(&done).await;
    let (running, _) = (jobs.created(work("sleep", "60000")).await, jobs.created(work("refuses", "")).await);
    let (is_fine, said) = store("check", dir.path());
    assert!(!is_fine && said.contains("is in use"), "{said}");

    process.killed().await;
    let (is_fine, said) = store("check", dir.path());
    assert!(is_fine && said.starts_with("intact\nschema  1, the newest\njobs    3 jobs, "), "{said}");
    let (is_fine, said) = store("export", dir.path());
    let lines: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(is_fine && lines.len() == 3, "{said}");
    let of = |id: &str| lines.iter().find(|job| job["job_id"] == id).unwrap();
    // "hello", as JSON of protobuf writes bytes.
    let shown = [&of(&done)["state"], &of(&done)["output"], &of(&done)["job"]["payload"], &of(&running)["state"]];
    assert_eq!(shown, ["JOB_STATE_SUCCEEDED", "aGVsbG8=", "aGVsbG8=", "JOB_STATE_READY"]);

    let file = dir.path().join("jobs.db");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.truncate(bytes.len() - 5000);
    std::fs::write(&file, bytes).unwrap();
    let (is_fine, said) = store("check", dir.path());
    assert!(!is_fine && said.contains("is damaged"), "{said}");
}
