//! Lists of jobs for operators: queued, running and remembered ones.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{EndedJob, JobNames, Pool, Pools, TenantRate, inner::PoolInner};
use crate::{
    handler::Context,
    model::{JobId, JobStage, RequestId},
    scheduler::{CoreStage, Smallest, Wait, smallest},
};

/// Selects jobs for a list, and their order.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// Their stages. Empty means any.
    pub stages: Vec<JobStage>,
    /// Their pool.
    pub pool: Option<String>,
    /// Their kind.
    pub kind: Option<String>,
    /// Their tenant; empty is the default one.
    pub tenant: Option<String>,
    /// Correlation id of their call.
    pub request_id: Option<RequestId>,
    /// Minimum time since they arrived.
    pub older: Duration,
    /// Only running jobs that have run for the `stale_after` of their pool.
    pub stale: bool,
    /// Their order.
    pub order: JobOrder,
}

/// Order of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JobOrder {
    /// The last arrivals first.
    #[default]
    Newest,
    /// The first arrivals first.
    Oldest,
}

/// The first jobs of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listing {
    /// The first of them.
    pub jobs: Vec<ListedJob>,
    /// Number of selected jobs.
    pub all: usize,
}

/// A queued, running or remembered job, for its operator.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedJob {
    /// Id of the job.
    pub job: JobId,
    /// The pool that has it.
    pub pool: Arc<str>,
    /// Kind of the job.
    pub kind: Arc<str>,
    /// Its names besides its id.
    pub names: JobNames,
    /// Its stage.
    pub stage: Stage,
    /// Time since it arrived.
    pub age: Duration,
    /// Time until it must be answered; zero if that has passed.
    pub left: Duration,
    /// The caller's span, as `traceparent`; empty if there is none, and for ended jobs.
    pub traceparent: String,
    /// Whether it was asked to stop.
    pub stopping: bool,
}

/// Stage of a job, with its details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// Its caller waits for capacity.
    Waiting,
    /// It is queued.
    Queued,
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
        /// Time since its last progress, or since its start.
        since_progress: Duration,
        /// Whether it ignored the request to stop.
        stuck: bool,
    },
    /// It ended.
    Ended(EndedJob),
}

impl Stage {
    /// The stage without details.
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

/// Sort key of a job in a list.
type Key = (Duration, JobId);

impl JobFilter {
    /// Queued and running jobs, oldest first. A job counts while its handler is stopping, even if its outcome is
    /// decided.
    #[must_use]
    pub fn held() -> Self {
        let stages = vec![JobStage::Waiting, JobStage::Queued, JobStage::Running];
        Self { stages, order: JobOrder::Oldest, ..Self::default() }
    }

    fn has(&self, stage: JobStage) -> bool {
        self.stages.is_empty() || self.stages.contains(&stage)
    }

    /// Sort key of a job; `None` if it is not selected.
    fn key(
        &self,
        job: JobId,
        kind: &str,
        tenant: Option<&Arc<str>>,
        request_id: Option<&RequestId>,
        age: Duration,
    ) -> Option<Key> {
        let Self { stages: _, pool: _, kind: wanted, tenant: of, request_id: named, older, stale: _, order } = self;
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
    /// The first `limit` of the selected jobs. Scans all queued, running and remembered jobs.
    #[must_use]
    pub fn list(&self, filter: &JobFilter, limit: usize) -> Listing {
        list(std::slice::from_ref(self), filter, limit)
    }

    /// The tenants with the highest request rates, highest first; at most about thirty.
    #[must_use]
    pub fn tenant_rates(&self) -> Vec<TenantRate> {
        let now = Instant::now();
        self.inner().read(|core| core.tenant_rates(now))
    }

    fn select(&self, filter: &JobFilter, limit: usize) -> Smallest<Key, ListedJob> {
        if filter.pool.as_ref().is_some_and(|pool| **pool != **self.name()) {
            return (Vec::new(), 0);
        }
        let (inner, now) = (self.inner(), Instant::now());
        if filter.stale && inner.settings.stale_after.is_none() {
            return (Vec::new(), 0);
        }
        let lists_ended = !filter.stale && (filter.has(JobStage::Completed) || filter.has(JobStage::Failed));
        let is_fresh = |cx: &Context, stage: CoreStage| match (stage, inner.settings.stale_after) {
            (CoreStage::Running { .. }, Some(stale_after)) => cx.ran(now) < stale_after,
            (CoreStage::Running { .. }, None) | (CoreStage::Waiting | CoreStage::Queued, _) => true,
        };
        let (held, all_held) = inner.read(|core| {
            core.list(limit, |cx, stage| {
                if lists_ended && matches!(stage, CoreStage::Running { ended: true, .. }) {
                    // The job is among the ended jobs.
                    return None;
                }
                if filter.stale && is_fresh(cx, stage) {
                    return None;
                }
                let age = now.saturating_duration_since(cx.deadline().arrival());
                let key = || filter.key(cx.job(), cx.kind(), cx.tenant(), cx.known_request_id(), age);
                filter.has(stage.stage()).then(key).flatten()
            })
        });
        let (ended, all_ended) = inner.meters.list(limit, |ended| {
            let JobNames { tenant, request_id, .. } = &ended.names;
            let kind = inner.kinds[ended.kind].name();
            let key = || filter.key(ended.job, kind, tenant.as_ref(), request_id.as_ref(), ended.age(now));
            (lists_ended && filter.has(ended.stage())).then(key).flatten()
        });
        let held = held.into_iter().map(|(key, (cx, stage))| (key, ListedJob::held(&cx, stage, now)));
        let ended = ended.into_iter().map(|(key, ended)| (key, ListedJob::ended(inner, ended, now)));
        (held.chain(ended).collect(), all_held + all_ended)
    }
}

impl Pools {
    /// [`Pool::list`] over all pools.
    #[must_use]
    pub fn list(&self, filter: &JobFilter, limit: usize) -> Listing {
        list(self.all(), filter, limit)
    }
}

fn list(pools: &[Pool], filter: &JobFilter, limit: usize) -> Listing {
    let (lists, counts): (Vec<_>, Vec<_>) = pools.iter().map(|pool| pool.select(filter, limit)).unzip();
    let (jobs, _) = smallest(lists.into_iter().flatten(), limit);
    Listing { jobs: jobs.into_iter().map(|(_, job)| job).collect(), all: counts.iter().sum() }
}

impl ListedJob {
    pub(super) fn held(cx: &Context, stage: CoreStage, now: Instant) -> Self {
        let deadline = cx.deadline();
        let stage = match stage {
            CoreStage::Waiting => Stage::Waiting,
            CoreStage::Queued => Stage::Queued,
            CoreStage::Running { worker, stuck, ended: _ } => Stage::Running {
                worker,
                // A worker may have the job without having started it.
                queue: cx.queued(now),
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

    pub(super) fn ended(inner: &PoolInner, ended: EndedJob, now: Instant) -> Self {
        Self {
            job: ended.job,
            pool: Arc::clone(&inner.name),
            kind: Arc::clone(inner.kinds[ended.kind].name()),
            names: ended.names.clone(),
            age: ended.age(now),
            stage: Stage::Ended(ended),
            left: Duration::ZERO,
            traceparent: String::new(),
            stopping: false,
        }
    }
}

/// State of a job: what it waits for, how it runs, or how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The job.
    pub job: ListedJob,
    /// What it waits for; `None` if it has begun.
    pub wait: Option<Wait>,
}

impl Pool {
    /// State of a job, or how it ended. `None` if the job was never accepted, or ended so long ago that it is
    /// forgotten. Scans all queued, running and remembered jobs.
    #[must_use]
    pub fn explain(&self, job: JobId) -> Option<Explanation> {
        let (inner, now) = (self.inner(), Instant::now());
        let held = inner.read(|core| core.explain(now, |cx| cx.job() == job));
        let is_open = matches!(held, Some((_, stage, _)) if !matches!(stage, CoreStage::Running { ended: true, .. }));
        if !is_open && let Some(ended) = inner.meters.find(job) {
            return Some(Explanation { job: ListedJob::ended(inner, ended, now), wait: None });
        }
        held.map(|(cx, stage, wait)| Explanation { job: ListedJob::held(&cx, stage, now), wait })
    }
}

impl Pools {
    /// [`Pool::explain`] over all pools.
    #[must_use]
    pub fn explain(&self, job: JobId) -> Option<Explanation> {
        self.all().iter().find_map(|pool| pool.explain(job))
    }
}
