//! What handlers hold, for jobs that can wait elsewhere. `src/scheduler/limit/hold.rs` holds the others.

use std::{pin::pin, time::Duration};

use tokio::time::Instant;

use super::Pool;
use crate::model::Limiter;

impl Pool {
    /// What a handler holds of a kind and a limit key, and how long it still does.
    pub(crate) fn held_for(&self, kind: &str, limit_key: &str) -> Option<(Limiter, Duration)> {
        let (inner, now) = (self.inner(), Instant::now());
        let kind = inner.find_kind(kind)?;
        let (scope, until) = inner.read(|core| core.held_until(kind, limit_key)).filter(|(_, until)| *until > now)?;
        Some((scope, until - now))
    }

    /// Waits until there is such a hold. Cancel safe.
    pub(crate) async fn held(&self, kind: &str, limit_key: &str) -> (Limiter, Duration) {
        loop {
            let mut changed = pin!(self.inner().held.notified());
            changed.as_mut().enable();
            if let Some(found) = self.held_for(kind, limit_key) {
                return found;
            }
            changed.await;
        }
    }
}
