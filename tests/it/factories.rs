//! Programs that go away while the server runs: their factory fails, is left alone for a while, and is shown.

use std::{os::unix::fs::PermissionsExt, path::Path, time::Duration};

use tonic::Code;

use crate::{
    ops_pages,
    process::{PATIENCE, Process, program},
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

/// How a job fails.
async fn fail(caller: &Caller) -> Refusal {
    Way::Submit.fail(&caller.0, Some(job("run", "x")), &[]).await
}

/// That there is no handler, that the job did not start, and when the next one is tried.
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
async fn a_program_that_goes_away_is_left_alone_for_a_while_and_shown() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("program");
    write(&path);
    let process = Process::serve(&config(&path)).await;
    let caller = Caller::of(process.public).await;
    caller.leave(job("run", "x")).await.unwrap().unwrap();

    std::fs::remove_file(&path).unwrap();
    // The worker has a handler: it finds out that the program cannot be started.
    assert_unavailable(&fail(&caller).await, "install it");
    // It is made anew, which fails; from then on, nobody tries for a while.
    assert_unavailable(&fail(&caller).await, "install it");
    let server = process.public.0.to_string();
    let stats = loop {
        assert_unavailable(&fail(&caller).await, "no handler of kind run could be made");
        let shown = program(&["stats", "--server", &server]).output().await.unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        // The back-off of a first failure may be over by then; it grows with each.
        if shown.contains("failing") {
            break shown;
        }
    };
    assert!(stats.contains("run"), "{stats}");
    let metrics = ops_pages::metrics(process.ops).await;
    let failures = metrics[r#"waterwheel_factory_failures_total{pool="one",kind="run"}"#];
    assert!((1.0..20.0).contains(&failures), "{failures}: it is left alone, longer each time");
    let measured = metrics[r#"waterwheel_job_run_time_seconds_count{pool="one",kind="run"}"#];
    assert_eq!(measured, 1.0, "no job ran but the first");

    write(&path);
    let mended = async { while caller.leave(job("run", "x")).await.unwrap().is_err() {} };
    tokio::time::timeout(PATIENCE, mended).await.expect("the next try finds the program");
}

#[tokio::test]
async fn a_program_that_may_not_be_run_is_found_out_before_a_job_is() {
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
    tokio::time::timeout(PATIENCE, directory).await.expect("another try");
}
