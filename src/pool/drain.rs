//! The drain of one pool, and the end of its handlers. The drain of the process is in `src/app/drain.rs`.

use std::{panic::AssertUnwindSafe, time::Duration};

use super::{
    LostJob, Pool,
    inner::{PoolInner, Shared},
    lease::{Gone, WorkerHandlers},
    stop_ladder::forced,
};
use crate::{
    handler::{Contained, Context, Instance, StopReason, panic_message},
    model::{Durations, JobId, KindId},
    phase::Phase,
};
use futures_util::{FutureExt, future::join_all};
use rustc_hash::FxHashSet;
use tokio::time::{Instant, sleep};
use tracing::warn;

/// Time for answers to be sent before the kill phase ends; a fifth of the phase if that is shorter.
const ANSWER_MARGIN: Duration = Duration::from_millis(100);

/// Result of a drain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainReport {
    /// Every accepted job that was not finished.
    pub lost: Vec<LostJob>,
}

impl Pool {
    /// Starts the drain: refuses new jobs and waiting callers, and continues queued and running jobs. Further calls do
    /// nothing.
    pub fn drain(&self) {
        self.inner().phase.advance(Phase::Draining);
        let now = Instant::now();
        self.inner().drive(|core, effects| core.close(now, effects));
    }

    /// How long drains of the pool took, by [`shut`](Self::shut) and by [`drain`](Self::drain).
    #[must_use]
    pub fn drain_durations(&self) -> Durations {
        self.inner().drains.lock().clone()
    }

    /// Expected time until no job is left, if none arrives.
    #[must_use]
    pub fn expected_end(&self) -> Duration {
        let now = Instant::now();
        self.inner().read(|core| core.expected_end(now))
    }

    /// Waits until a draining pool has no job left. Cancel safe.
    pub async fn wait(&self) {
        self.inner().phase.reached(Phase::Stopped).await;
        let idle = self.inner().drive(|core, _| core.retire_idle());
        self.inner().retire(idle);
        self.inner().close_externals();
        // These tasks close handlers, run shielded work, and stop jobs that were answered.
        self.inner().tasks.wait().await;
    }

    /// Ends the remaining jobs: answers queued ones, asks running ones to stop, and then forces them. Returns at once;
    /// [`wait`](Self::wait) returns at the end.
    pub fn stop(&self) {
        let inner = self.inner();
        self.drain();
        inner.phase.advance(Phase::Stopping);
        let running: Vec<Context> = inner.drive(|core, effects| {
            core.abandon_queued(effects);
            core.running_jobs().cloned().collect()
        });
        for cx in running {
            cx.stop(StopReason::Drain);
        }
    }

    /// The same as [`stop`](Self::stop), but forces running jobs within `kill`. All callers are answered, and all
    /// programs are killed, shortly before `kill` has passed.
    pub fn stop_within(&self, kill: Duration) {
        let margin = (kill / 5).min(ANSWER_MARGIN);
        if let Some(at) = Instant::now().checked_add(kill - margin) {
            // The first of two stops sets the deadline.
            let _ = self.inner().force_by.set(at);
        }
        self.stop();
    }

    /// Drains the pool, waits for at most `finish`, stops the remaining jobs, waits for at most `kill`, and reports the
    /// lost jobs.
    pub async fn close(&self, finish: Duration, kill: Duration) -> DrainReport {
        self.drain();
        if tokio::time::timeout(finish, self.wait()).await.is_err() {
            self.stop_within(kill);
            // Jobs that do not stop in time are in the report.
            let _ = tokio::time::timeout(kill, self.wait()).await;
        }
        self.report()
    }

    /// The accepted jobs that were not finished so far. The drain ended them, or they still run after the request to
    /// stop.
    #[must_use]
    pub fn report(&self) -> DrainReport {
        let inner = self.inner();
        // Running jobs are read first: a job that ends meanwhile is already recorded.
        let running: Vec<Context> = match inner.phase.get() {
            Phase::Stopping => inner.read(|core| core.running_jobs().cloned().collect()),
            _ => Vec::new(),
        };
        let mut lost = inner.lost.lock().clone();
        let noted: FxHashSet<JobId> = lost.iter().map(|lost| lost.job).collect();
        lost.extend(running.iter().filter(|cx| !noted.contains(&cx.job())).map(LostJob::new));
        DrainReport { lost }
    }
}

impl Shared {
    /// Removes workers, and [closes](Self::close) their handlers.
    pub(super) fn retire(&self, workers: impl IntoIterator<Item = Box<WorkerHandlers>>) {
        self.close(workers.into_iter().flat_map(|mut state| state.take(|_| true)).collect());
    }

    /// Closes handlers in a task that a drain waits for.
    pub(super) fn close(&self, gone: Gone) {
        if gone.is_empty() {
            return;
        }
        let inner = self.clone();
        self.tasks.spawn(async move {
            join_all(gone.into_iter().map(|(kind, handler)| close(&inner, kind, handler))).await;
        });
    }
}

/// Closes one handler, within the grace of its kind and the end of a stop.
async fn close(inner: &PoolInner, kind: KindId, handler: Contained<Instance>) {
    let grace = inner.grace(kind);
    let closing = AssertUnwindSafe(async { Contained::new(handler.into_inner().close(grace)).get_mut().await });
    let fault = tokio::select! {
        biased;
        closed = closing.catch_unwind() => match closed {
            Ok(()) => return,
            Err(panic) => format!("it panicked: {}", panic_message(panic)),
        },
        () = sleep(grace) => format!("it took longer than its grace of {} ms", grace.as_millis()),
        () = forced(inner) => "the drain is over".to_owned(),
    };
    warn!(pool = %inner.name, kind = %inner.kind(kind).name(), cause = fault, "a handler was not closed in time");
}
