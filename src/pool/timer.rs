//! The timer of a pool whose kinds have rates.

use std::sync::{
    Weak,
    atomic::{AtomicBool, Ordering},
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{inner::PoolInner, shard::Shared};
use crate::{phase::Phase, scheduler::Core};

/// When a job that waits only for time may start, for the one task that waits for it. Only pools with a rate have one.
pub(super) struct Timer {
    at: watch::Sender<Option<Instant>>,
    is_kept: AtomicBool,
}

/// Lets another task take over if this one is dropped with its runtime.
struct Keeper(Weak<PoolInner>);

impl Timer {
    pub(super) fn new() -> Self {
        Self { at: watch::Sender::new(None), is_kept: AtomicBool::new(false) }
    }

    /// Sets the time. Call it under the scheduler's lock, so that the last value is the right one.
    pub(super) fn set(&self, at: Option<Instant>) {
        self.at.send_if_modified(|current| std::mem::replace(current, at) != at);
    }
}

impl Shared {
    /// Makes sure that a task starts the jobs whose time comes.
    pub(super) fn keep_time(&self) {
        let Some(timer) = self.timer.get() else { return };
        if timer.is_kept.swap(true, Ordering::AcqRel) {
            return;
        }
        let keeper = Keeper(self.downgrade());
        self.tasks.spawn(keep(keeper, timer.at.subscribe(), self.phase.subscribe()));
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(timer) = self.0.upgrade().as_ref().and_then(|inner| inner.timer.get()) {
            timer.is_kept.store(false, Ordering::Release);
        }
    }
}

/// Returns when the pool is stopped, or gone.
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
