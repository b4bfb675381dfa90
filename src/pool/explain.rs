use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    JobNames, Pool, Pools,
    core::{Binding, Standing},
    ended::EndedJob,
};
use crate::{handler::Context, model::JobId};

/// Where a job is, or how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Id of the job.
    pub job: JobId,
    /// The pool that has it.
    pub pool: Arc<str>,
    /// Its kind.
    pub kind: Arc<str>,
    /// By which names it is known besides its id.
    pub names: JobNames,
    /// How far it is.
    pub stage: Stage,
}

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// It has not begun, and is held.
    Held {
        /// Where it waits; `None` where its caller waits for room.
        queued: Option<Queued>,
        /// Its place from 1: among the queued jobs by acceptance, or among the callers that wait by arrival.
        position: usize,
        /// Time since it arrived.
        age: Duration,
        /// Time until it must be answered.
        left: Duration,
    },
    /// It runs.
    Running {
        /// Id of the worker.
        worker: u32,
        /// From arrival to the start of the run.
        queue: Duration,
        /// Time that it has run.
        run: Duration,
        /// Time until it is stopped.
        left: Duration,
        /// Whether it was asked to stop.
        stopping: bool,
        /// Whether it ignored that.
        stuck: bool,
    },
    /// It ended.
    Ended(EndedJob),
}

/// What a queued job waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// Jobs that are expected to start before it.
    pub ahead: usize,
    /// Expected time until it starts; `None` in a paused pool, which starts nothing.
    pub expected_start: Option<Duration>,
    /// What keeps it from starting.
    pub bound_by: Binding,
}

impl Pool {
    /// Where a job is, or how it ended; `None` where the pool does not know it: it was never accepted, or it ended so many
    /// jobs ago that it is forgotten. It looks at every job that the pool holds and remembers.
    #[must_use]
    pub fn explain(&self, job: JobId) -> Option<Explanation> {
        let (shell, now) = (self.shell(), Instant::now());
        let standing = shell.read(|core| core.explain(now, |cx| cx.job() == job));
        let ended = || {
            let ended = shell.meters.find(job)?;
            let kind = Arc::clone(shell.kinds[ended.kind].name());
            let names = ended.names.clone();
            Some(Explanation { job, pool: Arc::clone(&shell.name), kind, names, stage: Stage::Ended(ended) })
        };
        match standing {
            Some(Standing::Running { ended: true, job: cx, worker, stuck }) => {
                ended().or_else(|| Some(running(&cx, worker, stuck, now)))
            }
            Some(Standing::Running { ended: false, job: cx, worker, stuck }) => Some(running(&cx, worker, stuck, now)),
            Some(Standing::Waiting { job: cx, position }) => Some(held(&cx, None, position, now)),
            Some(Standing::Queued { job: cx, position, ahead, expected, bound_by }) => {
                let expected_start = Some(expected).filter(|_| bound_by != Binding::Pause);
                Some(held(&cx, Some(Queued { ahead, expected_start, bound_by }), position, now))
            }
            None => ended(),
        }
    }
}

impl Pools {
    /// [`Pool::explain`] over all pools.
    #[must_use]
    pub fn explain(&self, job: JobId) -> Option<Explanation> {
        self.all().iter().find_map(|pool| pool.explain(job))
    }
}

fn held(cx: &Context, queued: Option<Queued>, position: usize, now: Instant) -> Explanation {
    let age = now.saturating_duration_since(cx.deadline().arrival());
    of(cx, Stage::Held { queued, position, age, left: cx.deadline().left(now) })
}

fn running(cx: &Context, worker: u32, stuck: bool, now: Instant) -> Explanation {
    // A worker that was just given the job has not begun.
    let at = cx.start().map_or(now, |start| start.at);
    let stage = Stage::Running {
        worker,
        queue: at.saturating_duration_since(cx.deadline().arrival()),
        run: now.saturating_duration_since(at),
        left: cx.until().saturating_duration_since(now),
        stopping: cx.is_cancelled(),
        stuck,
    };
    of(cx, stage)
}

fn of(cx: &Context, stage: Stage) -> Explanation {
    let (pool, kind) = (Arc::clone(cx.pool()), Arc::clone(cx.kind()));
    Explanation { job: cx.job(), pool, kind, names: JobNames::of(cx), stage }
}
