//! The operator: drains servers over their operators' listener, and checks their statistics.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tonic::{Code, Status, transport::Channel};
use waterwheel::proto::health::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use waterwheel::proto::{
    DrainRequest, PoolStats, StatsRequest, WorkerState, admin_service_client::AdminServiceClient,
    worker_pool_service_client::WorkerPoolServiceClient,
};

use crate::{
    calls::LONGEST_UPLOAD,
    record::{LifeEnd, Record, now},
    run::SERVERS,
    server::LONGEST_DRAIN,
    wire::{OPS, PUBLIC, channel},
};

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time after which no job of an ended caller is left.
const REST: Duration = Duration::from_secs(2);

/// Runs the planned drains. After `settled`, when all callers have ended, drains all servers for the last time.
pub(crate) async fn operate(drains: Vec<(Duration, usize)>, settled: Duration, record: Record) -> turmoil::Result {
    // The channels stay open, so that the servers must close them.
    let mut open = Vec::new();
    for (at, server) in drains {
        sleep(at.saturating_sub(now())).await;
        let absence = record.disturb_by_drain(server);
        let channel = channel(server, OPS);
        if let Err(status) = drain(server, channel.clone(), &record).await {
            record.note(format_args!("server {server} cannot be drained: {:?}", status.code()));
            let mut events = record.lock();
            // If the server is down or draining, that disturbance is recorded already, and its restart ends it.
            if events.life_of(server).is_some_and(|life| matches!(life.end, LifeEnd::Serving)) {
                events.disturbances[absence].end = Some(now());
            }
        }
        open.push(channel);
    }
    while now() < settled || record.lock().callers_left > 0 {
        sleep(POLL_INTERVAL).await;
    }
    // The last messages of ended callers may still be in transit: a call, the rest of its jobs, or its cancel.
    let latency = record.lock().latency;
    sleep(LONGEST_UPLOAD + 3 * latency).await;
    for server in 0..SERVERS {
        if timeout(REST, until_idle(server, &record)).await.is_err() {
            record.fault(format!("server {server} has jobs of callers that have ended"));
        }
    }
    record.lock().is_over = true;
    for server in 0..SERVERS {
        let gone = async {
            while !record.lock().is_gone(server) {
                let _ = drain(server, channel(server, OPS), &record).await;
                sleep(POLL_INTERVAL).await;
            }
        };
        if timeout(LONGEST_DRAIN * 2, gone).await.is_err() {
            record.fault(format!("server {server} does not end"));
        }
        let events = record.lock();
        let last = events.lives.iter().rev().find(|life| life.server == server);
        if let Some(LifeEnd::Drained { receipt, .. }) = last.map(|life| &life.end)
            && !(receipt.is_clean() && receipt.finished == 0)
        {
            let receipt = receipt.to_json();
            drop(events);
            record.fault(format!("server {server} was idle, but its receipt is {receipt}"));
        }
    }
    Ok(())
}

/// Starts a drain, and follows its progress to the end.
async fn drain(server: usize, channel: Channel, record: &Record) -> Result<(), Status> {
    let mut progress = AdminServiceClient::new(channel.clone()).drain(DrainRequest::default()).await?.into_inner();
    let mut is_first = true;
    while let Some(update) = progress.message().await? {
        record.note(format_args!("drain of server {server}: {update:?}"));
        if std::mem::take(&mut is_first) {
            let ready = is_ready(channel.clone()).await?;
            if ready {
                record.fault(format!("server {server} drains, but reports that it is ready"));
            }
        }
    }
    Ok(())
}

async fn is_ready(channel: Channel) -> Result<bool, Status> {
    let request = HealthCheckRequest { service: "readiness".into() };
    let answer = HealthClient::new(channel).check(request).await?.into_inner();
    Ok(answer.status() == ServingStatus::Serving)
}

/// Waits until no job runs or is queued, and compares the counts.
async fn until_idle(server: usize, record: &Record) {
    let mut client = WorkerPoolServiceClient::new(channel(server, PUBLIC));
    loop {
        match client.stats(StatsRequest::default()).await {
            Ok(answer) => {
                let pools = answer.into_inner().stats.expect("stats").pools;
                if pools.iter().all(is_idle) {
                    return pools.iter().for_each(|pool| compare(server, pool, record));
                }
            }
            // The server is restarting.
            Err(status) if status.code() == Code::Unavailable => {}
            Err(status) => record.fault(format!("no stats of server {server}: {status:?}")),
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn is_idle(pool: &PoolStats) -> bool {
    let queue = pool.queue.as_ref().expect("a queue");
    pool.in_flight == 0
        && (queue.jobs, queue.waiting) == (0, 0)
        && pool.workers.iter().all(|worker| worker.state() == WorkerState::Idle)
}

fn compare(server: usize, pool: &PoolStats, record: &Record) {
    let jobs = pool.jobs.as_ref().expect("counts");
    let ended = jobs.completed + jobs.failed + jobs.cancelled + jobs.expired + jobs.panicked + jobs.shed;
    record.note(format_args!("server {server} is idle: {jobs:?}"));
    if jobs.accepted != ended || pool.queue.as_ref().is_some_and(|queue| queue.bytes > 0) {
        record.fault(format!("server {server} is idle, but its counts do not add up: {pool:?}"));
    }
    let mut events = record.lock();
    let own = events.life_of(server).and_then(|life| life.pools.get(&pool.name)).map(|pool| pool.stats().counts);
    drop(events);
    let rejected = jobs.rejected.iter().map(|rejected| rejected.count).sum::<u64>();
    let is_equal = own.is_some_and(|own| {
        let ended = [own.completed, own.failed, own.cancelled, own.expired, own.panicked, own.shed];
        ended == [jobs.completed, jobs.failed, jobs.cancelled, jobs.expired, jobs.panicked, jobs.shed]
            && own.rejected.iter().sum::<u64>() == rejected
    });
    if !is_equal {
        record.fault(format!("server {server} reports {jobs:?}, but counted {own:?}"));
    }
}
