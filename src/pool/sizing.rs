use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::info;

use super::{
    core::{Core, Resized},
    home::Shared,
    lease::WorkerState,
};
use crate::phase::Phase;

/// Between two looks at the size of a pool.
const LOOK: Duration = Duration::from_secs(1);

/// Has somebody look at the size of the pool from now on, where it is not fixed and nobody does so yet.
pub(super) fn keep_size(shell: &Shared) {
    if !shell.read(Core::is_elastic) || shell.is_sized.swap(true, Ordering::Relaxed) {
        return;
    }
    let (pool, phase) = (shell.downgrade(), shell.phase.clone());
    shell.tasks.spawn(async move {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut draining = std::pin::pin!(phase.reached(Phase::Draining));
        loop {
            tokio::select! {
                biased;
                () = &mut draining => return,
                _ = looks.tick() => {}
            }
            let Some(shell) = pool.upgrade().map(Shared::from) else { return };
            look(&shell);
        }
    });
}

fn look(shell: &Shared) {
    let now = Instant::now();
    // A worker more would be one more that fails.
    let may_grow = !shell.factories.any_backs_off(now);
    let looked = shell.drive(|core, effects| core.look(now, may_grow, WorkerState::fresh, effects));
    let Some(Resized { from, to, gone }) = looked else { return };
    shell.retire(gone);
    info!(pool = %shell.name, from, to, "the pool changed its number of workers");
}
