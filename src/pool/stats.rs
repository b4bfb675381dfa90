//! Snapshots of a pool.

#[cfg(feature = "server")]
use std::collections::BTreeMap;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use hdrhistogram::Histogram;
use tokio::time::Instant;

use super::{EndedJob, FactoryStats, Pool, inner::PoolInner, spread::Spread};
use crate::{
    handler::{AttachedWorkerStats, Context, ExternalStats, ProgramStats},
    model::{Durations, JobId, Reason},
    phase::Phase,
    scheduler::{Core, CoreLoad, Counts, LimitStats, SizeStats, WorkerSnapshot},
};

/// A snapshot of one pool.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Name of the pool.
    pub name: Arc<str>,
    /// Phase of the pool. A shut pool drains, or is stopped if it has no jobs, until it is resumed.
    pub phase: Phase,
    /// Time since the pool was paused; `None` if it is not.
    pub paused: Option<Duration>,
    /// Number of workers, and what decides it.
    pub size: SizeStats,
    /// Jobs in the queue.
    pub queued: usize,
    /// Maximum number of jobs in the queue.
    pub queue_jobs: usize,
    /// Payload bytes of the jobs in the queue.
    pub queued_bytes: usize,
    /// Maximum payload bytes in the queue. Each running job holds its own payload as well.
    pub queue_bytes: usize,
    /// Callers that wait for capacity.
    pub waiting: usize,
    /// Maximum number of callers that wait for capacity.
    pub queue_waiting: usize,
    /// Age of the oldest queued job; zero if there is none.
    pub oldest_age: Duration,
    /// Expected wait of a job of the default class that arrives now.
    pub expected_wait: Duration,
    /// Running jobs.
    pub in_flight: usize,
    /// Running jobs that have run for `stale_after` or longer.
    pub stale: usize,
    /// Busy share of the workers, from 0 to 1.
    pub utilization: f64,
    /// How jobs ended.
    pub counts: Counts,
    /// Handler polls that blocked their thread for longer than `slow_poll`.
    pub slow_polls: u64,
    /// The kinds, as configured.
    pub kinds: Vec<KindStats>,
    /// Messages of workers about jobs that were over, which were dropped.
    pub late_messages: u64,
    /// The long-running programs that run jobs.
    pub programs: Vec<ProgramStats>,
    /// The attached workers in order of arrival; `None` for a pool with its own workers.
    pub attached: Option<Vec<AttachedWorkerStats>>,
    /// The workers, by id.
    pub workers: Vec<WorkerStats>,
}

/// One kind of a pool.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct KindStats {
    /// Name of the kind.
    pub name: Arc<str>,
    /// Expected wait of a job of the default class that arrives now, with the limits of the kind, but not those per
    /// key.
    pub expected_wait: Duration,
    /// From arrival to the start of the run.
    pub queue_wait: Distribution,
    /// Runs.
    pub run_time: Distribution,
    /// Its limits; `None` without any.
    pub limit: Option<LimitStats>,
    /// State of its factory.
    pub factory: FactoryStats,
    /// Jobs that ended by a fault of their handler, in the order of [`Reason::FAULTS`].
    pub faults: [u64; Reason::FAULTS.len()],
    /// The last remembered one of them.
    pub last_failure: Option<Box<EndedJob>>,
}

/// A distribution of durations, within one per cent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Distribution {
    /// Number of measurements.
    pub count: u64,
    /// Half were shorter.
    pub p50: Duration,
    /// Nine of ten were shorter.
    pub p90: Duration,
    /// 99 of 100 were shorter.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

/// State of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum WorkerState {
    /// Ready for a job.
    Idle,
    /// Runs a job.
    Busy,
    /// Runs a job in a draining pool.
    Draining,
    /// Removed with its pool.
    Stopped,
    /// Its job ignored the request to stop.
    Stuck,
}

/// One worker.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Id of the worker, unique in its pool.
    pub id: u32,
    /// Its state.
    pub state: WorkerState,
    /// The job that it runs.
    pub job: Option<JobId>,
    /// Kind of that job.
    pub kind: Option<Arc<str>>,
    /// Time that it has run that job.
    pub job_age: Duration,
    /// Jobs that it completed.
    pub completed: u64,
    /// Jobs that it ran and that did not complete.
    pub failed: u64,
    /// Total time of its runs.
    pub total_run: Duration,
    /// `total_run` over the number of its jobs; zero without any.
    pub mean_run: Duration,
    /// Time since it last started or ended a job, or its job wrote output or reported progress.
    pub since_progress: Duration,
}

impl Distribution {
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| Duration::from_nanos(histogram.value_at_quantile(quantile));
        Self { count: histogram.len(), p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

/// The durations of a histogram in buckets, within one per cent.
pub(super) fn in_buckets(histogram: &Histogram<u64>) -> Durations {
    let mut durations = Durations::default();
    for recorded in histogram.iter_recorded() {
        let nanos = histogram.median_equivalent(recorded.value_iterated_to());
        durations.add(nanos, recorded.count_at_value());
    }
    durations
}

impl PoolStats {
    pub(super) fn of(inner: &PoolInner) -> Self {
        let now = Instant::now();
        let core = inner.read(|core| core.snapshot(now));
        let CoreLoad { queued, running, live_workers, counts, .. } = core.load;
        let settings = &inner.settings;
        let workers: Vec<_> =
            core.workers.into_iter().map(|worker| worker_stats(worker, core.closed_for_good, now)).collect();
        let is_stale = |worker: &&WorkerStats| {
            worker.job.is_some() && settings.stale_after.is_some_and(|stale_after| worker.job_age >= stale_after)
        };
        let mut last_failures = inner.meters.last_failures();
        let kinds = inner.served().map(|(id, kind)| {
            let [queue_wait, run_time] = inner.meters.of_kind(id).each_ref().map(Distribution::of);
            let (faults, last_failure) = (inner.meters.faults(id), last_failures.remove(&id).map(Box::new));
            let limit = core.limits.iter().find(|(kind, _)| *kind == id).map(|(_, limit)| *limit);
            let factory = inner.factories.stats(id, now);
            let expected_wait = core.expected_waits.get(id.0).copied().unwrap_or(core.expected_wait);
            let name = Arc::clone(kind.name());
            KindStats { name, expected_wait, queue_wait, run_time, limit, factory, faults, last_failure }
        });
        let mut stats = Self {
            name: Arc::clone(&inner.name),
            phase: phase_of(inner.phase.get(), core.shut_by_operator, queued + running),
            paused: core.paused.map(|since| now.saturating_duration_since(since)),
            size: core.size,
            queued,
            queue_jobs: settings.queue_jobs,
            queued_bytes: core.queued_bytes,
            queue_bytes: settings.queue_bytes,
            waiting: core.waiting,
            queue_waiting: settings.queue_waiting,
            oldest_age: core.oldest.map_or(Duration::ZERO, |cx| now.saturating_duration_since(cx.deadline().arrival())),
            expected_wait: core.expected_wait,
            in_flight: running,
            stale: workers.iter().filter(is_stale).count(),
            utilization: running as f64 / live_workers.max(running).max(1) as f64,
            counts,
            slow_polls: inner.slow_polls.load(Ordering::Relaxed),
            kinds: kinds.collect(),
            late_messages: 0,
            programs: Vec::new(),
            attached: None,
            workers,
        };
        inner.served_externals().for_each(|external| stats.add(external.stats()));
        stats
    }

    fn add(&mut self, external: ExternalStats) {
        match external {
            ExternalStats::Program(program) => {
                self.late_messages += program.late_messages;
                self.programs.push(program);
            }
            ExternalStats::Attached { workers, late_messages } => {
                self.late_messages += late_messages;
                self.attached = Some(workers);
            }
        }
    }
}

/// A shut pool is reported as draining, and as stopped once it has no jobs.
fn phase_of(phase: Phase, shut: bool, jobs: usize) -> Phase {
    match phase {
        Phase::Serving if shut && jobs > 0 => Phase::Draining,
        Phase::Serving if shut => Phase::Stopped,
        other => other,
    }
}

fn worker_stats(worker: WorkerSnapshot<Context>, closed: bool, now: Instant) -> WorkerStats {
    let WorkerSnapshot { id, job: cx, is_stuck, completed, failed, total_run, changed } = worker;
    let state = match &cx {
        None if closed => WorkerState::Stopped,
        None => WorkerState::Idle,
        Some(_) if is_stuck => WorkerState::Stuck,
        Some(_) if closed => WorkerState::Draining,
        Some(_) => WorkerState::Busy,
    };
    let last_sign = cx.as_ref().map_or(changed, |cx| cx.last_progress().max(changed));
    let jobs = u32::try_from(completed + failed).unwrap_or(u32::MAX);
    WorkerStats {
        id,
        state,
        job: cx.as_ref().map(Context::job),
        kind: cx.as_ref().map(|cx| Arc::clone(cx.kind())),
        job_age: cx.map_or(Duration::ZERO, |_| now.saturating_duration_since(changed)),
        completed,
        failed,
        total_run,
        mean_run: total_run.checked_div(jobs).unwrap_or_default(),
        since_progress: now.saturating_duration_since(last_sign),
    }
}

/// Load of a pool: cheap to read at any time.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PoolLoad {
    /// Jobs in the queue.
    pub queued: usize,
    /// Running jobs.
    pub running: usize,
    /// Busy share of the workers that the pool may have, from 0 to 1.
    pub busy: f64,
    /// The larger of the busy share of the workers and the filled share of the queue, from 0 to 1.
    pub utilization: f64,
    /// How jobs ended.
    pub counts: Counts,
}

/// Durations of the jobs of one kind.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct KindDurations {
    /// Name of the kind.
    pub kind: Arc<str>,
    /// From arrival to the start of the run.
    pub queue_wait: Durations,
    /// Runs.
    pub run_time: Durations,
}

impl Pool {
    /// Number of idle workers.
    pub(crate) fn free_workers(&self) -> usize {
        let CoreLoad { running, live_workers, .. } = self.inner().read(Core::load);
        live_workers.saturating_sub(running)
    }

    /// Jobs that run or wait, and at least one while a job wants the first worker.
    pub(crate) fn demand(&self) -> u64 {
        let now = Instant::now();
        self.inner().read(|core| core.demand(now)) as u64
    }

    /// How busy the pool is.
    #[must_use]
    pub fn load(&self) -> PoolLoad {
        let inner = self.inner();
        let CoreLoad { queued, running, live_workers, max_workers, counts } = inner.read(Core::load);
        let share = |workers: usize| running as f64 / workers.max(running).max(1) as f64;
        let filled = queued as f64 / inner.settings.queue_jobs.max(1) as f64;
        let (utilization, busy) = (share(live_workers).max(filled), share(live_workers.max(max_workers)));
        PoolLoad { queued, running, busy, utilization, counts }
    }

    /// What jobs took since the start, by kind.
    #[must_use]
    pub fn durations(&self) -> Vec<KindDurations> {
        let inner = self.inner();
        let kinds = inner.served().map(|(id, kind)| {
            let [queue_wait, run_time] = inner.meters.of_kind(id).each_ref().map(in_buckets);
            KindDurations { kind: Arc::clone(kind.name()), queue_wait, run_time }
        });
        kinds.collect()
    }

    /// Runs in exported traces that ended after `since`: of each kind and bucket of [`Durations`], the last one that
    /// the pool remembers.
    #[cfg(feature = "server")]
    pub(crate) fn traced_runs(&self, since: Instant) -> BTreeMap<(Arc<str>, usize), EndedJob> {
        let inner = self.inner();
        let is_traced = |ended: &EndedJob| ended.started && ended.names.is_sampled && ended.at > since;
        let (ended, _) = inner.meters.list(usize::MAX, |ended| is_traced(ended).then_some(ended.at));
        let run = |(_, ended): (Instant, EndedJob)| {
            let bucket = Durations::bucket(u64::try_from(ended.waterfall.run.as_nanos()).unwrap_or(u64::MAX));
            ((Arc::clone(inner.kind(ended.kind).name()), bucket), ended)
        };
        // Later ones replace earlier ones.
        ended.into_iter().map(run).collect()
    }

    /// Queue wait and run time since the start, by kind.
    pub(crate) fn spreads(&self) -> Vec<(Arc<str>, [Spread; 2])> {
        let inner = self.inner();
        inner.served().map(|(id, kind)| (Arc::clone(kind.name()), inner.meters.spreads(id))).collect()
    }
}
