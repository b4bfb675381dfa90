//! `grpc.health.v1`: the status of each name over the life of a process, by `Check` and `Watch`.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, timeout};
use tonic::{Code, Streaming};
use tonic_types::StatusExt;
use waterwheel::{
    phase::{Phase, PhaseCell},
    pool::Pools,
    proto::{
        WatchStatsRequest,
        health::{
            HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_client::HealthClient,
        },
        worker_pool_service_client::WorkerPoolServiceClient,
        xds::service::orca::v3::{OrcaLoadReportRequest, open_rca_service_client::OpenRcaServiceClient},
    },
    rpc::Health,
};

use crate::{
    ops_pages::get,
    process::{PATIENCE, Process},
    service::{Address, Caller, job, queued},
};

const CONFIG: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    kind.echo = { pool = "one", builtin = "echo" }
    drain = { notice = "60s", finish = "1s", kill = "1s" }
    [pool.one]
    workers = 1
    queue = { jobs = 10 }
"#;

const READY: [&str; 4] = ["", "waterwheel.v1.WorkerPoolService", "readiness", "pool/one"];

fn asked(name: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: name.into() }
}

pub(crate) async fn check(address: Address, name: &str) -> ServingStatus {
    address.health().await.check(asked(name)).await.unwrap().into_inner().status()
}

async fn watch(address: Address, name: &str) -> Streaming<HealthCheckResponse> {
    address.health().await.watch(asked(name)).await.unwrap().into_inner()
}

async fn next(watch: &mut Streaming<HealthCheckResponse>) -> ServingStatus {
    timeout(PATIENCE, watch.message()).await.expect("a status").unwrap().expect("the watch is open").status()
}

#[tokio::test]
async fn during_a_drain_every_name_but_liveness_reports_not_serving() {
    let process = Process::serve(CONFIG).await;
    let stays = ["liveness"];
    let mut watches = Vec::new();
    for address in [process.public, process.ops] {
        for name in READY.into_iter().chain(["capacity"]).chain(stays) {
            assert_eq!(check(address, name).await, ServingStatus::Serving, "{name:?}");
            watches.push((name, watch(address, name).await));
        }
    }
    for (name, watch) in &mut watches {
        assert_eq!(next(watch).await, ServingStatus::Serving, "{name:?}");
    }
    process.signal(Signal::TERM);
    for (name, watch) in watches.iter_mut().filter(|(name, _)| !stays.contains(name)) {
        assert_eq!(next(watch).await, ServingStatus::NotServing, "{name:?}");
    }
    // An orchestrator that restarts processes by their liveness must not kill one that drains.
    assert_eq!(check(process.ops, "liveness").await, ServingStatus::Serving);
    // Jobs are still accepted during the notice phase.
    Caller::of(process.public).await.leave(job("echo", "x")).await.unwrap().unwrap();
}

/// A client with a wrong name would wait forever if the name were NOT_SERVING, in a drain as well.
#[tokio::test]
async fn an_unknown_name_is_not_found_by_a_check_and_unknown_to_a_watch_which_stays_open() {
    let process = Process::serve(CONFIG).await;
    let mut readiness = watch(process.public, "readiness").await;
    assert_eq!(next(&mut readiness).await, ServingStatus::Serving);
    let mut watches = Vec::new();
    for known in [ServingStatus::Serving, ServingStatus::NotServing] {
        let refused = process.public.health().await.check(asked("pool/two")).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound);
        assert!(!refused.message().contains("one"), "the refusal reveals the names of pools: {refused:?}");
        let mut unknown = watch(process.public, "pool/two").await;
        assert_eq!(next(&mut unknown).await, ServingStatus::ServiceUnknown);
        watches.push(unknown);
        assert_eq!(check(process.public, "pool/one").await, known);
        if known == ServingStatus::Serving {
            process.signal(Signal::TERM);
            assert_eq!(next(&mut readiness).await, ServingStatus::NotServing);
        }
    }
    let more = timeout(Duration::from_millis(600), watches[0].message()).await;
    assert!(more.is_err(), "the watch ends or sends another status: {more:?}");
}

#[tokio::test]
async fn the_number_of_watches_of_each_type_on_a_connection_is_limited() {
    let process = Process::serve(CONFIG).await;
    let channel = process.public.channel().await;
    let (mut health, mut client) = (HealthClient::new(channel.clone()), WorkerPoolServiceClient::new(channel.clone()));
    let mut orca = OpenRcaServiceClient::new(channel);
    let (mut statuses, mut stats, mut reports) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..16 {
        statuses.push(health.watch(asked("")).await.unwrap());
        stats.push(client.watch_stats(WatchStatsRequest::default()).await.unwrap());
        reports.push(orca.stream_core_metrics(OrcaLoadReportRequest::default()).await.unwrap());
    }
    let refused = [
        health.watch(asked("")).await.unwrap_err(),
        client.watch_stats(WatchStatsRequest::default()).await.unwrap_err(),
        orca.stream_core_metrics(OrcaLoadReportRequest::default()).await.unwrap_err(),
    ];
    for status in refused {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        assert_eq!(status.get_details_error_info().unwrap().reason, "WATCHES_FULL");
    }
    assert_eq!(
        next(&mut watch(process.public, "").await).await,
        ServingStatus::Serving,
        "another connection has a separate limit"
    );
    statuses.pop();
    let begin = Instant::now();
    while health.watch(asked("")).await.is_err() {
        assert!(begin.elapsed() < PATIENCE, "a watch that has ended still counts");
    }
}

/// Only limits keep the jobs back, so that the workers are not busy.
const LIMITED: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep", limit.concurrency = 1 }
    pool.one = { workers = 4, queue = { jobs = 10 } }
"#;

#[tokio::test]
async fn capacity_has_two_thresholds_and_a_full_queue_does_not_change_readiness() {
    let process = Process::serve(LIMITED).await;
    let caller = Caller::of(process.public).await;
    let mut capacity = watch(process.ops, "capacity").await;
    assert_eq!(next(&mut capacity).await, ServingStatus::Serving);
    caller.occupy(1).await;
    let mut queued_jobs = Vec::new();
    for ahead in 0..8 {
        assert_eq!(check(process.ops, "capacity").await, ServingStatus::Serving, "{ahead} queued");
        queued_jobs.push(caller.leave(job("sleep", "60000")));
        caller.until(|pool| queued(pool) == ahead + 1).await;
    }
    assert_eq!(next(&mut capacity).await, ServingStatus::NotServing, "the queue is four fifths full");
    for name in READY {
        assert_eq!(check(process.ops, name).await, ServingStatus::Serving, "{name:?} of a busy process");
    }
    for left in (0..8).rev() {
        queued_jobs.pop().unwrap().abort();
        caller.until(|pool| queued(pool) == left).await;
        let expected = if left <= 2 { ServingStatus::Serving } else { ServingStatus::NotServing };
        assert_eq!(check(process.ops, "capacity").await, expected, "{left} queued");
    }
    assert_eq!(next(&mut capacity).await, ServingStatus::Serving);
}

/// The queue is empty, and nothing is refused.
#[tokio::test]
async fn capacity_is_gone_while_nearly_all_workers_are_busy() {
    let process = Process::serve(CONFIG).await;
    let mut capacity = watch(process.ops, "capacity").await;
    assert_eq!(next(&mut capacity).await, ServingStatus::Serving);
    let job = Caller::of(process.public).await.leave(job("sleep", "60000"));
    assert_eq!(next(&mut capacity).await, ServingStatus::NotServing);
    let metrics = get(process.ops, "/metrics").await.1;
    assert!(metrics.contains("waterwheel_health{service=\"capacity\"} 0.0"), "{metrics}");
    job.abort();
    assert_eq!(next(&mut capacity).await, ServingStatus::Serving);
    assert_eq!(check(process.ops, "readiness").await, ServingStatus::Serving);
}

#[test]
fn readiness_and_capacity_do_not_serve_before_the_serving_phase() {
    let phase = PhaseCell::default();
    let health = Health::new(Pools::new(Vec::new()), phase.clone(), None);
    for name in ["", "waterwheel.v1.WorkerPoolService", "readiness", "capacity"] {
        assert!(!health.is_serving(name), "{name:?}");
    }
    phase.advance(Phase::Serving);
    assert!(health.is_serving("") && health.is_serving("readiness") && health.is_serving("capacity"));
}
