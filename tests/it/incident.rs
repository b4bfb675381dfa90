//! What is wrong, in the words of `Stats`: faults of a real server make their sentences, and lose them.

// tidy: real time, because a real server judges once a second.

use std::time::Duration;

use tokio::time::{resume, sleep};
use tonic::Code;
use waterwheel::{
    Job as LibraryJob, Output,
    app::{App, Listeners, OwnKind},
    handler::Kind,
    net::{Inherited, bind},
    proto::{
        PauseRequest, Phase, Problem, ProblemLevel, ResumeRequest, Stats, StatsHistoryRequest, StoreState,
        admin_service_client::AdminServiceClient,
    },
};

use crate::{
    ops_pages::metrics,
    process::{Process, config_file, until},
    service::{Address, Caller, job, load_config},
};

const PROGRAM: &str = r#"
    kind.thumb = { pool = "one", program = "thumb" }
    drain.notice = "0s"
    [pool.one]
    workers = 1
    [program.thumb]
    command = ["/bin/sh", "-c", "echo '{\"ready\":{\"protocol\":1}}' >&4; read line <&3; echo no memory >&2; exit 3"]
    [store]
    path = "jobs.db"
"#;

/// Polls `Stats` until it has a problem with this key, or `None` until it has none.
async fn found(ops: &Caller, key: Option<&str>) -> (Stats, Option<Problem>) {
    let is = |stats: &Stats| match key {
        Some(key) => stats.problems.iter().any(|problem| problem.key == key),
        None => stats.problems.is_empty() && stats.judge_time.is_some(),
    };
    until(&format!("{key:?}"), async || is(&ops.stats().await)).await;
    let stats = ops.stats().await;
    let problem = stats.problems.iter().find(|problem| Some(&*problem.key) == key).cloned();
    (stats, problem)
}

/// Seven minutes pass on a paused clock. The history and the sentences are read on the real one.
#[tokio::test(start_paused = true)]
async fn a_slow_kind_is_named_beside_its_usual_run_time_and_the_history_has_its_jobs() {
    let config = load_config("pool.io.workers = 4\ndrain.notice = \"0s\"");
    let listen = || vec![bind(&"127.0.0.1:0".parse().unwrap(), &mut Inherited::take()).unwrap()];
    let charge = Kind::from_fn("charge", async |job, _cx| {
        sleep(Duration::from_millis(str::from_utf8(&job.payload)?.parse()?)).await;
        Ok(Output::default())
    });
    let listeners = Listeners { public: listen(), ops: listen() };
    let app = App::start_on(&config, vec![OwnKind::new("io", charge)], None, listeners).unwrap();
    let [public, ops] = [app.address(), app.ops_address()].map(|address| Address(address.tcp().unwrap()));
    let control = app.control();
    let run = tokio::spawn(app.run());
    let charge = async |millis: u64| {
        control.pools().submit(LibraryJob::new("charge", millis.to_string())).await.unwrap();
        sleep(Duration::from_millis(200 - millis.min(100))).await;
    };
    for _ in 0..2100 {
        charge(39).await;
    }
    for _ in 0..40 {
        charge(546).await;
    }
    resume();
    let (ops_caller, public) = (Caller::of(ops).await, Caller::of(public).await);
    let stats = ops_caller.stats().await;
    let [problem] = &stats.problems[..] else { panic!("{:?}", stats.problems) };
    assert_eq!((&*problem.key, &*problem.subject, &*problem.pool), ("slow_kind", "kind/charge", "io"));
    assert_eq!(problem.title, "charge runs 14 times as long as usual");
    assert_eq!(problem.level(), ProblemLevel::Warning);
    assert!(
        problem.detail.contains("usually 39 ms") && problem.since.unwrap().seconds < stats.now.unwrap().seconds,
        "{problem:?}"
    );
    let pool = &stats.pools[0];
    let (kind, minute) = (&pool.kinds[0], pool.minute.as_ref().unwrap());
    assert!(kind.recent_run.unwrap().count > 100 && kind.usual_run.unwrap().count > 200, "{kind:?}");
    assert!((59.0..62.0).contains(&minute.seconds) && minute.completed > 100, "{minute:?}");
    let server = stats.server.unwrap();
    assert!(!server.host.is_empty() && server.version == env!("CARGO_PKG_VERSION"));

    let told = public.stats().await;
    assert!(told.problems.is_empty() && told.judge_time.is_none(), "callers do not read what is wrong");

    let mut admin = AdminServiceClient::new(ops.channel().await);
    let history = admin.stats_history(StatsHistoryRequest::default()).await.unwrap().into_inner();
    let columns = &history.pools[0];
    let points = columns.completed.len();
    assert!((40..=50).contains(&points) && columns.refused.len() == points, "{columns:?}");
    assert_eq!((history.step.unwrap().seconds, columns.failed.iter().sum::<u32>()), (10, 0));
    assert!((45..=55).contains(&columns.completed[5]), "{columns:?}");
    let unknown = admin.stats_history(StatsHistoryRequest { pool: "none".into() }).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    control.drain();
    run.await.unwrap();
}

#[tokio::test]
async fn a_crash_loop_and_a_pause_have_their_sentences_everywhere() {
    let process = Process::serve_as_configured(PROGRAM).await;
    let (ops, caller) = (Caller::of(process.ops).await, Caller::of(process.public).await);
    let (_, none) = found(&ops, None).await;
    assert_eq!(none, None);
    let crashes = async || {
        caller.leave(job("thumb", "x")).await.unwrap().unwrap_err();
        ops.stats().await.problems.iter().any(|problem| problem.key == "crash_loop")
    };
    until("a crash loop", crashes).await;
    let (stats, problem) = found(&ops, Some("crash_loop")).await;
    let problem = problem.unwrap();
    assert_eq!((&*problem.subject, &*problem.pool, problem.level()), ("program/thumb", "one", ProblemLevel::Error));
    assert!(
        problem.title.starts_with("thumb: ") && problem.title.contains("processes crashed in a minute"),
        "{problem:?}"
    );
    assert!(problem.title.ends_with("exited with code 3: no memory"), "{problem:?}");
    let program = &stats.pools[0].programs[0];
    assert!(program.failures_minute >= 3 && program.last_failure_time.is_some(), "{program:?}");
    let kind = &stats.pools[0].kinds[0];
    assert!(kind.failures_per_second > 0.0 && !kind.last_failure.as_ref().unwrap().job_id.is_empty(), "{kind:?}");
    assert_eq!(caller.stats().await.pools[0].kinds[0].last_failure, None, "another caller's failure is not told");

    let mut admin = AdminServiceClient::new(process.ops.channel().await);
    let reason = "the disk is replaced".to_owned();
    admin.pause(PauseRequest { pool: "one".into(), reason: reason.clone() }).await.unwrap();
    let (stats, problem) = found(&ops, Some("pool_paused")).await;
    assert_eq!(problem.unwrap().title, "one is paused: the disk is replaced");
    assert_eq!(stats.pools[0].paused_reason, reason);
    let metric = r#"waterwheel_problem{problem="pool_paused",subject="pool/one",pool="one"}"#;
    assert_eq!(metrics(process.ops).await.get(metric), Some(&1.0));
    process.logged("a problem began: one is paused: the disk is replaced").await;
    let shown = process.run("stats").await;
    assert!(shown.out.contains(" things need attention\n") && shown.out.contains("one is paused"), "{}", shown.out);
    admin.resume(ResumeRequest { pool: "one".into(), ..ResumeRequest::default() }).await.unwrap();
    assert_eq!(ops.stats().await.pools[0].paused_reason, "");
}

#[tokio::test]
async fn a_store_that_is_gone_is_said() {
    let (dir, path) = config_file(PROGRAM);
    let process = Process::serve_file(&path).await;
    let ops = Caller::of(process.ops).await;
    let (stats, _) = found(&ops, None).await;
    let store = stats.store.unwrap();
    assert_eq!((store.state(), &*store.kind, store.since), (StoreState::Ok, "sqlite", None));
    let (file, away) = (dir.path().join("jobs.db"), dir.path().join("away"));
    std::fs::rename(&file, &away).unwrap();
    std::fs::write(&file, "another file").unwrap();
    let (stats, problem) = found(&ops, Some("store_away")).await;
    let (problem, store) = (problem.unwrap(), stats.store.unwrap());
    assert_eq!((&*problem.subject, problem.level()), ("store", ProblemLevel::Error));
    assert!(problem.title.starts_with("store: "), "{problem:?}");
    assert!(store.state() == StoreState::Away && store.since.is_some() && !store.message.is_empty(), "{store:?}");
    let metrics = metrics(process.ops).await;
    assert_eq!(metrics.get(r#"waterwheel_store_state{state="away"}"#), Some(&1.0));
    std::fs::rename(&away, &file).unwrap();
    until("the store", async || ops.stats().await.store.unwrap().state() == StoreState::Ok).await;
    let stats = ops.stats().await;
    assert!(stats.drain.is_none() && stats.phase() == Phase::Serving);
}
