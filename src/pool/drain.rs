//! The drain of one pool. The drain of the process is in `src/app/drain.rs`.

use std::{sync::Arc, time::Duration};

use rustc_hash::FxHashSet;
use tokio::time::Instant;

use super::Pool;
use crate::{
    handler::{Context, StopReason},
    model::{JobId, RequestId},
    phase::Phase,
};

/// Time for answers to be sent before the kill phase ends; a fifth of the phase if that is shorter.
const ANSWER_MARGIN: Duration = Duration::from_millis(100);

/// A job that a drain could not finish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostJob {
    /// Id of the job.
    pub job: JobId,
    /// Correlation id of its call.
    pub request_id: RequestId,
    /// Kind of the job.
    pub kind: Arc<str>,
    /// Pool that held it.
    pub pool: Arc<str>,
    /// Its stage.
    pub lost_while: LostWhile,
}

/// Stage of a lost job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostWhile {
    /// It had not begun: another server may run it safely.
    Queued,
    /// It had begun.
    Running,
}

/// Result of a drain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// Every accepted job that was not finished.
    pub lost: Vec<LostJob>,
}

impl LostJob {
    pub(super) fn new(cx: &Context) -> Self {
        let lost_while = if cx.waited().is_some() { LostWhile::Running } else { LostWhile::Queued };
        Self {
            job: cx.job(),
            request_id: cx.request_id().clone(),
            kind: Arc::clone(cx.kind()),
            pool: Arc::clone(cx.pool()),
            lost_while,
        }
    }
}

impl Pool {
    /// Starts the drain: new jobs and waiting callers are refused, queued and running jobs continue. Further calls do
    /// nothing.
    pub fn drain(&self) {
        self.inner().phase.advance(Phase::Draining);
        let now = Instant::now();
        self.inner().drive(|core, effects| core.close(now, effects));
    }

    /// Whether the pool drains and has no job left.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.inner().phase.get() == Phase::Stopped
    }

    /// Waits until a draining pool has no job left. Cancel safe.
    pub async fn wait(&self) {
        self.inner().phase.reached(Phase::Stopped).await;
        let idle = self.inner().drive(|core, _| core.retire_idle());
        self.inner().retire(idle);
        self.inner().close_processes();
        self.inner().end_remote();
        // Closing of handlers, shielded work, and the stop ladders of jobs that were answered.
        self.inner().tasks.wait().await;
    }

    /// Ends the remaining jobs: queued ones are answered, running ones are asked to stop and then forced. Returns at
    /// once; [`wait`](Self::wait) waits for the end.
    pub fn stop(&self) {
        self.end_all();
    }

    /// [`stop`](Self::stop) with at most `kill` between the request and the force. All callers are answered, and all
    /// programs killed, shortly before `kill` has passed.
    pub fn stop_within(&self, kill: Duration) {
        let margin = (kill / 5).min(ANSWER_MARGIN);
        if let Some(at) = Instant::now().checked_add(kill - margin) {
            // The first of two stops sets the time.
            let _ = self.inner().force_by.set(at);
        }
        self.end_all();
    }

    fn end_all(&self) {
        let inner = self.inner();
        self.drain();
        inner.phase.advance(Phase::Stopping);
        let running: Vec<Context> = inner.drive(|core, effects| {
            core.abandon_queued(effects);
            core.running_jobs().cloned().collect()
        });
        for cx in running {
            cx.cancel_token().cancel(StopReason::Drain);
        }
    }

    /// Drains, waits for at most `finish`, stops what is left, waits for at most `kill`, and reports what was lost.
    pub async fn close(&self, finish: Duration, kill: Duration) -> DrainReport {
        self.drain();
        if tokio::time::timeout(finish, self.wait()).await.is_err() {
            self.stop_within(kill);
            // Jobs that do not stop in time are in the report.
            let _ = tokio::time::timeout(kill, self.wait()).await;
        }
        self.report()
    }

    /// The accepted jobs that were not finished so far: those that the drain ended, and those that still run after they
    /// were asked to stop.
    #[must_use]
    pub fn report(&self) -> DrainReport {
        let inner = self.inner();
        // Running jobs first: a job that ends meanwhile is recorded before.
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
