use std::{sync::Arc, time::Duration};

use rustc_hash::FxHashSet;
use tokio::time::Instant;

use super::Pool;
use crate::{
    handler::{Context, StopReason},
    model::{JobId, RequestId},
    phase::Phase,
};

/// Time that answers have to leave before the kill phase is over; a fifth of the phase where that is shorter.
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
    /// How far it was.
    pub lost_while: LostWhile,
}

/// How far a lost job was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostWhile {
    /// It had not begun: running it elsewhere is safe.
    Queued,
    /// It had begun.
    Running,
}

/// What a drain left undone.
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
    /// Closes the door: new jobs are refused, callers that wait for room are told, and queued and running jobs go on.
    /// Doing it again does nothing.
    pub fn drain(&self) {
        self.shell().phase.advance(Phase::Draining);
        let now = Instant::now();
        self.shell().drive(|core, effects| core.close(now, effects));
    }

    /// Whether the door is closed and no job is left.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.shell().phase.get() == Phase::Stopped
    }

    /// Waits until a pool that drains has no job left. Cancel safe.
    pub async fn wait(&self) {
        self.shell().phase.reached(Phase::Stopped).await;
        let idle = self.shell().drive(|core, _| core.retire_idle());
        self.shell().retire(idle);
        // The closing of handlers, shielded work, and the stop ladders of jobs that were answered.
        self.shell().tasks.wait().await;
    }

    /// Ends what is left: queued jobs are answered, running ones are asked to stop and then forced. Returns at once;
    /// [`wait`](Self::wait) waits for the end.
    pub fn stop(&self) {
        self.end_all();
    }

    /// [`stop`](Self::stop) that shortens the time between the request and the force where it is longer than `kill`:
    /// all callers are answered, and all programs killed, a little before `kill` is over.
    pub fn stop_within(&self, kill: Duration) {
        let margin = (kill / 5).min(ANSWER_MARGIN);
        if let Some(at) = Instant::now().checked_add(kill - margin) {
            // The first of two stops sets the time.
            let _ = self.shell().force_by.set(at);
        }
        self.end_all();
    }

    fn end_all(&self) {
        let shell = self.shell();
        self.drain();
        shell.phase.advance(Phase::Stopping);
        let running: Vec<Context> = shell.drive(|core, effects| {
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
            // What does not stop in time is in the report.
            let _ = tokio::time::timeout(kill, self.wait()).await;
        }
        self.report()
    }

    /// The accepted jobs that were not finished, as far as the drain has come: those that it ended, and those that
    /// still run after they were asked to stop.
    #[must_use]
    pub fn report(&self) -> DrainReport {
        let shell = self.shell();
        // First those that run: one that ends meanwhile is noted before.
        let running: Vec<Context> = match shell.phase.get() {
            Phase::Stopping => shell.read(|core| core.running_jobs().cloned().collect()),
            _ => Vec::new(),
        };
        let mut lost = shell.lost.lock().clone();
        let noted: FxHashSet<JobId> = lost.iter().map(|lost| lost.job).collect();
        lost.extend(running.iter().filter(|cx| !noted.contains(&cx.job())).map(LostJob::new));
        DrainReport { lost }
    }
}
