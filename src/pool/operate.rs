use std::num::NonZeroUsize;

use tokio::time::Instant;

use super::{Pool, Settings, core::Bounds, lease::WorkerHandlers, sizing::keep_size};
use crate::{
    handler::{Kind, StopReason},
    model::{JobId, JobStage},
    phase::Phase,
};

/// What an operator keeps a pool from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Nothing.
    None,
    /// From starting jobs: they are taken, and wait.
    Paused,
    /// From taking jobs: those that it has are finished.
    Shut,
}

impl Pool {
    /// Starts no more jobs until the pool is [resumed](Self::resume): jobs are taken and queued within the bounds of the
    /// queue, expire at their deadlines as ever, and those that run go on. Returns whether the pool is paused: one that
    /// drains, or whose door is shut, finishes what it has instead.
    pub fn pause(&self) -> bool {
        let now = Instant::now();
        self.shell().drive(|core, _| core.pause(now))
    }

    /// Takes no more jobs until the pool is [resumed](Self::resume), and finishes what it has, in a paused pool too.
    /// Callers that wait for room are told. Unlike [`drain`](Self::drain), this is not for ever.
    pub fn shut(&self) {
        let now = Instant::now();
        self.shell().drive(|core, effects| core.shut(now, effects));
    }

    /// Takes and starts jobs again, after [`pause`](Self::pause) and [`shut`](Self::shut). Returns whether it does: one
    /// that drains stays as it is.
    pub fn resume(&self) -> bool {
        let now = Instant::now();
        self.shell().drive(|core, effects| {
            core.open();
            core.resume(now, effects);
        });
        self.shell().phase.get() < Phase::Draining
    }

    /// What an operator keeps the pool from.
    #[must_use]
    pub fn hold(&self) -> Hold {
        match self.shell().read(|core| core.is_held()) {
            (true, _) => Hold::Shut,
            (false, true) => Hold::Paused,
            (false, false) => Hold::None,
        }
    }

    /// Whether jobs are taken and started.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.shell().phase.get() == Phase::Serving && self.hold() == Hold::None
    }

    /// Keeps the number of workers from `min` to `max` from now on; the same twice fixes it. `max` is at least `min`.
    ///
    /// Workers that are too many go at once where they are idle, and else with the end of their job. Between the bounds
    /// the pool chooses by its load, once a second: that takes a runtime, which is the one of this call. Returns
    /// whether it was done: a pool that drains keeps its workers.
    pub fn resize(&self, min: NonZeroUsize, max: NonZeroUsize) -> bool {
        let shell = self.shell();
        if shell.phase.get() >= Phase::Draining {
            return false;
        }
        let bounds = Bounds { min: min.get(), max: max.get().max(min.get()) };
        let now = Instant::now();
        let gone = shell.drive(|core, effects| core.resize(now, bounds, WorkerHandlers::fresh, effects));
        shell.retire(gone);
        keep_size(shell);
        true
    }

    /// Has other settings from now on, and serves `kinds` and no others; [`Pools::refresh`](super::Pools::refresh) then
    /// finds them. No job is lost by it: those of a kind that is replaced, or removed, end as they began, and what is
    /// beyond a new bound leaves the queue as jobs do. The number of workers is changed where the settings change it, and
    /// else stays as it was [set](Self::resize). `homes` and `ended_jobs` stay as they are.
    ///
    /// Each kind that is not the [same](Kind::is_same) as before takes some hundred bytes, for as long as the pool lives.
    pub fn reconfigure(&self, settings: Settings, kinds: Vec<Kind>) {
        let shell = self.shell();
        let Settings { homes, ended_jobs, workers, max_workers, .. } = *shell.settings;
        let resize = (settings.workers, settings.max_workers) != (workers, max_workers);
        let (min, max) = (settings.workers, settings.max_workers.unwrap_or(settings.workers));
        shell.settings.replace(Settings { homes, ended_jobs, ..settings });
        shell.serve(kinds);
        if resize {
            self.resize(min, max);
        }
    }

    /// The kind of that name, where it is served.
    #[must_use]
    pub fn kind(&self, name: &str) -> Option<&Kind> {
        let shell = self.shell();
        shell.kind_index(name).map(|index| &shell.kinds[index])
    }

    /// Cancels a job: it ends at once where it has no worker, and goes down the stop ladder where it has one. Tells how
    /// far it was; `None` where the pool has no such job, or its outcome is decided. It looks at every job that the
    /// pool holds.
    #[must_use]
    pub fn cancel(&self, job: JobId) -> Option<JobStage> {
        let now = Instant::now();
        let (stage, cx) = self.shell().drive(|core, effects| core.cancel(now, |cx| cx.job() == job, effects))?;
        if stage == JobStage::Running {
            cx.cancel_token().cancel(StopReason::Operator);
        }
        Some(stage)
    }
}
