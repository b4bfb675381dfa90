use std::sync::Arc;

use futures_util::future::try_join_all;
use tokio::sync::Barrier;
use waterwheel::{
    Job, Output, Pool,
    handler::Kind,
    pool::{PoolStats, WorkerState},
};

use super::kind;

/// A kind for [`meet`]. Its jobs end when `workers` of them run at the same time.
pub(crate) fn meeting(workers: usize) -> Kind {
    let barrier = Arc::new(Barrier::new(workers));
    kind("meeting", move |_, _| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Ok(Output::default())
        }
    })
}

/// Runs one job on each of the `workers` at the same time. This fails if a worker is lost.
pub(crate) async fn meet(pool: &Pool, workers: usize) {
    let jobs = (0..workers).map(|_| pool.submit(Job::new("meeting", "")));
    try_join_all(jobs).await.expect("every worker takes part");
}

/// Checks that no job runs or is queued, and that every accepted job ended once.
pub(crate) fn assert_idle(pool: &Pool, workers: usize) {
    let stats = pool.stats();
    assert_eq!(stats.workers.len(), workers, "{stats:#?}");
    assert!(stats.workers.iter().all(|worker| worker.state == WorkerState::Idle), "{stats:#?}");
    assert_eq!((stats.queued, stats.waiting, stats.in_flight, stats.queued_bytes), (0, 0, 0, 0), "{stats:#?}");
    assert_eq!(stats.counts.accepted, stats.counts.ended(), "{stats:#?}");
    assert_eq!(pool.worker_count(), workers);
}

/// Checks that the counts of a busy pool add up.
///
/// The outcome of a stopped job may be decided before its worker is free.
pub(crate) fn assert_balanced(stats: &PoolStats) {
    let settled = stats.counts.ended() + stats.queued as u64;
    let range = settled..=settled + stats.in_flight as u64;
    assert!(range.contains(&stats.counts.accepted), "{stats:#?}");
}
