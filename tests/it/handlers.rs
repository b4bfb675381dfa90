//! The lifecycle of a handler: one start, any number of jobs, and one close.
//!
//! A drain waits for the close, for at most the grace period.

use std::{
    num::NonZeroUsize,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::poll;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Code;
use waterwheel::{
    Job, JobError, Output, Pool,
    handler::{BlockingHandler, Context, Handler, Kind, KindOptions, Site},
    model::{Execution, Failure, HandlerError},
    pool::Settings,
};

use crate::{
    ops_pages,
    process::{PATIENCE, Process},
    refusal::{Refusal, Way},
    service::{Caller, job},
    support::{Gate, echo, holding_clock, pass_time, pool},
};

const SECOND: Duration = Duration::from_secs(1);

/// Records what handlers did, in order.
#[derive(Clone, Default)]
struct Life(Arc<Mutex<Vec<String>>>);

impl Life {
    fn note(&self, name: &str, what: &str) {
        self.0.lock().push(format!("{name} {what}"));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

/// A handler that keeps a resource between jobs. A job with a payload waits for the gate.
#[derive(Clone)]
struct Connected {
    name: &'static str,
    life: Life,
    gate: Gate,
    /// Duration of a close.
    close: Duration,
    /// Number of starts that still fail.
    failures: Arc<Mutex<usize>>,
}

impl Connected {
    fn new(name: &'static str) -> Self {
        Self { name, life: Life::default(), gate: Gate::new(), close: Duration::ZERO, failures: Arc::default() }
    }

    fn kind(&self) -> Kind {
        let this = self.clone();
        Kind::new("connected", move || this.clone())
    }
}

impl Handler for Connected {
    async fn start(&mut self, site: Arc<Site>) -> Result<(), HandlerError> {
        self.life.note(self.name, "starts");
        assert_eq!((&*site.kind, &*site.pool), ("connected", "test"));
        pass_time(SECOND).await;
        let mut failures = self.failures.lock();
        if *failures > 0 {
            *failures -= 1;
            return Err(HandlerError::invalid("no route"));
        }
        Ok(())
    }

    async fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        self.life.note(self.name, "runs");
        if !job.payload.is_empty() {
            self.gate.pass().await;
        }
        Ok(Output::default())
    }

    async fn close(self, _: Duration) {
        self.life.note(self.name, "closes");
        pass_time(self.close).await;
        self.life.note(self.name, "is closed");
    }
}

async fn run(pool: &Pool) {
    pool.submit(Job::new("connected", "")).await.expect("it completes");
}

fn workers(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).expect("not zero")
}

#[tokio::test(start_paused = true)]
async fn a_handler_starts_once_and_a_drain_waits_for_its_close() {
    let one = Connected { close: SECOND, ..Connected::new("one") };
    let grace = KindOptions { cancel_grace: Some(60 * SECOND), ..KindOptions::default() };
    let pool = pool(1).kind(one.kind().options(grace)).build();
    run(&pool).await;
    run(&pool).await;
    let start = Instant::now();
    pool.drain();
    pool.wait().await;
    assert_eq!(start.elapsed().as_secs(), 1);
    assert_eq!(one.life.take(), ["one starts", "one runs", "one runs", "one closes", "one is closed"]);
}

#[tokio::test(start_paused = true)]
async fn a_close_is_cut_after_its_grace_period_and_at_the_end_of_the_drain() {
    for (grace, kill, took) in [(5, 60, 5), (60, 5, 7)] {
        let one = Connected { close: 3_600 * SECOND, ..Connected::new("one") };
        let grace = KindOptions { cancel_grace: Some(grace * SECOND), ..KindOptions::default() };
        let pool = pool(2).kind(one.kind().options(grace)).build();
        tokio::join!(run(&pool), run(&pool));
        let start = Instant::now();
        pool.close(2 * SECOND, kill * SECOND).await;
        assert_eq!(start.elapsed().as_secs_f64().round() as u32, took, "both handlers close at the same time");
        assert!(!one.life.take().contains(&"one is closed".to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_resize_closes_the_handlers_of_removed_workers_once_they_are_idle() {
    let one = Connected::new("one");
    let pool = pool(3).kind(one.kind()).build();
    let mut busy = Box::pin(pool.submit(Job::new("connected", "waits")));
    assert!(poll!(&mut busy).is_pending());
    tokio::join!(run(&pool), run(&pool));
    one.life.take();
    assert!(pool.resize(workers(2), workers(2)));
    pass_time(SECOND).await;
    assert_eq!(one.life.take(), ["one closes", "one is closed"], "one idle worker is removed");
    one.gate.open();
    busy.await.expect("it completes");
    run(&pool).await;
    pool.close(60 * SECOND, SECOND).await;
    assert_eq!(one.life.take().iter().filter(|what| *what == "one is closed").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_reload_closes_only_the_handlers_of_replaced_kinds() {
    let (one, two) = (Connected::new("one"), Connected::new("two"));
    let (kept, kind) = (echo(), one.kind());
    let pool = pool(2).kind(kind.clone()).kind(kept.clone()).build();
    let mut busy = Box::pin(pool.submit(Job::new("connected", "waits")));
    assert!(poll!(&mut busy).is_pending());
    run(&pool).await;
    let mut queued = Vec::new();
    for payload in ["waits", ""] {
        let mut job = Box::pin(pool.submit(Job::new("connected", payload)));
        assert!(poll!(&mut job).is_pending());
        queued.push(job);
    }
    let settings = || Settings { workers: workers(2), ..Settings::default() };
    pool.reconfigure(settings(), vec![kind, kept.clone()]);
    pass_time(SECOND).await;
    assert!(!one.life.take().contains(&"one closes".to_owned()), "the handlers of an unchanged kind are closed");

    pool.reconfigure(settings(), vec![two.kind(), kept]);
    one.gate.open();
    busy.await.expect("it completes with the old handler");
    for job in queued {
        job.await.expect("it completes with the old handler");
    }
    run(&pool).await;
    pass_time(SECOND).await;
    let life = one.life.take();
    let count = |what: &str| life.iter().filter(|entry| *entry == what).count();
    assert_eq!(
        count("one closes"),
        2 + count("one starts"),
        "the handlers of both workers and of late jobs close: {life:?}"
    );
    assert_eq!(two.life.take(), ["two starts", "two runs"]);
    pool.close(60 * SECOND, SECOND).await;
    assert_eq!((one.life.take(), two.life.take().len()), (Vec::new(), 2));
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_of_a_handler_is_a_failure_of_its_factory() {
    let one = Connected::new("one");
    *one.failures.lock() = 1;
    let pool = pool(1).kind(one.kind()).build();
    for why in ["could be made: no route", "the next attempt is later: no route"] {
        let error = pool.submit(Job::new("connected", "")).await.expect_err("it did not start");
        let JobError::Failed(failure) = error else { panic!("it was accepted") };
        assert_eq!(failure.execution, Execution::NotStarted);
        let Some(HandlerError::Unavailable { message }) = failure.error else { panic!("{failure}") };
        assert!(message.contains(why), "{message}");
    }
    pass_time(SECOND).await;
    run(&pool).await;
    assert_eq!(one.life.take(), ["one starts", "one starts", "one runs"], "a handler that did not start is not closed");
}

struct Blocks(Life);

impl BlockingHandler for Blocks {
    fn handle(&mut self, _: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        Ok(Output::default())
    }

    fn close(self: Box<Self>, grace: Duration) {
        self.0.note("blocks", &format!("closes within {} s", grace.as_secs()));
        panic!("the close fails");
    }
}

#[tokio::test]
async fn a_panic_in_the_close_of_a_blocking_handler_does_not_delay_the_drain() {
    let life = Life::default();
    let noted = life.clone();
    let pool = pool(1).kind(Kind::blocking("connected", move || Blocks(noted.clone()))).build();
    run(&pool).await;
    pool.drain();
    pool.wait().await;
    assert_eq!(life.take(), ["blocks closes within 1 s"]);
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

fn write_program(program: &Path) {
    std::fs::write(program, "#!/bin/sh\nexec cat\n").unwrap();
    std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o700)).unwrap();
}

fn config_of(program: &Path) -> String {
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
    write_program(&path);
    let process = Process::serve(&config_of(&path)).await;
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

    write_program(&path);
    let restored = async { while caller.leave(job("run", "x")).await.unwrap().is_err() {} };
    tokio::time::timeout(PATIENCE, restored).await.expect("the next attempt finds the program");
}
