use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use tokio::sync::Notify;

/// Who asked a job to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// Its deadline, or a limit on its run.
    Deadline,
    /// Its caller left or cancelled.
    Caller,
    /// The drain ran out of time.
    Drain,
}

/// Tells a handler that it should stop. Clones share the state; the first reason stays.
#[derive(Debug, Clone)]
pub struct CancelToken(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    reason: AtomicU8,
    changed: Notify,
}

impl Default for CancelToken {
    fn default() -> Self {
        Self(Arc::new(Shared { reason: AtomicU8::new(0), changed: Notify::new() }))
    }
}

impl CancelToken {
    /// Asks to stop. Returns whether this was the first time.
    pub fn cancel(&self, reason: StopReason) -> bool {
        let code = match reason {
            StopReason::Deadline => 1,
            StopReason::Caller => 2,
            StopReason::Drain => 3,
        };
        let first = self.0.reason.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if first {
            self.0.changed.notify_waiters();
        }
        first
    }

    /// Why to stop; `None` while the job may go on. Blocking handlers ask this between steps.
    #[must_use]
    pub fn reason(&self) -> Option<StopReason> {
        match self.0.reason.load(Ordering::Acquire) {
            1 => Some(StopReason::Deadline),
            2 => Some(StopReason::Caller),
            3 => Some(StopReason::Drain),
            _ => None,
        }
    }

    /// Whether the job was asked to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// Returns when the job is asked to stop. Cancel safe.
    pub async fn cancelled(&self) -> StopReason {
        loop {
            let changed = self.0.changed.notified();
            // Registered before the check, so that a cancel in between is not missed.
            if let Some(reason) = self.reason() {
                return reason;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn first_reason_stays_and_wakes() {
        let token = CancelToken::default();
        let waiter = token.clone();
        let (reason, first) =
            tokio::join!(async move { waiter.cancelled().await }, async { token.cancel(StopReason::Caller) });
        assert_eq!((reason, first), (StopReason::Caller, true));
        assert!(!token.cancel(StopReason::Drain));
        assert_eq!(token.cancelled().await, StopReason::Caller);
    }
}
