//! The steps of a drain, in order.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, timeout};
use tonic::Code;
use waterwheel::proto::health::{HealthCheckRequest, health_check_response::ServingStatus};

use super::{CONFIG, Ends};
use crate::{
    health::check,
    process::{PATIENCE, Process},
    service::{Caller, job},
};

#[tokio::test]
async fn a_clean_drain_runs_its_steps_in_order() {
    const NOTICE: Duration = Duration::from_secs(8);
    // The phases are long enough for all checks, even on a slow machine.
    let config = CONFIG.replace("200ms", "8s").replace(r#"finish = "300ms""#, r#"finish = "60s""#);
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

    // ① Health reports NOT_SERVING first …
    let begin = Instant::now();
    process.signal(Signal::TERM);
    let changed = timeout(PATIENCE, readiness.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(changed.status(), ServingStatus::NotServing);
    assert!(begin.elapsed() < NOTICE, "NOT_SERVING after {:?}", begin.elapsed());
    // ② … while jobs are still accepted, on new connections too.
    Caller::of(public).await.leave(job("echo", "")).await.unwrap().unwrap();
    for (name, status) in [("", ServingStatus::NotServing), ("liveness", ServingStatus::Serving)] {
        assert_eq!(check(public, name).await, status, "{name:?}");
    }
    assert!(begin.elapsed() < NOTICE, "the machine is too slow for this test: {:?}", begin.elapsed());

    // ③ Jobs are refused, ④ the listener is closed, ⑤ connections receive GOAWAY.
    let refused = async {
        let mut accepted = 0;
        loop {
            let Err(status) = caller.leave(job("echo", "")).await.unwrap() else {
                accepted += 1;
                continue;
            };
            // A status without a request id comes from the client, whose connection has received GOAWAY.
            let by_the_server = status.metadata().contains_key("x-request-id");
            assert!(!by_the_server || status.code() == Code::Unavailable, "{status:?}");
            return accepted;
        }
    };
    let accepted = timeout(PATIENCE, refused).await.unwrap();
    assert!(begin.elapsed() >= NOTICE);
    let closed = async {
        while tokio::net::TcpStream::connect(public.0).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, closed).await.expect("the listener is closed");
    // The operator listener stays open until the end.
    assert_eq!(check(ops, "liveness").await, ServingStatus::Serving);
    assert_eq!(check(ops, "readiness").await, ServingStatus::NotServing);

    // ⑥ Running jobs finish, and their callers get a response.
    std::fs::write(&go, "").unwrap();
    running.await.unwrap().unwrap();
    let ended = process.ended().await;
    assert_eq!((ended.code, &ended.receipt["event"]), (Some(0), &"drained".into()));
    assert_eq!(ended.receipt["lost"], serde_json::json!([]));
    assert_eq!(ended.receipt["finished"], 2 + accepted, "{:?}", ended.receipt);
}

#[tokio::test]
async fn under_load_every_accepted_job_completes_before_the_drain_ends() {
    let process = Process::serve(&CONFIG.replace(r#"finish = "300ms""#, r#"finish = "20s""#)).await;
    let caller = Caller::of(process.public).await;
    let mut loads = Vec::new();
    for _ in 0..8 {
        let caller = caller.clone();
        loads.push(tokio::spawn(async move {
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
    for load in loads {
        load.await.unwrap().into_iter().for_each(|end| ends.add(end));
    }
    let ended = process.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ends.refused + ends.closed, 8, "{ends:?}");
    assert!(ends.completed > 50 && ends.killed.is_empty() && ends.dropped.is_empty(), "{ends:?}");
}
