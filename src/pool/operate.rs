//! Operator commands for a running pool: pause, shut, resume, resize, reconfigure, cancel a job.

use std::{num::NonZeroUsize, sync::Arc};

use tokio::time::Instant;

use super::{Pool, Settings, lease::WorkerHandlers, timers::keep_size};
use crate::{
    handler::{Kind, Processes, StopReason},
    model::{JobId, JobStage},
    phase::Phase,
    scheduler::Bounds,
};

/// What an operator has suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Nothing.
    None,
    /// Starting jobs. New jobs are accepted, and wait.
    Paused,
    /// Accepting jobs. The pool finishes the jobs that it has.
    Shut,
}

impl Pool {
    /// Starts no more jobs until the pool is [resumed](Self::resume). Jobs are still queued, deadlines still apply, and
    /// running jobs continue. Returns false if the pool drains or is shut, because it then finishes its jobs.
    pub fn pause(&self) -> bool {
        let now = Instant::now();
        self.inner().drive(|core, _| core.pause(now))
    }

    /// Accepts no more jobs until the pool is [resumed](Self::resume). Finishes the jobs that it has, even if it was
    /// paused. Waiting callers are refused. Unlike [`drain`](Self::drain), this can be undone.
    pub fn shut(&self) {
        let now = Instant::now();
        self.inner().drive(|core, effects| core.shut(now, effects));
    }

    /// Accepts and starts jobs again, after [`pause`](Self::pause) and [`shut`](Self::shut). Returns false if the pool
    /// drains.
    pub fn resume(&self) -> bool {
        let now = Instant::now();
        self.inner().drive(|core, effects| {
            core.open();
            core.resume(now, effects);
        });
        self.inner().phase.get() < Phase::Draining
    }

    /// What an operator has suspended.
    #[must_use]
    pub fn hold(&self) -> Hold {
        match self.inner().read(|core| core.is_held()) {
            (true, _) => Hold::Shut,
            (false, true) => Hold::Paused,
            (false, false) => Hold::None,
        }
    }

    /// Whether jobs are accepted and started. A pool without workers is not serving: its workers would attach from
    /// elsewhere.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        let has_workers = self.inner().read(crate::scheduler::Core::configured_workers) > 0;
        self.inner().phase.get() == Phase::Serving && self.hold() == Hold::None && has_workers
    }

    /// Sets the bounds of the number of workers; equal ones fix it. `max` is at least `min`.
    ///
    /// Idle surplus workers are removed at once, busy ones after their job. Between different bounds, the pool adjusts
    /// its size once a second, on the runtime of this call. Returns false if the pool drains, or if its workers attach
    /// from elsewhere.
    pub fn resize(&self, min: NonZeroUsize, max: NonZeroUsize) -> bool {
        let inner = self.inner();
        if inner.phase.get() >= Phase::Draining || inner.remote_workers().is_some() {
            return false;
        }
        let bounds = Bounds { min: min.get(), max: max.get().max(min.get()) };
        let now = Instant::now();
        let gone = inner.drive(|core, effects| core.resize(now, bounds, WorkerHandlers::fresh, effects));
        inner.retire(gone);
        inner.fit_processes();
        keep_size(inner);
        true
    }

    /// Replaces the settings and the kinds; call [`Pools::refresh`](super::Pools::refresh) afterwards. No job is lost:
    /// jobs of a replaced or removed kind end as they began, and jobs beyond a new bound leave the queue as usual. The
    /// number of workers changes only if the settings change it; otherwise it stays as [set](Self::resize). `shards`
    /// and `ended_jobs` cannot change.
    ///
    /// Each kind that is not the [same](Kind::is_same) as before permanently takes some hundred bytes.
    pub fn reconfigure(&self, settings: Settings, kinds: Vec<Kind>) {
        let inner = self.inner();
        let Settings { shards, ended_jobs, workers, max_workers, .. } = *inner.settings;
        let was_remote = inner.remote_workers().is_some();
        let resize = was_remote || (settings.workers, settings.max_workers) != (workers, max_workers);
        let (min, max) = (settings.workers, settings.max_workers.unwrap_or(settings.workers));
        inner.settings.replace(Settings { shards, ended_jobs, ..settings });
        inner.serve(kinds);
        if resize {
            self.resize(min, max);
        }
    }

    /// The kind of that name, if it is served.
    #[must_use]
    pub fn kind(&self, name: &str) -> Option<&Kind> {
        let inner = self.inner();
        inner.kind_index(name).map(|index| &inner.kinds[index])
    }

    /// The processes of its programs.
    pub(crate) fn processes(&self) -> Vec<Arc<Processes>> {
        let inner = self.inner();
        let served = inner.programs().into_iter().filter(|(_, is_served)| *is_served);
        served.map(|(processes, _)| Arc::clone(processes)).collect()
    }

    /// Cancels a job: a queued one ends at once, a running one goes down the stop ladder. Returns its stage, or `None`
    /// if the pool has no such job or its outcome is decided. Scans all jobs of the pool.
    #[must_use]
    pub fn cancel(&self, job: JobId) -> Option<JobStage> {
        let now = Instant::now();
        let (stage, cx) = self.inner().drive(|core, effects| core.cancel(now, |cx| cx.job() == job, effects))?;
        if stage == JobStage::Running {
            cx.stop(StopReason::Operator);
        }
        Some(stage)
    }
}
