use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Pool,
    core::{Core, WorkerCondition},
};
use crate::{
    handler::Context,
    model::{JobId, RequestId},
};

/// A job that a pool holds, as its operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldJob {
    /// Id of the job.
    pub job: JobId,
    /// Correlation id of its call.
    pub request_id: RequestId,
    /// Kind of the job.
    pub kind: Arc<str>,
    /// How far it is.
    pub stage: HeldStage,
    /// Time since it arrived.
    pub age: Duration,
    /// Time until it must be answered; zero where that is over.
    pub left: Duration,
    /// The span that the caller sent, as `traceparent`; empty where it sent none.
    pub traceparent: String,
    /// Whether it was asked to stop.
    pub stopping: bool,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldStage {
    /// Its caller waits for room.
    Waiting,
    /// It waits for a worker.
    Queued,
    /// It has a worker.
    Running {
        /// Id of the worker.
        worker: u32,
        /// Time since it got the worker.
        run: Duration,
        /// Time since the last sign of progress; the begin of the run counts.
        since_progress: Duration,
        /// Whether it ignored the request to stop.
        stuck: bool,
    },
}

impl Pool {
    /// The jobs that workers have, by worker, then up to `most` that are queued and as many that wait for room, each
    /// the oldest first.
    #[must_use]
    pub fn held(&self, most: usize) -> Vec<HeldJob> {
        let (workers, [queued, waiting]) = self.shell().read(|core| (Core::snapshot(core).workers, core.lines(most)));
        let now = Instant::now();
        let running = workers.into_iter().filter_map(|worker| {
            let (cx, stuck) = match worker.condition {
                WorkerCondition::Idle => return None,
                WorkerCondition::Busy(cx) => (cx, false),
                WorkerCondition::Stuck(cx) => (cx, true),
            };
            let stage = HeldStage::Running {
                worker: worker.id,
                run: now.saturating_duration_since(worker.changed),
                since_progress: now.saturating_duration_since(cx.last_progress().max(worker.changed)),
                stuck,
            };
            Some(HeldJob::new(&cx, stage, now))
        });
        let mut held: Vec<_> = running.collect();
        held.extend(queued.iter().map(|cx| HeldJob::new(cx, HeldStage::Queued, now)));
        held.extend(waiting.iter().map(|cx| HeldJob::new(cx, HeldStage::Waiting, now)));
        held
    }
}

impl HeldJob {
    fn new(cx: &Context, stage: HeldStage, now: Instant) -> Self {
        let deadline = cx.deadline();
        Self {
            job: cx.job(),
            request_id: cx.request_id().clone(),
            kind: Arc::clone(cx.kind()),
            stage,
            age: now.saturating_duration_since(deadline.arrival()),
            left: deadline.left(now),
            traceparent: cx.trace().map(|trace| trace.traceparent.clone()).unwrap_or_default(),
            stopping: cx.is_cancelled(),
        }
    }
}
