//! The file of a store while its server runs: what of it is damaged, and what keeps its log from being merged.

use std::{path::Path, process::Stdio};

use tokio::{io::AsyncReadExt as _, process::Command};
use waterwheel::proto::{CreateJobRequest, health::health_check_response::ServingStatus};

use super::{CONFIG, Jobs, delayed, work};
use crate::{
    health,
    ops_pages::metrics,
    process::{Process, Ran, config_file, program, until},
};

const LARGE_LOG: f64 = 67_108_864.0;

fn waiting(id: &str, payload: impl Into<bytes::Bytes>) -> CreateJobRequest {
    CreateJobRequest { job_id: id.into(), ..delayed("600s", work("echo", payload)) }
}

/// Flips a bit where the file has this text first.
fn damage(file: &Path, text: &str) {
    let mut bytes = std::fs::read(file).unwrap();
    let at = bytes.windows(text.len()).position(|found| found == text.as_bytes()).unwrap();
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

#[tokio::test]
async fn a_running_server_names_damage_of_jobs_that_only_wait() {
    let (dir, path) = config_file(CONFIG);
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    for request in [waiting("of-payload", "a payload"), waiting("of-index", "")] {
        jobs.created(request).await;
    }
    process.killed().await;
    let mut export = program(&["store", "export", "jobs.db"]);
    export.current_dir(dir.path());
    // It merges the log, so that the file has all.
    assert_eq!(Ran::of(export).await.code, Some(0));
    for text in ["a payload", "of-index"] {
        damage(&dir.path().join("jobs.db"), text);
    }

    let process = Process::serve_file(&path).await;
    for damage in [
        "job of-payload is unreadable: its payload is damaged; stop the server",
        "the store is damaged: index sqlite_autoindex_jobs_1 does not have row ",
    ] {
        process.logged(damage).await;
    }
}

/// Python's SQLite holds the file in a transaction.
#[tokio::test]
async fn a_log_that_grows_because_of_a_reader_is_measured_and_the_reader_is_named() {
    let (dir, path) = config_file(CONFIG);
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    let log_bytes = async || metrics(process.ops).await["waterwheel_store_log_bytes"];
    jobs.created(waiting("first", "")).await;
    let script = "import sqlite3\nfile = sqlite3.connect('jobs.db', isolation_level=None)\nfile.execute('begin')\n\
                  file.execute('select count(*) from jobs').fetchall()\nprint(flush=True)\ninput()";
    let mut python = Command::new("python3");
    python.args(["-c", script]).current_dir(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut reader = python.kill_on_drop(true).spawn().unwrap();
    reader.stdout.as_mut().unwrap().read_exact(&mut [0]).await.unwrap();

    let mut count = 0;
    while log_bytes().await < LARGE_LOG {
        assert!(!process.log().contains("grows") && count < 30, "{count} jobs: {}", process.log());
        count += 1;
        jobs.created(waiting(&format!("large-{count}"), vec![0; 3 << 20])).await;
    }
    process.logged("the log of the store grows because a reader holds it").await;
    process.logged(&format!("python3 (process {})", reader.id().unwrap())).await;
    reader.kill().await.unwrap();
    until("a log that begins anew", async || {
        jobs.created(work("echo", "")).await;
        log_bytes().await < LARGE_LOG / 4.0
    })
    .await;
    let metrics = metrics(process.ops).await;
    let commits = metrics["waterwheel_store_commit_duration_seconds_count"];
    assert!(commits > f64::from(count) && metrics["waterwheel_store_free_bytes"] > 0.0, "{commits} of {count} jobs");
}

#[tokio::test]
async fn while_a_file_of_the_store_is_removed_or_replaced_no_job_is_accepted() {
    let (dir, path) = config_file(CONFIG);
    let process = Process::serve_file(&path).await;
    let jobs = Jobs::of(&process).await;
    jobs.created(waiting("before", "")).await;
    for name in ["jobs.db", "jobs.db-wal", "jobs.db.lock"] {
        let (file, away) = (dir.path().join(name), dir.path().join("away"));
        std::fs::rename(&file, &away).unwrap();
        std::fs::write(&file, "another file").unwrap();
        let refused = jobs.create(waiting(name, "")).await.unwrap_err();
        assert_eq!(refused.reason(), "STORE_UNAVAILABLE", "{name}: {refused:?}");
        assert!(refused.message().contains("damaged or gone"), "{name}: {refused:?}");
        assert_eq!(health::check(process.public, "store").await, ServingStatus::NotServing, "{name}");
        process.logged(&format!("{name}: it was removed or replaced while the server runs")).await;
        std::fs::rename(&away, &file).unwrap();
        until("the store", async || jobs.create(waiting(name, "")).await.is_ok()).await;
    }
}
