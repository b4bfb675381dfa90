//! Adjusts the number of workers once a second. The decision is in `src/scheduler/workers/sizer.rs`.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::info;

use super::{
    core::{Core, Resized},
    home::Shared,
    lease::WorkerHandlers,
};
use crate::phase::Phase;

/// Time between two samples of a pool's load.
const PERIOD: Duration = Duration::from_secs(1);

/// Spawns the task that adjusts the size of the pool, unless the size is fixed or a task does so already.
pub(super) fn keep_size(shell: &Shared) {
    if !shell.read(Core::is_elastic) || shell.is_sized.swap(true, Ordering::Relaxed) {
        return;
    }
    let (pool, phase) = (shell.downgrade(), shell.phase.clone());
    shell.tasks.spawn(async move {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut draining = std::pin::pin!(phase.reached(Phase::Draining));
        loop {
            tokio::select! {
                biased;
                () = &mut draining => return,
                _ = ticks.tick() => {}
            }
            let Some(shell) = pool.upgrade().map(Shared::from) else { return };
            adjust(&shell);
        }
    });
}

fn adjust(shell: &Shared) {
    let now = Instant::now();
    // Another worker would only fail, too.
    let may_grow = !shell.factories.any_backs_off(now);
    let resized = shell.drive(|core, effects| core.adjust_size(now, may_grow, WorkerHandlers::fresh, effects));
    let Some(Resized { from, to, gone }) = resized else { return };
    shell.retire(gone);
    shell.fit_processes();
    info!(pool = %shell.name, from, to, "the pool changed its number of workers");
}
