//! Lists of jobs for operators: queued, running and remembered ones.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{EndedJob, JobNames, Pool, Pools, TenantRate, inner::PoolInner};
use crate::{
    handler::Context,
    model::{JobId, JobStage, RequestId},
    scheduler::{Held, Smallest, Wait, smallest},
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
    pub stage: JobStage,
    /// Its run, while it runs.
    pub run: Option<RunningJob>,
    /// How it ended, once it has.
    pub ended: Option<EndedJob>,
    /// Time since it arrived.
    pub age: Duration,
    /// Time until it must be answered; zero if that has passed.
    pub left: Duration,
    /// The caller's span, as `traceparent`; empty if there is none, and for ended jobs.
    pub traceparent: String,
    /// Whether it was asked to stop.
    pub stopping: bool,
}

/// The run of a job that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningJob {
    /// Id of the worker.
    pub worker: u32,
    /// From arrival to the start of the run.
    pub queue: Duration,
    /// Time that it has run.
    pub run: Duration,
    /// Time until it is stopped.
    pub left: Duration,
    /// Time since its last progress, or since its start.
    pub since_progress: Duration,
    /// Whether it ignored the request to stop.
    pub stuck: bool,
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
        let is_fresh = |cx: &Context| inner.settings.stale_after.is_none_or(|stale_after| cx.ran(now) < stale_after);
        let (held, all_held) = inner.read(|core| {
            core.list(limit, |cx, held| {
                if lists_ended && held.is_ended {
                    // The job is among the ended jobs.
                    return None;
                }
                if filter.stale && (held.stage != JobStage::Running || is_fresh(cx)) {
                    return None;
                }
                let age = now.saturating_duration_since(cx.deadline().arrival());
                let key = || filter.key(cx.job(), cx.kind(), cx.tenant(), cx.known_request_id(), age);
                filter.has(held.stage).then(key).flatten()
            })
        });
        let (ended, all_ended) = inner.meters.list(limit, |ended| {
            let JobNames { tenant, request_id, .. } = &ended.names;
            let kind = inner.kind(ended.kind).name();
            let key = || filter.key(ended.job, kind, tenant.as_ref(), request_id.as_ref(), ended.age(now));
            (lists_ended && filter.has(ended.stage())).then(key).flatten()
        });
        let held = held.into_iter().map(|(key, (cx, held))| (key, ListedJob::held(&cx, held, now)));
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
    pub(super) fn held(cx: &Context, held: Held, now: Instant) -> Self {
        let deadline = cx.deadline();
        let run = RunningJob {
            worker: held.worker,
            // A worker may have the job without having started it.
            queue: cx.queued(now),
            run: cx.ran(now),
            left: cx.until().saturating_duration_since(now),
            since_progress: now.saturating_duration_since(cx.last_progress()),
            stuck: held.is_stuck,
        };
        Self {
            job: cx.job(),
            pool: Arc::clone(cx.pool()),
            kind: Arc::clone(cx.kind()),
            names: JobNames::of(cx),
            stage: held.stage,
            run: (held.stage == JobStage::Running).then_some(run),
            ended: None,
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
            kind: Arc::clone(inner.kind(ended.kind).name()),
            names: ended.names.clone(),
            age: ended.age(now),
            stage: ended.stage(),
            run: None,
            ended: Some(ended),
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
        let is_open = held.as_ref().is_some_and(|(_, held, _)| !held.is_ended);
        if !is_open && let Some(ended) = inner.meters.find(job) {
            return Some(Explanation { job: ListedJob::ended(inner, ended, now), wait: None });
        }
        held.map(|(cx, held, wait)| Explanation { job: ListedJob::held(&cx, held, now), wait })
    }
}

impl Pools {
    /// [`Pool::explain`] over all pools.
    #[must_use]
    pub fn explain(&self, job: JobId) -> Option<Explanation> {
        self.all().iter().find_map(|pool| pool.explain(job))
    }
}
