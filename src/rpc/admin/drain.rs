//! `Drain` and its progress. What the drain does is in `src/app/drain.rs`, and for one pool in `src/pool/drain.rs`.

use std::{sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_stream::wrappers::{IntervalStream, WatchStream};
use tonic::{Response, Status};
use tracing::info;

use super::{Admin, DrainProgress, pool};
use crate::{
    phase::Phase,
    pool::Pool,
    proto::{self, DrainRequest, DrainResponse},
    rpc::{
        convert::{duration, phase},
        worker_pool::ResponseStream,
    },
};

const REPORT: Duration = Duration::from_millis(100);

/// Drains the process, or one pool.
pub(super) fn drain(admin: &Admin, request: &DrainRequest) -> Result<Response<ResponseStream<DrainResponse>>, Status> {
    match request.pool.as_str() {
        "" => Ok(Response::new(drain_all(admin))),
        name => Ok(Response::new(drain_one(admin, pool::find(admin, name)?.clone()))),
    }
}

fn drain_all(admin: &Admin) -> ResponseStream<DrainResponse> {
    info!("an operator drains the server");
    admin.control.drain();
    let control = Arc::clone(&admin.control);
    // The end is reported at once, because the connection closes soon after.
    let moves = WatchStream::new(control.phase()).map(|_| ());
    let settled = WatchStream::new(control.cut()).map(|_| ());
    let updates = stream::select(stream::select(ticks(), moves), settled);
    let reports = updates.map(move |()| control.progress()).scan(false, |ended, progress| {
        let report = (!*ended).then(|| Ok(report(&progress)));
        *ended = progress.cut.is_some();
        std::future::ready(report)
    });
    Box::pin(reports)
}

fn drain_one(admin: &Admin, pool: Pool) -> ResponseStream<DrainResponse> {
    pool.shut();
    info!(pool = %pool.name(), "an operator drains the pool");
    let (begin, before) = (Instant::now(), pool.stats().counts.ended());
    // A drain of the process, which also drains this pool, is reported in the same way.
    let updates = stream::select(ticks(), WatchStream::new(admin.control.phase()).map(|_| ()));
    let reports = updates.map(move |()| report_of(&pool, begin, before)).scan(false, |ended, report| {
        let over = matches!(report.phase(), proto::Phase::Stopped | proto::Phase::Serving);
        let shown = (!std::mem::replace(ended, over)).then_some(Ok(report));
        std::future::ready(shown)
    });
    Box::pin(reports)
}

fn ticks() -> impl Stream<Item = ()> {
    let mut ticks = interval(REPORT);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    IntervalStream::new(ticks).map(|_| ())
}

fn report(progress: &DrainProgress) -> DrainResponse {
    let DrainProgress { phase: reached, queued, running, finished, lost, cut, elapsed, expected, hard_stop } =
        *progress;
    DrainResponse {
        // The drain continues while answers are being sent.
        phase: phase(if cut.is_none() { reached.min(Phase::Stopping) } else { reached }).into(),
        queued: queued as u64,
        running: running as u64,
        finished,
        lost,
        cut: cut.unwrap_or_default(),
        elapsed: Some(duration(elapsed)),
        expected: Some(duration(expected)),
        hard_stop: Some(duration(hard_stop)),
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
