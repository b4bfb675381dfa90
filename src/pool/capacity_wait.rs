//! Waits for capacity: of a job that has none yet, and of a caller that has no job yet.

use std::{fmt, pin::pin, sync::atomic::Ordering};

use super::{
    Pool,
    inner::{PoolInner, Shared, Wiring},
};
use crate::scheduler::{Core, JobKey};

/// The wait of a job for capacity.
#[derive(Clone)]
pub struct CapacityWait {
    inner: Shared,
    key: JobKey,
}

impl CapacityWait {
    pub(super) fn of(inner: Shared, key: JobKey) -> Self {
        Self { inner, key }
    }

    /// Whether the job is still waiting for capacity.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.inner.read(|core| core.is_waiting(self.key))
    }

    /// Returns when the job has capacity or has ended. Cancel safe.
    pub async fn end(&self) {
        self.inner.wait_until(|core| !core.is_waiting(self.key)).await;
    }
}

impl fmt::Debug for CapacityWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapacityWait").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Pool {
    /// Returns when a job could be accepted: a worker is free, or the queue has room. Another caller may come first. A
    /// pool that drains returns at once, and refuses the job. Cancel safe.
    pub async fn capacity(&self) {
        let inner = self.inner();
        inner.capacity_waiters.fetch_add(1, Ordering::Relaxed);
        let _waiter = CapacityWaiter(inner);
        inner.wait_until(Core::may_accept).await;
    }
}

/// Counts a caller that waits for capacity, until it is dropped.
struct CapacityWaiter<'a>(&'a PoolInner);

impl Drop for CapacityWaiter<'_> {
    fn drop(&mut self) {
        self.0.capacity_waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PoolInner {
    /// Waits until `condition` holds. It is checked again whenever capacity changes. Cancel safe.
    async fn wait_until(&self, condition: impl Fn(&Core<Wiring>) -> bool) {
        let mut changed = pin!(self.room.notified());
        loop {
            // The waiter registers before the check, so that it misses no change in between.
            changed.as_mut().enable();
            if self.read(&condition) {
                return;
            }
            changed.as_mut().await;
            changed.set(self.room.notified());
        }
    }
}
