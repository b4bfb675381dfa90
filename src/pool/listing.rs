use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    EndedJob, JobNames, Pool, Pools, TenantRate,
    core::{Holding, Least, least},
    shell::Shell,
};
use crate::{
    handler::Context,
    model::{JobId, JobStage, RequestId},
};

/// Which jobs are listed, and in which order.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// How far they are. Empty means any stage.
    pub stages: Vec<JobStage>,
    /// Their pool.
    pub pool: Option<String>,
    /// Their kind.
    pub kind: Option<String>,
    /// Their tenant; empty is the default one.
    pub tenant: Option<String>,
    /// Correlation id of their call.
    pub request_id: Option<RequestId>,
    /// Time since they arrived, at the least.
    pub older: Duration,
    /// Which come first.
    pub order: JobOrder,
}

/// Which jobs come first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JobOrder {
    /// Those that arrived last.
    #[default]
    Newest,
    /// Those that arrived first.
    Oldest,
}

/// Some of the jobs that a filter chooses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The first of them.
    pub jobs: Vec<ListedJob>,
    /// How many they are in all.
    pub all: usize,
}

/// A job that a pool holds or remembers, as its operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedJob {
    /// Id of the job.
    pub job: JobId,
    /// The pool that has it.
    pub pool: Arc<str>,
    /// Kind of the job.
    pub kind: Arc<str>,
    /// By which names it is known besides its id.
    pub names: JobNames,
    /// How far it is.
    pub stage: Stage,
    /// Time since it arrived.
    pub age: Duration,
    /// Time until it must be answered; zero where that is over.
    pub left: Duration,
    /// The span that the caller sent, as `traceparent`; empty where it sent none, and of a job that ended.
    pub traceparent: String,
    /// Whether it was asked to stop.
    pub stopping: bool,
}

/// How far a job is, with what is known of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// Its caller waits for room.
    Waiting,
    /// It waits for a worker.
    Queued,
    /// It has a worker.
    Running {
        /// Id of the worker.
        worker: u32,
        /// From arrival to the start of the run.
        queue: Duration,
        /// Time that it has run.
        run: Duration,
        /// Time until it is stopped.
        left: Duration,
        /// Time since the last sign of progress; the begin of the run counts.
        since_progress: Duration,
        /// Whether it ignored the request to stop.
        stuck: bool,
    },
    /// It ended.
    Ended(EndedJob),
}

impl Stage {
    /// The same in a word.
    #[must_use]
    pub fn name(&self) -> JobStage {
        match self {
            Self::Waiting => JobStage::Waiting,
            Self::Queued => JobStage::Queued,
            Self::Running { .. } => JobStage::Running,
            Self::Ended(ended) => ended.stage(),
        }
    }
}

/// What decides the place of a job in a listing.
type Key = (Duration, JobId);

impl JobFilter {
    /// The jobs that a pool holds, the oldest first. A handler that still stops counts, though the outcome is decided.
    #[must_use]
    pub fn held() -> Self {
        let stages = vec![JobStage::Waiting, JobStage::Queued, JobStage::Running];
        Self { stages, order: JobOrder::Oldest, ..Self::default() }
    }

    fn has(&self, stage: JobStage) -> bool {
        self.stages.is_empty() || self.stages.contains(&stage)
    }

    /// The place of a job; `None` where it is not chosen.
    fn key(
        &self,
        job: JobId,
        kind: &str,
        tenant: Option<&Arc<str>>,
        request_id: Option<&RequestId>,
        age: Duration,
    ) -> Option<Key> {
        let Self { stages: _, pool: _, kind: wanted, tenant: of, request_id: named, older, order } = self;
        let chosen = wanted.as_ref().is_none_or(|wanted| wanted == kind)
            && of.as_ref().is_none_or(|of| of == tenant.map_or("", |tenant| tenant))
            && named.as_ref().is_none_or(|named| Some(named) == request_id)
            && age >= *older;
        let rank = match order {
            JobOrder::Newest => age,
            JobOrder::Oldest => Duration::MAX - age,
        };
        chosen.then_some((rank, job))
    }
}

impl Pool {
    /// Up to `most` of the jobs that the pool holds or remembers and that `filter` chooses. It looks at all of them.
    #[must_use]
    pub fn list(&self, filter: &JobFilter, most: usize) -> Listing {
        let (jobs, all) = self.keyed(filter, most);
        Listing { jobs: jobs.into_iter().map(|(_, job)| job).collect(), all }
    }

    /// The tenants that ask for room most often, of late, the first first: about thirty at the most.
    #[must_use]
    pub fn tenant_rates(&self) -> Vec<TenantRate> {
        let now = Instant::now();
        self.shell().read(|core| core.tenant_rates(now))
    }

    fn keyed(&self, filter: &JobFilter, most: usize) -> Least<Key, ListedJob> {
        if filter.pool.as_ref().is_some_and(|pool| **pool != **self.name()) {
            return (Vec::new(), 0);
        }
        let (shell, now) = (self.shell(), Instant::now());
        let lists_ended = filter.has(JobStage::Completed) || filter.has(JobStage::Failed);
        let (held, all_held) = shell.read(|core| {
            core.list(most, |cx, holding| {
                if lists_ended && matches!(holding, Holding::Running { ended: true, .. }) {
                    // It is listed as what it ended as.
                    return None;
                }
                let age = now.saturating_duration_since(cx.deadline().arrival());
                let key = || filter.key(cx.job(), cx.kind(), cx.tenant(), cx.known_request_id(), age);
                filter.has(holding.stage()).then(key).flatten()
            })
        });
        let (ended, all_ended) = shell.meters.list(most, |ended| {
            let JobNames { tenant, request_id, .. } = &ended.names;
            let kind = shell.kinds[ended.kind].name();
            let key = || filter.key(ended.job, kind, tenant.as_ref(), request_id.as_ref(), ended.age(now));
            filter.has(ended.stage()).then(key).flatten()
        });
        let held = held.into_iter().map(|(key, (cx, holding))| (key, ListedJob::held(&cx, holding, now)));
        let ended = ended.into_iter().map(|(key, ended)| (key, ListedJob::ended(shell, ended, now)));
        (least(held.chain(ended), most).0, all_held + all_ended)
    }
}

impl Pools {
    /// [`Pool::list`] over all pools.
    #[must_use]
    pub fn list(&self, filter: &JobFilter, most: usize) -> Listing {
        let (lists, counts): (Vec<_>, Vec<_>) = self.all().iter().map(|pool| pool.keyed(filter, most)).unzip();
        let (jobs, _) = least(lists.into_iter().flatten(), most);
        Listing { jobs: jobs.into_iter().map(|(_, job)| job).collect(), all: counts.iter().sum() }
    }
}

impl ListedJob {
    pub(super) fn held(cx: &Context, holding: Holding, now: Instant) -> Self {
        let deadline = cx.deadline();
        let stage = match holding {
            Holding::Waiting => Stage::Waiting,
            Holding::Queued => Stage::Queued,
            Holding::Running { worker, stuck, ended: _ } => Stage::Running {
                worker,
                // A worker that was just given the job has not begun.
                queue: cx.waited().unwrap_or_else(|| now.saturating_duration_since(deadline.arrival())),
                run: cx.ran(now),
                left: cx.until().saturating_duration_since(now),
                since_progress: now.saturating_duration_since(cx.last_progress()),
                stuck,
            },
        };
        Self {
            job: cx.job(),
            pool: Arc::clone(cx.pool()),
            kind: Arc::clone(cx.kind()),
            names: JobNames::of(cx),
            stage,
            age: now.saturating_duration_since(deadline.arrival()),
            left: deadline.left(now),
            traceparent: cx.trace().map(|trace| trace.traceparent.clone()).unwrap_or_default(),
            stopping: cx.is_cancelled(),
        }
    }

    pub(super) fn ended(shell: &Shell, ended: EndedJob, now: Instant) -> Self {
        Self {
            job: ended.job,
            pool: Arc::clone(&shell.name),
            kind: Arc::clone(shell.kinds[ended.kind].name()),
            names: ended.names.clone(),
            age: ended.age(now),
            stage: Stage::Ended(ended),
            left: Duration::ZERO,
            traceparent: String::new(),
            stopping: false,
        }
    }
}
