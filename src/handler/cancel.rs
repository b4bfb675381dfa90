//! The request to stop a job, and its reason. The stop ladder is in `src/pool/stop.rs`.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

use super::Context;

/// Who asked a job to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// Its deadline, or a limit on its run.
    Deadline,
    /// Its caller left or cancelled.
    Caller,
    /// The drain ran out of time.
    Drain,
    /// An operator cancelled it.
    Operator,
}

impl StopReason {
    /// Name in messages to workers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deadline => "DEADLINE",
            Self::Caller => "CALLER",
            Self::Drain => "DRAIN",
            Self::Operator => "OPERATOR",
        }
    }
}

/// Tells a handler that it should stop. Clones share the state; the first reason stays.
#[derive(Debug, Clone)]
pub struct CancelToken(Context);

/// What a context holds of its tokens: jobs that nobody cancels, which are most, need nothing more.
#[derive(Debug, Default)]
pub(super) struct StopState {
    reason: AtomicU8,
    changed: Notify,
}

impl StopState {
    pub(super) fn stop(&self, reason: StopReason) -> bool {
        let code = match reason {
            StopReason::Deadline => 1,
            StopReason::Caller => 2,
            StopReason::Drain => 3,
            StopReason::Operator => 4,
        };
        let first = self.reason.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if first {
            self.changed.notify_waiters();
        }
        first
    }

    pub(super) fn reason(&self) -> Option<StopReason> {
        match self.reason.load(Ordering::Acquire) {
            1 => Some(StopReason::Deadline),
            2 => Some(StopReason::Caller),
            3 => Some(StopReason::Drain),
            4 => Some(StopReason::Operator),
            _ => None,
        }
    }

    pub(super) async fn stopped(&self) -> StopReason {
        loop {
            let changed = self.changed.notified();
            // Registered before the check, so that a cancel in between is not missed.
            if let Some(reason) = self.reason() {
                return reason;
            }
            changed.await;
        }
    }
}

impl CancelToken {
    pub(super) fn of(cx: &Context) -> Self {
        Self(cx.clone())
    }

    /// Asks to stop. Returns whether this was the first time.
    pub fn cancel(&self, reason: StopReason) -> bool {
        self.0.stop_state().stop(reason)
    }

    /// Why to stop; `None` while the job may go on. Blocking handlers ask this between steps.
    #[must_use]
    pub fn reason(&self) -> Option<StopReason> {
        self.0.stop_state().reason()
    }

    /// Whether the job was asked to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// Returns when the job is asked to stop. Cancel safe.
    pub async fn cancelled(&self) -> StopReason {
        self.0.cancelled().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::ContextParts;

    #[tokio::test]
    async fn first_reason_stays_and_wakes() {
        let token = Context::new(ContextParts::sample()).cancel_token();
        let waiter = token.clone();
        let (reason, first) =
            tokio::join!(async move { waiter.cancelled().await }, async { token.cancel(StopReason::Caller) });
        assert_eq!((reason, first), (StopReason::Caller, true));
        assert!(!token.cancel(StopReason::Drain));
        assert_eq!(token.cancelled().await, StopReason::Caller);
    }
}
