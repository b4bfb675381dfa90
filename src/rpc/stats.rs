//! `Stats` and `WatchStats`. `src/pool/stats.rs` provides the figures.

use std::{collections::HashMap, num::NonZeroU32, sync::Arc, time::Duration};

use futures_util::StreamExt;
use tonic::{Request, Response, Status};

use super::{
    convert::{duration, instant, phase, process_state, worker_state},
    recent,
    service_state::{ResponseStream, ServiceState},
    status::{self, invalid_field},
    watches::{ticks, until},
};
use crate::{
    detached::Detached,
    handler::NewWorker,
    model::{KindLimits, Limit, Reason},
    pool::{
        AttachedWorkerStats, Counts, Distribution, FactoryStats, KindStats, LimitStats, Pool, PoolStats, Pools,
        ProcessStats, ProgramStats, SizeStats, WorkerStats,
    },
    proto::{self, StatsRequest, StatsResponse, WatchStatsRequest, WatchStatsResponse},
    store::Depth,
};

/// One snapshot.
pub(super) fn stats(service: &ServiceState, request: StatsRequest) -> Result<Response<StatsResponse>, Status> {
    check_pool(&service.pools, &request.pool)?;
    Ok(Response::new(StatsResponse { stats: Some(snapshot(service, &request.pool)) }))
}

/// Sends a snapshot now and at each interval, until the process ends or the credentials of the caller have expired.
pub(super) fn watch_stats(
    service: &Arc<ServiceState>,
    request: Request<WatchStatsRequest>,
) -> Result<Response<ResponseStream<WatchStatsResponse>>, Status> {
    let ended = service.watches.open(&request)?;
    let request = request.into_inner();
    check_pool(&service.pools, &request.pool)?;
    let millis = match request.interval_ms {
        0 => 1_000,
        millis @ 100..=60_000 => millis,
        millis => {
            let description = format!("{millis} is out of range; send 0 for the default or 100 to 60000");
            return Err(invalid_field("interval_ms", &description));
        }
    };
    let (ticks, service) = (ticks(Duration::from_millis(millis.into())), Arc::clone(service));
    let snapshots = ticks.map(move |()| Ok(WatchStatsResponse { stats: Some(snapshot(&service, &request.pool)) }));
    Ok(Response::new(until(ended, snapshots)))
}

/// Checks that a call names a pool that exists, or no pool.
pub(super) fn check_pool(pools: &Pools, name: &str) -> Result<(), Status> {
    if name.is_empty() || pools.get(name).is_some() { Ok(()) } else { Err(no_pool(pools, name)) }
}

/// The status of a call for an unknown pool.
pub(super) fn no_pool(pools: &Pools, name: &str) -> Status {
    let names: Vec<_> = pools.all().iter().map(|pool| &**pool.name()).collect();
    let name: String = name.chars().take(64).collect();
    status::saying(Reason::NotFound, format!("no pool {name:?}; there are {}", names.join(", ")))
}

fn snapshot(service: &ServiceState, pool: &str) -> proto::Stats {
    let shown = service.pools.all().iter().filter(|entry| pool.is_empty() || &**entry.name() == pool);
    let mut pools: Vec<_> = shown.map(Pool::stats).map(pool_stats).collect();
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(depths) = service.detached.as_ref().and_then(Detached::depths) {
        let depths: HashMap<_, _> = depths.into_iter().collect();
        for kind in pools.iter_mut().flat_map(|pool| &mut pool.kinds) {
            kind.detached = Some(detached_stats(depths.get(&kind.name).copied().unwrap_or_default()));
        }
    }
    pools.iter_mut().for_each(|pool| recent::add(&service.monitor, pool));
    let mut stats = proto::Stats {
        phase: phase(service.phase.get()).into(),
        uptime: Some(duration(service.started.elapsed())),
        pools,
        now: Some(recent::now()),
        server: Some(recent::server()),
        store: recent::store(&service.monitor),
        ..proto::Stats::default()
    };
    if service.access.is_of_operators {
        recent::add_private(service, &mut stats);
    } else {
        recent::remove_private(&mut stats);
    }
    stats
}

fn pool_stats(stats: PoolStats) -> proto::PoolStats {
    let mut kinds: Vec<_> = stats.kinds.into_iter().map(kind_stats).collect();
    kinds.sort_by(|a, b| a.name.cmp(&b.name));
    proto::PoolStats {
        name: stats.name.to_string(),
        phase: phase(stats.phase).into(),
        queue: Some(proto::QueueStats {
            jobs: stats.queued as u64,
            jobs_capacity: stats.queue_jobs as u64,
            bytes: stats.queued_bytes as u64,
            bytes_capacity: stats.queue_bytes as u64,
            waiting: stats.waiting as u64,
            waiting_capacity: stats.queue_waiting as u64,
            oldest_age: Some(duration(stats.oldest_age)),
            expected_wait: Some(duration(stats.expected_wait)),
        }),
        in_flight: count(stats.in_flight),
        utilization: stats.utilization,
        jobs: Some(job_counts(&stats.counts)),
        slow_polls: stats.slow_polls,
        stale: stats.stale as u64,
        paused: stats.paused.map(duration),
        size: Some(size_stats(&stats.size)),
        kinds,
        workers: stats.workers.into_iter().map(worker_stats).collect(),
        programs: stats.programs.into_iter().map(program_stats).collect(),
        attached: stats.attached.into_iter().flatten().map(attached_stats).collect(),
        ..proto::PoolStats::default()
    }
}

fn job_counts(counts: &Counts) -> proto::JobCounts {
    let Counts { accepted, completed, failed, cancelled, expired, panicked, shed, rejected } = *counts;
    let named = Reason::REFUSALS.map(Reason::name).into_iter().zip(rejected).filter(|(_, count)| *count > 0);
    proto::JobCounts {
        accepted,
        completed,
        failed,
        cancelled,
        expired,
        panicked,
        shed,
        rejected: named.map(|(reason, count)| proto::RejectedCount { reason: reason.into(), count }).collect(),
    }
}

fn kind_stats(stats: KindStats) -> proto::KindStats {
    let KindStats { name, expected_wait, queue_wait, run_time, limit, factory, faults: _, last_failure } = stats;
    let FactoryStats { failures, in_a_row, retry_in } = factory;
    proto::KindStats {
        name: name.to_string(),
        queue_wait: Some(distribution(queue_wait)),
        run_time: Some(distribution(run_time)),
        limit: limit.map(limit_stats),
        factory: Some(proto::FactoryStats { failures, in_a_row, retry_in: Some(duration(retry_in)) }),
        detached: None,
        expected_wait: Some(duration(expected_wait)),
        last_failure: last_failure.map(|ended| proto::LastFailure {
            message: recent::cut(ended.failure.map(|failure| failure.message).unwrap_or_default()),
            time: Some(instant(ended.at)),
            job_id: ended.job.to_string(),
        }),
        ..proto::KindStats::default()
    }
}

fn detached_stats(depth: Depth) -> proto::DetachedStats {
    let Depth { scheduled, ready, blocked, leased, dead, oldest_ready } = depth;
    let oldest_ready_age = oldest_ready.map(duration);
    proto::DetachedStats { scheduled, ready, blocked, running: leased, dead, oldest_ready_age }
}

fn limit_stats(stats: LimitStats) -> proto::LimitStats {
    let LimitStats { limits: KindLimits { all, per_key, keys: _, share: _ }, running, queued, keys } = stats;
    let bound = |limit: Limit| proto::LimitBound {
        concurrency: limit.concurrency.map_or(0, NonZeroU32::get),
        rate: limit.rate.map_or(0.0, |rate| 1.0 / rate.interval.as_secs_f64()),
        burst: limit.rate.map_or(0, |rate| rate.burst.get()),
    };
    proto::LimitStats {
        all: Some(bound(all)),
        per_key: Some(bound(per_key)),
        running,
        queued: queued as u64,
        keys: keys as u64,
    }
}

pub(super) fn size_stats(size: &SizeStats) -> proto::SizeStats {
    let SizeStats { min, max, workers, retiring, slowdown, held_back, cold_start: _ } = *size;
    let [min, max, workers, retiring] = [min, max, workers, retiring].map(count);
    proto::SizeStats { min, max, workers, retiring, slowdown, held_back }
}

pub(super) fn distribution(distribution: Distribution) -> proto::Distribution {
    let Distribution { count, p50, p90, p99, max } = distribution;
    proto::Distribution {
        count,
        p50: Some(duration(p50)),
        p90: Some(duration(p90)),
        p99: Some(duration(p99)),
        max: Some(duration(max)),
    }
}

fn worker_stats(stats: WorkerStats) -> proto::WorkerStats {
    proto::WorkerStats {
        id: stats.id,
        state: worker_state(stats.state).into(),
        job_id: stats.job.map(|job| job.to_string()).unwrap_or_default(),
        kind: stats.kind.map(|kind| kind.to_string()).unwrap_or_default(),
        job_age: Some(duration(stats.job_age)),
        completed: stats.completed,
        failed: stats.failed,
        total_run_time: Some(duration(stats.total_run)),
        mean_run_time: Some(duration(stats.mean_run)),
        since_progress: Some(duration(stats.since_progress)),
    }
}

fn program_stats(stats: ProgramStats) -> proto::ProgramStats {
    let ProgramStats { name, processes, starts, failures, last_failure, failed_at, late_messages: _ } = stats;
    proto::ProgramStats {
        name: name.to_string(),
        processes: processes.into_iter().map(process_stats).collect(),
        starts,
        failures,
        last_failure,
        failures_minute: 0,
        last_failure_time: failed_at.map(instant),
    }
}

fn process_stats(stats: ProcessStats) -> proto::ProcessStats {
    let ProcessStats { state, pid, running, jobs, memory } = stats;
    let (state, pid, running) = (process_state(state).into(), pid.unwrap_or_default(), count(running));
    proto::ProcessStats { state, pid, running, jobs, memory_bytes: memory }
}

fn attached_stats(stats: AttachedWorkerStats) -> proto::AttachedWorkerStats {
    let AttachedWorkerStats { worker, running, abandoned, jobs, is_leaving: leaving, attached_at } = stats;
    let NewWorker { name, peer, labels, concurrency } = worker;
    let [concurrency, running, abandoned] = [concurrency, running, abandoned].map(count);
    let attached_time = Some(instant(attached_at));
    proto::AttachedWorkerStats { name, peer, labels, concurrency, running, abandoned, jobs, leaving, attached_time }
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
