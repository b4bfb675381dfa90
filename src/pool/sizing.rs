//! Adjusts the number of workers once a second. The decision is in `src/scheduler/workers/sizer.rs`.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::info;

use super::{lease::WorkerHandlers, shard::Shared};
use crate::{
    phase::Phase,
    scheduler::{Core, Resized},
};

/// Time between two samples of a pool's load.
const PERIOD: Duration = Duration::from_secs(1);

/// Spawns the task that adjusts the size of the pool, unless the size is fixed or a task does so already.
pub(super) fn keep_size(inner: &Shared) {
    if !inner.read(Core::is_elastic) || inner.is_sized.swap(true, Ordering::Relaxed) {
        return;
    }
    let (pool, phase) = (inner.downgrade(), inner.phase.clone());
    inner.tasks.spawn(async move {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut draining = std::pin::pin!(phase.reached(Phase::Draining));
        loop {
            tokio::select! {
                biased;
                () = &mut draining => return,
                _ = ticks.tick() => {}
            }
            let Some(inner) = pool.upgrade().map(Shared::from) else { return };
            adjust(&inner);
        }
    });
}

fn adjust(inner: &Shared) {
    let now = Instant::now();
    // Another worker would only fail, too.
    let may_grow = !inner.factories.any_backs_off(now);
    let resized = inner.drive(|core, effects| core.adjust_size(now, may_grow, WorkerHandlers::fresh, effects));
    let Some(Resized { from, to, gone }) = resized else { return };
    inner.retire(gone);
    inner.fit_processes();
    info!(pool = %inner.name, from, to, "the pool changed its number of workers");
}
