//! Handlers that cannot be made: their factory fails, backs off, and is shown as failing.

use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tonic::Code;
use waterwheel::{
    Job, JobError, Output,
    handler::{BlockingHandler, Context, Handler, Kind},
    model::{Execution, Failure, HandlerError},
};

use crate::{
    ops_pages,
    process::{PATIENCE, Process},
    refusal::{Refusal, Way},
    service::{Caller, job},
    support::{holding_clock, pass_time, pool},
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

fn failure(error: JobError) -> Failure {
    match error {
        JobError::Failed(failure) => {
            assert_eq!((failure.execution, failure.run), (Execution::NotStarted, Duration::ZERO), "{failure:?}");
            *failure
        }
        JobError::Rejected(rejection) => panic!("{rejection:?}"),
    }
}

/// Counts its jobs, and crashes or fails if the payload says so.
struct Brittle(u64);

impl Brittle {
    fn act(&mut self, job: &Job) -> Result<Output, HandlerError> {
        self.0 += 1;
        match &job.payload[..] {
            b"crash" => Err(HandlerError::Crashed { message: "it crashed".into() }),
            b"refuse" => Err(HandlerError::invalid("no")),
            _ => Ok(Output::new(self.0.to_string())),
        }
    }
}

impl Handler for Brittle {
    async fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        self.act(&job)
    }
}

impl BlockingHandler for Brittle {
    fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        self.act(&job)
    }
}

/// After a crash, a worker makes a new handler. If that fails, the next job fails before it starts.
#[tokio::test(start_paused = true)]
async fn the_error_of_a_factory_is_reported_to_the_next_job_after_a_crash() {
    let broken = Arc::new(AtomicBool::new(false));
    let factory = {
        let broken = Arc::clone(&broken);
        move || match broken.load(Ordering::Relaxed) {
            true => Err(HandlerError::Crashed { message: "no route".into() }),
            false => Ok(Brittle(0)),
        }
    };
    let pool = pool(1).kind(Kind::try_new("async", factory.clone())).kind(Kind::try_blocking("block", factory)).build();
    for kind in ["async", "block"] {
        broken.store(false, Ordering::Relaxed);
        let submit = |payload: &'static str| holding_clock(pool.submit(Job::new(kind, payload)));
        submit("").await.expect("it completes");
        submit("refuse").await.expect_err("the payload says so");
        assert_eq!(submit("").await.expect("it completes").output.bytes, "3", "a handler that fails is kept");
        submit("crash").await.expect_err("the payload says so");
        assert_eq!(submit("").await.expect("it completes").output.bytes, "1", "a handler that crashed is replaced");
        broken.store(true, Ordering::Relaxed);
        submit("crash").await.expect_err("the payload says so");
        let failed = failure(submit("").await.expect_err("there is no handler"));
        assert!(failed.to_string().contains("no route"), "{failed:?}");
        let retry_after = failed.retry_after.filter(|wait| !wait.is_zero());
        pass_time(retry_after.expect("a hint")).await;
    }
}
