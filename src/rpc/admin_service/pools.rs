//! `Pause`, `Resume`, `Resize` and `Drain`. `src/app/drain.rs` drains the process, and `src/pool/drain.rs` one pool.

use std::{future::ready, num::NonZeroUsize, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use tokio::time::Instant;
use tokio_stream::wrappers::WatchStream;
use tonic::{Response, Status};
use tracing::info;

use super::{Admin, DrainProgress};
use crate::{
    model::Reason,
    phase::Phase,
    pool::{Hold, Pool},
    proto::{
        self, DrainRequest, DrainResponse, PauseRequest, PauseResponse, PoolState, ResizeRequest, ResizeResponse,
        ResumeRequest, ResumeResponse,
    },
    rpc::{
        convert::{duration, phase},
        stats::{no_pool, size_stats},
        status::{failed_precondition, invalid_field},
        watches::ticks,
        worker_pool_service::ResponseStream,
    },
};

/// Largest number of workers of a pool, the same as in the configuration.
const MAX_WORKERS: u32 = 65_536;
/// Interval of the progress reports of a drain.
const REPORT: Duration = Duration::from_millis(100);

/// The pool named `name`.
fn find<'a>(admin: &'a Admin, name: &str) -> Result<&'a Pool, Status> {
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

/// Drains the process, or one pool.
pub(super) fn drain(admin: &Admin, request: &DrainRequest) -> Result<Response<ResponseStream<DrainResponse>>, Status> {
    match request.pool.as_str() {
        "" => Ok(Response::new(drain_all(admin))),
        name => Ok(Response::new(drain_one(admin, find(admin, name)?.clone()))),
    }
}

fn drain_all(admin: &Admin) -> ResponseStream<DrainResponse> {
    info!("an operator drains the server");
    admin.control.drain();
    let control = Arc::clone(&admin.control);
    // The end is reported at once, because the connection closes soon after.
    let settled = WatchStream::new(control.cut()).map(|_| ());
    reports(admin, settled, move || {
        let progress = control.progress();
        (report(&progress), progress.cut.is_some())
    })
}

fn drain_one(admin: &Admin, pool: Pool) -> ResponseStream<DrainResponse> {
    pool.shut();
    info!(pool = %pool.name(), "an operator drains the pool");
    let (begin, before) = (Instant::now(), pool.stats().counts.ended());
    // A drain of the process, which also drains this pool, is reported in the same way.
    reports(admin, stream::pending(), move || {
        let report = report_of(&pool, begin, before);
        let is_last = matches!(report.phase(), proto::Phase::Stopped | proto::Phase::Serving);
        (report, is_last)
    })
}

/// Reports progress at each interval, at each change of the phase, and at each of `events`, up to the final report.
fn reports(
    admin: &Admin,
    events: impl Stream<Item = ()> + Send + 'static,
    mut report: impl FnMut() -> (DrainResponse, bool) + Send + 'static,
) -> ResponseStream<DrainResponse> {
    let phases = WatchStream::new(admin.control.phase()).map(|_| ());
    let updates = stream::select(stream::select(ticks(REPORT), phases), events);
    Box::pin(updates.scan(false, move |ended, ()| {
        if *ended {
            return ready(None);
        }
        let (report, is_last) = report();
        *ended = is_last;
        ready(Some(Ok(report)))
    }))
}

fn report(progress: &DrainProgress) -> DrainResponse {
    let reached = progress.phase;
    DrainResponse {
        // The drain continues while answers are being sent.
        phase: phase(if progress.cut.is_none() { reached.min(Phase::Stopping) } else { reached }).into(),
        queued: progress.queued as u64,
        running: progress.running as u64,
        finished: progress.finished,
        lost: progress.lost,
        cut: progress.cut.unwrap_or_default(),
        elapsed: Some(duration(progress.elapsed)),
        expected: Some(duration(progress.expected)),
        hard_stop: Some(duration(progress.hard_stop)),
    }
}

fn report_of(pool: &Pool, begin: Instant, before: u64) -> DrainResponse {
    let stats = pool.stats();
    let lost = pool.report().lost.len() as u64;
    DrainResponse {
        phase: phase(stats.phase).into(),
        queued: stats.queued as u64,
        running: stats.in_flight as u64,
        finished: (stats.counts.ended() - before).saturating_sub(lost),
        lost,
        cut: 0,
        elapsed: Some(duration(begin.elapsed())),
        expected: Some(duration(stats.expected_wait)),
        hard_stop: None,
    }
}
