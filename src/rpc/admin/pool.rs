//! `Pause`, `Resume` and `Resize`.

use std::num::NonZeroUsize;

use tonic::{Response, Status};
use tracing::info;

use super::Admin;
use crate::{
    model::Reason,
    phase::Phase,
    pool::{Hold, Pool},
    proto::{PauseRequest, PauseResponse, PoolState, ResizeRequest, ResizeResponse, ResumeRequest, ResumeResponse},
    rpc::{
        convert::{duration, phase},
        stats::{no_pool, size_stats},
        status::{failed_precondition, invalid_field},
    },
};

/// Most workers of a pool, the same as in the configuration.
const MAX_WORKERS: u32 = 65_536;

/// The pool named `name`.
pub(super) fn find<'a>(admin: &'a Admin, name: &str) -> Result<&'a Pool, Status> {
    if name.is_empty() {
        let names: Vec<_> = admin.pools.all().iter().map(|pool| &**pool.name()).collect();
        return Err(invalid_field("pool", &format!("name one of {}", names.join(", "))));
    }
    admin.pools.get(name).ok_or_else(|| no_pool(&admin.pools, name))
}

/// Stops starting jobs of a pool.
pub(super) fn pause(admin: &Admin, request: &PauseRequest) -> Result<Response<PauseResponse>, Status> {
    let pool = find(admin, &request.pool)?;
    if !pool.pause() {
        check_serving(pool)?;
        return Err(failed_precondition(Reason::PoolDraining, Reason::PoolDraining.words()));
    }
    info!(pool = %pool.name(), "an operator paused the pool");
    Ok(Response::new(PauseResponse { pool: Some(state(pool)) }))
}

/// Starts jobs of a pool again.
pub(super) fn resume(admin: &Admin, request: &ResumeRequest) -> Result<Response<ResumeResponse>, Status> {
    let pool = find(admin, &request.pool)?;
    check_serving(pool)?;
    let held = pool.hold() != Hold::None;
    pool.resume();
    if held {
        info!(pool = %pool.name(), "an operator resumed the pool");
    }
    Ok(Response::new(ResumeResponse { pool: Some(state(pool)) }))
}

/// Changes the number of workers.
pub(super) fn resize(admin: &Admin, request: &ResizeRequest) -> Result<Response<ResizeResponse>, Status> {
    let ResizeRequest { pool, min_workers: min, max_workers: max, reason: _ } = request;
    let pool = find(admin, pool)?;
    let max = if *max == 0 { min } else { max };
    let Some(least) = count(*min) else {
        return Err(invalid_field("min_workers", &format!("send 1 to {MAX_WORKERS}")));
    };
    let Some(most) = count(*max).filter(|most| *most >= least) else {
        return Err(invalid_field("max_workers", &format!("send min_workers to {MAX_WORKERS}, or 0 for min_workers")));
    };
    check_serving(pool)?;
    if !pool.resize(least, most) {
        return Err(invalid_field("pool", "its workers attach from elsewhere; attach more of them, or fewer"));
    }
    info!(pool = %pool.name(), min, max, "an operator resized the pool");
    Ok(Response::new(ResizeResponse { pool: Some(state(pool)) }))
}

fn count(workers: u32) -> Option<NonZeroUsize> {
    let count = usize::try_from(workers).ok().and_then(NonZeroUsize::new);
    count.filter(|_| workers <= MAX_WORKERS)
}

fn check_serving(pool: &Pool) -> Result<(), Status> {
    if pool.phase() < Phase::Draining {
        return Ok(());
    }
    Err(failed_precondition(Reason::Draining, Reason::Draining.words()))
}

fn state(pool: &Pool) -> PoolState {
    let stats = pool.stats();
    PoolState {
        name: stats.name.to_string(),
        phase: phase(stats.phase).into(),
        paused: stats.paused.map(duration),
        queued: stats.queued as u64,
        running: stats.in_flight as u64,
        size: Some(size_stats(&stats.size)),
    }
}
