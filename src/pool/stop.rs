//! The stop ladder: ask, wait the grace, force.

use std::time::Duration;

use tokio::time::{sleep, sleep_until};

use super::{attempt::Attempt, inner::PoolInner, outcome::JobResult};
use crate::{
    incidents::{self, Incident},
    model::Rung,
    phase::Phase,
};

/// Where the stop ladder ended.
pub(super) enum LadderEnd {
    /// The handler ended within the grace; `None` if the outcome was decided before.
    Yielded(Option<JobResult>),
    /// The grace is over, and the attempt must be dropped. That cuts off an asynchronous handler, and leaves a blocking
    /// one to its thread.
    CutOff(Rung),
}

/// Waits on the stop ladder, from the request to stop to the end of the grace. Cancel safe, but a second call restarts
/// the grace.
pub(super) async fn wait_for_stop(attempt: &mut Attempt) -> LadderEnd {
    let grace = attempt.inner().grace(attempt.kind);
    let inner = attempt.inner().clone();
    tokio::select! {
        biased;
        ended = &mut *attempt => return LadderEnd::Yielded(ended),
        () = sleep(grace) => {}
        () = forced(&inner) => {}
    }
    let (cx, blocking) = (attempt.cx.clone(), attempt.is_blocking());
    let replaced = blocking && attempt.inner().stick(attempt.key());
    cx.span().in_scope(|| {
        incidents::log(cx.pool(), "STOP_IGNORED", || Incident {
            what: "handlers ignored the request to stop",
            kind: cx.kind().to_string(),
            job: cx.job().to_string(),
            request_id: cx.request_id().to_string(),
            tenant: cx.tenant().map(|tenant| tenant.to_string()).unwrap_or_default(),
            cause: match (blocking, replaced) {
                (false, _) => format!("it was forced after {} ms", grace.as_millis()),
                (true, true) => "its thread was replaced".to_owned(),
                (true, false) => "its thread is stuck, and was not replaced".to_owned(),
            },
            ..Incident::default()
        });
    });
    LadderEnd::CutOff(if blocking { Rung::Stuck } else { Rung::Forced })
}

/// Returns when the stop of the whole pool forces its jobs.
pub(super) async fn forced(inner: &PoolInner) {
    inner.phase.reached(Phase::Stopping).await;
    match inner.force_by.get() {
        Some(at) => sleep_until(*at).await,
        None => std::future::pending().await,
    }
}

impl PoolInner {
    /// Time between the request to stop and the forced stop of a job of `kind`.
    pub(super) fn grace(&self, kind: usize) -> Duration {
        self.kinds[kind].get_options().cancel_grace.unwrap_or(self.settings.cancel_grace)
    }
}
