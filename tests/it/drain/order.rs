//! The steps of the drain, in their order.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, timeout};
use tonic::Code;
use waterwheel::proto::health::{HealthCheckRequest, health_check_response::ServingStatus};

use super::{CONFIG, Ends, sleeps_on};
use crate::{
    process::{PATIENCE, Process, program},
    service::{Address, Caller, job},
};

async fn health(address: Address, service: &str) -> ServingStatus {
    let request = HealthCheckRequest { service: service.into() };
    address.health().await.check(request).await.unwrap().into_inner().status()
}

#[tokio::test]
async fn a_clean_drain_step_by_step() {
    const NOTICE: Duration = Duration::from_secs(4);
    // Time enough for all that is looked at meanwhile, on however slow a machine.
    let config = CONFIG.replace("200ms", "4s").replace(r#"finish = "300ms""#, r#"finish = "60s""#);
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let held = r#"while [ ! -e "$GO" ]; do sleep 0.05; done"#;
    let held = format!("[kind.held]\npool = \"one\"\nexec = [\"/bin/sh\", \"-c\", '{held}']\nenv.GO = {go:?}");
    let process = Process::serve(&format!("{config}\n{held}")).await;
    let (public, ops) = (process.public, process.ops);
    let caller = Caller::of(public).await;
    let request = HealthCheckRequest { service: "readiness".into() };
    let mut readiness = public.health().await.watch(request).await.unwrap().into_inner();
    assert_eq!(readiness.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let running = caller.leave(job("held", ""));
    caller.until(|pool| pool.in_flight == 1).await;

    // ① Health says NOT_SERVING first …
    let begin = Instant::now();
    process.signal(Signal::TERM);
    let told = timeout(PATIENCE, readiness.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(told.status(), ServingStatus::NotServing);
    assert!(begin.elapsed() < NOTICE, "told after {:?}", begin.elapsed());
    // ② … while jobs are still taken, on new connections too.
    Caller::of(public).await.leave(job("echo", "")).await.unwrap().unwrap();
    for (name, status) in [("", ServingStatus::NotServing), ("liveness", ServingStatus::Serving)] {
        assert_eq!(health(public, name).await, status, "{name:?}");
    }
    assert!(begin.elapsed() < NOTICE, "too slow a machine for this notice: {:?}", begin.elapsed());

    // ③ Jobs are refused, ④ the listener is closed, ⑤ peers are told to go.
    let refused = async {
        let mut taken = 0;
        loop {
            let Err(status) = caller.leave(job("echo", "")).await.unwrap() else {
                taken += 1;
                continue;
            };
            // Without an id it was not the server that answered: its connection had said goodbye.
            let by_the_server = status.metadata().contains_key("x-request-id");
            assert!(!by_the_server || status.code() == Code::Unavailable, "{status:?}");
            return taken;
        }
    };
    let taken = timeout(PATIENCE, refused).await.unwrap();
    assert!(begin.elapsed() >= NOTICE);
    let closed = async {
        while tokio::net::TcpStream::connect(public.0).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, closed).await.expect("the listener is closed");
    // The operator's side is open until the end.
    assert_eq!(health(ops, "liveness").await, ServingStatus::Serving);
    assert_eq!(health(ops, "readiness").await, ServingStatus::NotServing);

    // ⑥ What runs is finished and answered.
    std::fs::write(&go, "").unwrap();
    running.await.unwrap().unwrap();
    let ended = process.ended().await;
    assert_eq!((ended.code, &ended.receipt["event"]), (Some(0), &"drained".into()));
    assert_eq!(ended.receipt["lost"], serde_json::json!([]));
    assert_eq!(ended.receipt["finished"], 2 + taken, "{:?}", ended.receipt);
}

#[tokio::test]
async fn callers_see_each_job_end_once_while_they_hammer() {
    let process = Process::serve(&CONFIG.replace(r#"finish = "300ms""#, r#"finish = "20s""#)).await;
    let caller = Caller::of(process.public).await;
    let mut hammers = Vec::new();
    for _ in 0..8 {
        let caller = caller.clone();
        hammers.push(tokio::spawn(async move {
            let mut ends = Vec::new();
            loop {
                let end = caller.leave(job("sleep", "3")).await.unwrap();
                let refused = end.is_err();
                ends.push(end);
                if refused {
                    return ends;
                }
            }
        }));
    }
    caller.until(|pool| crate::service::counts(pool).completed > 50).await;
    process.signal(Signal::TERM);
    let mut ends = Ends::default();
    for hammer in hammers {
        hammer.await.unwrap().into_iter().for_each(|end| ends.add(end));
    }
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ends.refused + ends.closed, 8, "{ends:?}");
    assert!(ends.completed > 50 && ends.killed.is_empty() && ends.dropped.is_empty(), "{ends:?}");
}

#[tokio::test]
async fn an_operator_watches_the_drain() {
    for (asleep, finish, code, last) in [(2_000, "60s", 0, "lost 0"), (60_000, "1s", 3, "lost 1")] {
        let config = CONFIG.replace(r#"finish = "300ms""#, &format!("finish = {finish:?}"));
        let process = Process::serve(&config).await;
        let caller = Caller::of(process.public).await;
        let call = caller.leave(sleeps_on(asleep));
        caller.until(|pool| pool.in_flight == 1).await;
        let ops = process.ops.0.to_string();
        let watch = program(&["drain", "--watch", "--ops", &ops]).output();
        let (watch, ended) = tokio::join!(timeout(PATIENCE, watch), process.ended());
        let watch = watch.expect("the watch ends").unwrap();
        let shown = String::from_utf8(watch.stdout).unwrap();
        assert_eq!((watch.status.code(), ended.code), (Some(code), Some(code)), "{shown}");
        assert!(shown.lines().next().is_some_and(|line| line.starts_with("NOT_SERVING")), "{shown}");
        assert!(shown.contains(last), "{shown}");
        assert_eq!(call.await.unwrap().is_ok(), code == 0);
    }
}
