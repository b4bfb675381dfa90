//! Programs that disappear while the server runs: their factory fails, backs off, and is shown as failing.

use std::{os::unix::fs::PermissionsExt, path::Path, time::Duration};

use tonic::Code;

use crate::{
    ops_pages,
    process::{PATIENCE, Process},
    refusal::{Refusal, Way},
    service::{Caller, job},
};

fn write(program: &Path) {
    std::fs::write(program, "#!/bin/sh\nexec cat\n").unwrap();
    std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o700)).unwrap();
}

fn config(program: &Path) -> String {
    format!("[pool.one]\nworkers = 1\n[kind.run]\npool = \"one\"\nexec = [{:?}]\n", program.to_str().unwrap())
}

/// Submits a job, which must fail.
async fn fail(caller: &Caller) -> Refusal {
    Way::Submit.fail(&caller.0, Some(job("run", "x")), &[]).await
}

/// Checks that the refusal says that there is no handler, that the job did not start, and when to retry.
fn assert_unavailable(refusal: &Refusal, why: &str) {
    let context = format!("{refusal:?}");
    assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::Unavailable, "HANDLER_UNAVAILABLE"), "{context}");
    assert!(refusal.status.message().contains(why), "{context}");
    let details = refusal.details();
    assert_eq!(details.error_info().unwrap().metadata["execution"], "NOT_STARTED", "{context}");
    let again = details.retry_info().unwrap().retry_delay.unwrap();
    assert!(again <= Duration::from_secs(45), "{context}");
}

#[tokio::test]
async fn the_factory_of_a_missing_program_backs_off_and_is_shown_as_failing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("program");
    write(&path);
    let process = Process::serve(&config(&path)).await;
    let caller = Caller::of(process.public).await;
    caller.leave(job("run", "x")).await.unwrap().unwrap();

    std::fs::remove_file(&path).unwrap();
    // The handler of the worker finds that the program cannot be started.
    assert_unavailable(&fail(&caller).await, "install it");
    // The factory fails to create a new handler, and backs off.
    assert_unavailable(&fail(&caller).await, "install it");
    let stats = loop {
        assert_unavailable(&fail(&caller).await, "no handler of kind run could be made");
        let shown = process.run("stats").await.out;
        // The first back-off may already be over. It grows with each failure.
        if shown.contains("failing") {
            break shown;
        }
    };
    assert!(stats.contains("run"), "{stats}");
    let metrics = ops_pages::metrics(process.ops).await;
    let failures = metrics[r#"waterwheel_factory_failures_total{pool="one",kind="run"}"#];
    assert!((1.0..20.0).contains(&failures), "{failures} failures: the back-off is too short");
    let measured = metrics[r#"waterwheel_job_run_time_seconds_count{pool="one",kind="run"}"#];
    assert_eq!(measured, 1.0, "only the first job ran");

    write(&path);
    let restored = async { while caller.leave(job("run", "x")).await.unwrap().is_err() {} };
    tokio::time::timeout(PATIENCE, restored).await.expect("the next attempt finds the program");
}

#[tokio::test]
async fn a_program_that_is_not_executable_is_reported_and_its_job_does_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("program");
    write(&path);
    let process = Process::serve(&config(&path)).await;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let caller = Caller::of(process.public).await;
    assert_unavailable(&fail(&caller).await, "make it executable");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let directory = async {
        loop {
            let refusal = fail(&caller).await;
            assert_unavailable(&refusal, "make it executable");
            if !refusal.status.message().contains("tried for a while") {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, directory).await.expect("the factory tries again");
}
