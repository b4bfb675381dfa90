use std::{sync::Arc, time::Duration};

use hdrhistogram::Histogram;
use tokio::time::Instant;

use super::{
    FactoryStats,
    core::{CoreSnapshot, Counts, LimitUse, SizeSnapshot, WorkerCondition, WorkerSnapshot},
    shell::Shell,
};
use crate::{
    handler::Context,
    model::{JobId, KindLimits},
    phase::Phase,
};

/// A snapshot of one pool.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolStats {
    /// Name of the pool.
    pub name: Arc<str>,
    /// Phase of the pool. One whose door is shut drains, or is stopped where it has no jobs, until it is resumed.
    pub phase: Phase,
    /// Time since jobs are held back; `None` where they are not.
    pub paused: Option<Duration>,
    /// Number of workers, and what decides it.
    pub size: SizeStats,
    /// Jobs in the queue.
    pub queued: usize,
    /// Most jobs in the queue.
    pub queue_jobs: usize,
    /// Payload bytes of the jobs in the queue.
    pub queued_bytes: usize,
    /// Most payload bytes in the queue. Each job that runs holds its own beside that.
    pub queue_bytes: usize,
    /// Callers that wait for room.
    pub waiting: usize,
    /// Most callers that wait for room.
    pub queue_waiting: usize,
    /// Age of the oldest queued job; zero where nothing is queued.
    pub oldest_age: Duration,
    /// Wait that a job of the default class that arrives now should expect.
    pub expected_wait: Duration,
    /// Jobs that hold a worker.
    pub in_flight: usize,
    /// Busy share of the workers, from 0 to 1.
    pub utilization: f64,
    /// How jobs ended.
    pub counts: Counts,
    /// Polls of handlers that held up their thread for more than 100 ms.
    pub slow_polls: u64,
    /// The kinds, as configured.
    pub kinds: Vec<KindStats>,
    /// The workers, by id.
    pub workers: Vec<WorkerStats>,
}

/// One kind of a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct KindStats {
    /// Name of the kind.
    pub name: Arc<str>,
    /// From arrival to the start of the run.
    pub queue_wait: Distribution,
    /// The runs.
    pub run_time: Distribution,
    /// Its limits; `None` where it has none.
    pub limit: Option<LimitStats>,
    /// How its handlers are made.
    pub factory: FactoryStats,
}

/// The limits of one kind, and what is used of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitStats {
    /// What is set.
    pub limits: KindLimits,
    /// Jobs that hold a worker.
    pub running: u32,
    /// Jobs that are queued.
    pub queued: usize,
    /// Limit keys that are told apart: those with a job, and those whose rate is not back at its burst.
    pub keys: usize,
}

/// Number of workers of a pool, and what decides it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizeStats {
    /// Least workers.
    pub min: usize,
    /// Most workers; as many as the least where their number is fixed.
    pub max: usize,
    /// Workers that the pool should have.
    pub workers: usize,
    /// Workers that go with the end of their job.
    pub retiring: usize,
    /// How long jobs take, in what they took before; 1 where nothing was compared.
    pub slowdown: f64,
    /// Whether the pool does not grow because jobs take so much longer.
    pub held_back: bool,
}

/// A distribution of durations, within one per cent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Distribution {
    /// How many were measured.
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

/// What a worker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerState {
    /// Ready for a job.
    Idle,
    /// Runs a job.
    Busy,
    /// Runs a job of a pool that takes no more.
    Draining,
    /// Gone, with its pool.
    Stopped,
    /// Its job ignored the request to stop.
    Stuck,
}

/// One worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerStats {
    /// Id of the worker, unique in its pool.
    pub id: u32,
    /// What it is doing.
    pub state: WorkerState,
    /// The job that it runs.
    pub job: Option<JobId>,
    /// Time that it has run that job.
    pub job_age: Duration,
    /// Jobs that it completed.
    pub completed: u64,
    /// Jobs that it ran and that ended otherwise.
    pub failed: u64,
    /// Time that it has run jobs, over all.
    pub total_run: Duration,
    /// `total_run` over the number of its jobs; zero without any.
    pub mean_run: Duration,
    /// Time since it last started or ended a job, or its job wrote output or told progress.
    pub since_progress: Duration,
}

impl Distribution {
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| Duration::from_nanos(histogram.value_at_quantile(quantile));
        Self { count: histogram.len(), p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

impl PoolStats {
    pub(super) fn of(shell: &Shell) -> Self {
        let snapshot = shell.read(super::core::Core::snapshot);
        let now = Instant::now();
        let CoreSnapshot {
            closed,
            shut,
            paused,
            queued,
            queued_bytes,
            waiting,
            running,
            live_workers,
            size,
            oldest,
            expected_wait,
            counts,
            workers,
            limits,
        } = snapshot;
        let settings = &shell.settings;
        let kinds = shell.served().map(|(index, kind)| {
            let [queue_wait, run_time] = shell.meters.read(index);
            let limit = limits.iter().find(|limit| limit.kind == index).map(|limit| {
                let LimitUse { kind: _, limits, running, queued, keys } = *limit;
                LimitStats { limits, running, queued, keys }
            });
            let factory = shell.factories.stats(index, now);
            KindStats { name: Arc::clone(kind.name()), queue_wait, run_time, limit, factory }
        });
        Self {
            name: Arc::clone(&shell.name),
            phase: phase_of(shell.phase.get(), shut, queued + running),
            paused: paused.map(|since| now.saturating_duration_since(since)),
            size: size_stats(size),
            queued,
            queue_jobs: settings.queue_jobs,
            queued_bytes,
            queue_bytes: settings.queue_bytes,
            waiting,
            queue_waiting: settings.queue_waiting,
            oldest_age: oldest.map_or(Duration::ZERO, |cx| now.saturating_duration_since(cx.deadline().arrival())),
            expected_wait,
            in_flight: running,
            utilization: running as f64 / live_workers.max(running).max(1) as f64,
            counts,
            slow_polls: shell.slow_polls(),
            kinds: kinds.collect(),
            workers: workers.into_iter().map(|worker| worker_stats(worker, closed, now)).collect(),
        }
    }
}

/// A pool whose door is shut drains, though not for ever.
fn phase_of(phase: Phase, shut: bool, jobs: usize) -> Phase {
    match phase {
        Phase::Serving if shut && jobs > 0 => Phase::Draining,
        Phase::Serving if shut => Phase::Stopped,
        other => other,
    }
}

fn size_stats(size: SizeSnapshot) -> SizeStats {
    let SizeSnapshot { bounds, workers, retiring, slowdown, held_back } = size;
    SizeStats { min: bounds.min, max: bounds.max, workers, retiring, slowdown, held_back }
}

fn worker_stats(worker: WorkerSnapshot<Context>, closed: bool, now: Instant) -> WorkerStats {
    let WorkerSnapshot { id, condition, completed, failed, total_run, changed } = worker;
    let (state, cx) = match condition {
        WorkerCondition::Idle if closed => (WorkerState::Stopped, None),
        WorkerCondition::Idle => (WorkerState::Idle, None),
        WorkerCondition::Busy(cx) if closed => (WorkerState::Draining, Some(cx)),
        WorkerCondition::Busy(cx) => (WorkerState::Busy, Some(cx)),
        WorkerCondition::Stuck(cx) => (WorkerState::Stuck, Some(cx)),
    };
    let last_sign = cx.as_ref().map_or(changed, |cx| cx.last_progress().max(changed));
    let jobs = u32::try_from(completed + failed).unwrap_or(u32::MAX);
    WorkerStats {
        id,
        state,
        job: cx.as_ref().map(Context::job),
        job_age: cx.map_or(Duration::ZERO, |_| now.saturating_duration_since(changed)),
        completed,
        failed,
        total_run,
        mean_run: total_run.checked_div(jobs).unwrap_or_default(),
        since_progress: now.saturating_duration_since(last_sign),
    }
}
