//! The timers of a pool: start rate-limited jobs when their time comes, and adjust the number of workers.
//! `src/scheduler/workers/sizer.rs` decides on the number.

use super::{
    inner::{PoolInner, Shared},
    lease::WorkerHandlers,
};
use crate::{
    phase::Phase,
    scheduler::{Core, Resized},
};
use std::{
    sync::{Weak, atomic::Ordering},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tracing::info;

/// Lets another task take over if this one is dropped with its runtime.
struct Keeper(Weak<PoolInner>);

impl Shared {
    /// Makes sure that a task starts the jobs when their time comes.
    pub(super) fn keep_time(&self) {
        let Some(timer) = self.timer.get() else { return };
        if self.is_timed.swap(true, Ordering::AcqRel) {
            return;
        }
        let keeper = Keeper(self.downgrade());
        self.tasks.spawn(keep(keeper, timer.subscribe(), self.phase.subscribe()));
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.is_timed.store(false, Ordering::Release);
        }
    }
}

/// Returns when the pool is stopped or gone.
async fn keep(keeper: Keeper, mut at: watch::Receiver<Option<Instant>>, mut phase: watch::Receiver<Phase>) {
    loop {
        let next = *at.borrow_and_update();
        let comes = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase >= Phase::Stopped) => return,
            changed = at.changed() => if changed.is_err() { return },
            () = comes => {
                let Some(inner) = keeper.0.upgrade().map(Shared::from) else { return };
                let now = Instant::now();
                inner.drive(|core: &mut Core<_>, effects| core.tick(now, effects));
            }
        }
    }
}

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
    // Another worker could not make its handler either.
    let may_grow = !inner.factories.any_backs_off(now);
    let resized = inner.drive(|core, effects| core.adjust_size(now, may_grow, WorkerHandlers::fresh, effects));
    let Some(Resized { from, to, gone }) = resized else { return };
    inner.retire(gone);
    inner.fit_externals();
    info!(pool = %inner.name, from, to, "the pool changed its number of workers");
}
