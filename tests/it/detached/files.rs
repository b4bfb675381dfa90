//! `waterwheel store` on the store file of a server.

use std::{path::Path, process::Command};

use super::{CONFIG, Jobs, work};
use crate::process::{Process, config_file};

/// Runs `waterwheel store`. Returns whether it succeeded, and its output.
fn store(verb: &str, directory: &Path) -> (bool, String) {
    store_of(verb, directory, "jobs.db")
}

fn store_of(verb: &str, directory: &Path, file: &str) -> (bool, String) {
    let args = ["store", verb, file];
    let ended = Command::new(env!("CARGO_BIN_EXE_waterwheel")).args(args).current_dir(directory).output().unwrap();
    (ended.status.success(), String::from_utf8([ended.stdout, ended.stderr].concat()).unwrap())
}

#[tokio::test]
async fn a_store_file_can_be_checked_and_exported_unless_a_server_uses_it() {
    let (dir, path) = config_file(CONFIG);
    assert!(!store("export", dir.path()).0 && !dir.path().join("jobs.db").exists(), "export creates the missing file");
    for other in ["none.db", "waterwheel.toml"] {
        let (_, output) = store_of("check", dir.path(), other);
        assert!(output.contains("name the file of `store.path`"), "{output}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a check leaves a file");
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let done = jobs.created(work("echo", "hello")).await;
    jobs.ended(&done).await;
    let (running, _) = (jobs.created(work("sleep", "60000")).await, jobs.created(work("refuses", "")).await);
    let (is_fine, output) = store("check", dir.path());
    assert!(!is_fine && output.contains("is in use"), "{output}");

    process.killed().await;
    let (is_fine, output) = store("check", dir.path());
    assert!(is_fine && output.starts_with("intact\nschema  1, the newest\njobs    3 jobs, "), "{output}");
    let (is_fine, output) = store("export", dir.path());
    let lines: Vec<serde_json::Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(is_fine && lines.len() == 3, "{output}");
    let of = |id: &str| lines.iter().find(|job| job["job_id"] == id).unwrap();
    // "hello" in base64, as the JSON mapping of protobuf writes bytes.
    let shown = [&of(&done)["state"], &of(&done)["output"], &of(&done)["job"]["payload"], &of(&running)["state"]];
    assert_eq!(shown, ["JOB_STATE_SUCCEEDED", "aGVsbG8=", "aGVsbG8=", "JOB_STATE_READY"]);

    let file = dir.path().join("jobs.db");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.truncate(bytes.len() - 5000);
    std::fs::write(&file, bytes).unwrap();
    let (is_fine, output) = store("check", dir.path());
    assert!(!is_fine && output.contains("is damaged"), "{output}");
}
