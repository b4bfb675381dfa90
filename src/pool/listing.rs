//! Lists of jobs for operators: queued, running and remembered ones.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{EndedJob, JobNames, Pool, Pools, TenantRate, inner::PoolInner};
use crate::{
    handler::{Context, Outage, StopReason},
    model::{JobId, JobStage, KindLimits, Limit, Limiter, Rate, RequestId},
    scheduler::{Binding, Explained, Held, Smallest, Wait, smallest},
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
    /// The request to stop, if there was one.
    pub stop: Option<StopRequest>,
}

/// A request to a job to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopRequest {
    /// Why.
    pub reason: StopReason,
    /// Time since then.
    pub since: Duration,
    /// Time until it is forced to stop.
    pub grace_left: Duration,
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
        let held = held.into_iter().map(|(key, (cx, held))| (key, ListedJob::held(inner, &cx, held, now)));
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
    pub(super) fn held(inner: &PoolInner, cx: &Context, held: Held, now: Instant) -> Self {
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
            stop: cx.stopped().map(|(reason, at)| {
                let since = now.saturating_duration_since(at);
                StopRequest { reason, since, grace_left: inner.grace(cx.kind_id()).saturating_sub(since) }
            }),
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
            stop: None,
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
    /// The job that holds its ordering key, the limit that is reached, or how long a worker usually takes to attach;
    /// empty for other causes.
    pub blocker: String,
    /// Why its program does not run it, if it waits for that.
    pub outage: Option<Outage>,
}

impl Pool {
    /// State of a job, or how it ended. `None` if the job was never accepted, or ended so long ago that it is
    /// forgotten. Scans all queued, running and remembered jobs.
    #[must_use]
    pub fn explain(&self, job: JobId) -> Option<Explanation> {
        let (inner, now) = (self.inner(), Instant::now());
        let held = inner.read(|core| core.explain(now, |cx| cx.job() == job));
        let is_open = held.as_ref().is_some_and(|explained| !explained.held.is_ended);
        if !is_open && let Some(ended) = inner.meters.find(job) {
            return Some(Explanation::ended(inner, ended));
        }
        let Explained { job: cx, held, wait, key_holder } = held?;
        let bound_by = wait.map(|wait| wait.queued.map(|queued| queued.bound_by));
        // A job that has not begun may have a worker, and waits there for a process.
        let needs_process = matches!(bound_by, None | Some(Some(Binding::Workers | Binding::Tenants)));
        let external = inner.kind(cx.kind_id()).external().filter(|_| needs_process && cx.waited().is_none());
        let blocker = match bound_by.flatten() {
            Some(Binding::OrderingKey) => key_holder.map(|holder| holder.job().to_string()).unwrap_or_default(),
            Some(Binding::NoWorker(Some(usual))) => format!("usually {:.1} s", usual.as_secs_f64()),
            Some(Binding::Limit(limiter)) => value(limiter, inner.kind(cx.kind_id()).get_options().limits),
            _ => String::new(),
        };
        let outage = external.and_then(|external| external.outage());
        Some(Explanation { job: ListedJob::held(inner, &cx, held, now), wait, blocker, outage })
    }

    /// Why the program of a kind cannot run its jobs, if so.
    pub(crate) fn outage(&self, kind: &str) -> Option<Outage> {
        self.kind(kind)?.external()?.outage()
    }

    /// The limit of a kind that its next job would wait for, with its value; `None` if it would wait for none.
    pub(crate) fn reached_limit(&self, kind: &str) -> Option<(Limiter, String)> {
        let (inner, now) = (self.inner(), Instant::now());
        let id = inner.find_kind(kind)?;
        let limiter = inner.read(|core| core.reached_limit(id, now))?;
        Some((limiter, value(limiter, inner.kind(id).get_options().limits)))
    }
}

impl Explanation {
    fn ended(inner: &PoolInner, ended: EndedJob) -> Self {
        Self { job: ListedJob::ended(inner, ended, Instant::now()), wait: None, blocker: String::new(), outage: None }
    }
}

/// A limit with its value, such as `concurrency 4`, or `key_rate 0.50/s`.
fn value(limiter: Limiter, limits: KindLimits) -> String {
    let Limit { concurrency, rate } = match limiter {
        Limiter::Concurrency | Limiter::Rate | Limiter::Hold => limits.all,
        Limiter::KeyConcurrency | Limiter::KeyRate | Limiter::KeyHold => limits.per_key,
    };
    let value = match limiter {
        Limiter::Concurrency | Limiter::KeyConcurrency => concurrency.map(|most| most.to_string()),
        Limiter::Rate | Limiter::KeyRate => {
            rate.map(|Rate { interval, .. }| format!("{:.2}/s", 1.0 / interval.as_secs_f64()))
        }
        Limiter::Hold | Limiter::KeyHold => None,
    };
    value.map_or_else(|| limiter.name().to_owned(), |value| format!("{} {value}", limiter.name()))
}

impl Pools {
    /// [`Pool::explain`] over all pools.
    #[must_use]
    pub fn explain(&self, job: JobId) -> Option<Explanation> {
        self.all().iter().find_map(|pool| pool.explain(job))
    }

    /// The last remembered attempt of a detached job.
    pub(crate) fn last_attempt(&self, detached: &str) -> Option<Explanation> {
        let is = |ended: &EndedJob| ended.names.detached_job() == Some(detached);
        let last = self.all().iter().filter_map(|pool| Some((pool.inner(), pool.inner().meters.last(is)?)));
        last.max_by_key(|(_, ended)| ended.at).map(|(inner, ended)| Explanation::ended(inner, ended))
    }
}
