//! The messages of the contract as JSON: their own field names, durations as in proto3 JSON (`"1.503s"`), bytes in
//! base64, enums by name, counters as numbers.

mod admin;
mod explain;
mod jobs;

pub(crate) use admin::{CancelJobResponseView, PoolStateView};
use admin::{FactoryView, SizeView};
use base64::{Engine, engine::general_purpose::STANDARD};
pub(crate) use explain::ExplainView;
pub(crate) use jobs::ListJobsView;
use serde::Serialize;

use crate::proto::{
    Distribution, DrainResponse, Finished, JobCounts, JobResult, KindStats, LimitBound, LimitStats, Phase, PoolStats,
    QueueStats, Stats, StreamResponse, Waterfall, WaterfallParts, WorkerState, WorkerStats, stream_response::Event,
};

type Seconds = Option<String>;

fn seconds(duration: Option<&prost_types::Duration>) -> Seconds {
    duration.map(ToString::to_string)
}

/// One line of JSON.
pub(crate) fn line(view: &impl Serialize) -> String {
    serde_json::to_string(view).expect("views have string keys and no failing serializer")
}

#[derive(Serialize)]
pub(crate) struct WaterfallView {
    budget: Seconds,
    queue: Seconds,
    run: Seconds,
    left: Seconds,
    worker: u32,
}

impl From<&Waterfall> for WaterfallView {
    fn from(waterfall: &Waterfall) -> Self {
        let WaterfallParts { budget, queue, run, left, worker } = waterfall.parts();
        let [budget, queue, run, left] = [budget, queue, run, left].map(|part| seconds(part.as_ref()));
        Self { budget, queue, run, left, worker }
    }
}

#[derive(Serialize)]
pub(crate) struct JobResultView<'a> {
    job_id: &'a str,
    output: String,
    content_type: &'a str,
    waterfall: Option<WaterfallView>,
}

impl<'a> From<&'a JobResult> for JobResultView<'a> {
    fn from(result: &'a JobResult) -> Self {
        Self {
            job_id: &result.job_id,
            output: STANDARD.encode(&result.output),
            content_type: &result.content_type,
            waterfall: result.waterfall.as_ref().map(Into::into),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct StreamResponseView<'a> {
    sequence: u64,
    #[serde(flatten)]
    event: Option<EventView<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum EventView<'a> {
    Started { job_id: &'a str, worker: u32 },
    OutputChunk { data: String },
    Progress { fraction: f64, message: &'a str },
    Finished(FinishedView<'a>),
}

#[derive(Serialize)]
struct FinishedView<'a> {
    job_id: &'a str,
    content_type: &'a str,
    output_bytes: u64,
    waterfall: Option<WaterfallView>,
}

impl<'a> From<&'a StreamResponse> for StreamResponseView<'a> {
    fn from(response: &'a StreamResponse) -> Self {
        Self { sequence: response.sequence, event: response.event.as_ref().map(Into::into) }
    }
}

impl<'a> From<&'a Event> for EventView<'a> {
    fn from(event: &'a Event) -> Self {
        match event {
            Event::Started(started) => Self::Started { job_id: &started.job_id, worker: started.worker },
            Event::OutputChunk(chunk) => Self::OutputChunk { data: STANDARD.encode(&chunk.data) },
            Event::Progress(progress) => Self::Progress { fraction: progress.fraction, message: &progress.message },
            Event::Finished(finished) => Self::Finished(finished.into()),
        }
    }
}

impl<'a> From<&'a Finished> for FinishedView<'a> {
    fn from(finished: &'a Finished) -> Self {
        Self {
            job_id: &finished.job_id,
            content_type: &finished.content_type,
            output_bytes: finished.output_bytes,
            waterfall: finished.waterfall.as_ref().map(Into::into),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct DrainResponseView {
    phase: &'static str,
    queued: u64,
    running: u64,
    finished: u64,
    lost: u64,
    elapsed: Seconds,
    expected: Seconds,
    hard_stop: Seconds,
}

impl From<&DrainResponse> for DrainResponseView {
    fn from(report: &DrainResponse) -> Self {
        Self {
            phase: report.phase().as_str_name(),
            queued: report.queued,
            running: report.running,
            finished: report.finished,
            lost: report.lost,
            elapsed: seconds(report.elapsed.as_ref()),
            expected: seconds(report.expected.as_ref()),
            hard_stop: seconds(report.hard_stop.as_ref()),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct StatsView<'a> {
    phase: &'static str,
    uptime: Seconds,
    pools: Vec<PoolView<'a>>,
}

impl<'a> From<&'a Stats> for StatsView<'a> {
    fn from(stats: &'a Stats) -> Self {
        Self {
            phase: Phase::as_str_name(&stats.phase()),
            uptime: seconds(stats.uptime.as_ref()),
            pools: stats.pools.iter().map(Into::into).collect(),
        }
    }
}

#[derive(Serialize)]
struct PoolView<'a> {
    name: &'a str,
    phase: &'static str,
    queue: Option<QueueView>,
    in_flight: u32,
    utilization: f64,
    jobs: Option<JobCountsView<'a>>,
    kinds: Vec<KindView<'a>>,
    workers: Vec<WorkerView<'a>>,
    slow_polls: u64,
    paused: Seconds,
    size: Option<SizeView>,
}

impl<'a> From<&'a PoolStats> for PoolView<'a> {
    fn from(pool: &'a PoolStats) -> Self {
        Self {
            name: &pool.name,
            phase: pool.phase().as_str_name(),
            queue: pool.queue.as_ref().map(Into::into),
            in_flight: pool.in_flight,
            utilization: pool.utilization,
            jobs: pool.jobs.as_ref().map(Into::into),
            kinds: pool.kinds.iter().map(Into::into).collect(),
            workers: pool.workers.iter().map(Into::into).collect(),
            slow_polls: pool.slow_polls,
            paused: seconds(pool.paused.as_ref()),
            size: pool.size.as_ref().map(Into::into),
        }
    }
}

#[derive(Serialize)]
struct QueueView {
    jobs: u64,
    jobs_capacity: u64,
    bytes: u64,
    bytes_capacity: u64,
    waiting: u64,
    waiting_capacity: u64,
    oldest_age: Seconds,
    expected_wait: Seconds,
}

impl From<&QueueStats> for QueueView {
    fn from(queue: &QueueStats) -> Self {
        Self {
            jobs: queue.jobs,
            jobs_capacity: queue.jobs_capacity,
            bytes: queue.bytes,
            bytes_capacity: queue.bytes_capacity,
            waiting: queue.waiting,
            waiting_capacity: queue.waiting_capacity,
            oldest_age: seconds(queue.oldest_age.as_ref()),
            expected_wait: seconds(queue.expected_wait.as_ref()),
        }
    }
}

#[derive(Serialize)]
struct JobCountsView<'a> {
    accepted: u64,
    completed: u64,
    failed: u64,
    cancelled: u64,
    expired: u64,
    panicked: u64,
    shed: u64,
    rejected: Vec<RejectedView<'a>>,
}

#[derive(Serialize)]
struct RejectedView<'a> {
    reason: &'a str,
    count: u64,
}

impl<'a> From<&'a JobCounts> for JobCountsView<'a> {
    fn from(jobs: &'a JobCounts) -> Self {
        Self {
            accepted: jobs.accepted,
            completed: jobs.completed,
            failed: jobs.failed,
            cancelled: jobs.cancelled,
            expired: jobs.expired,
            panicked: jobs.panicked,
            shed: jobs.shed,
            rejected: jobs
                .rejected
                .iter()
                .map(|rejected| RejectedView { reason: &rejected.reason, count: rejected.count })
                .collect(),
        }
    }
}

#[derive(Serialize)]
struct KindView<'a> {
    name: &'a str,
    queue_wait: Option<DistributionView>,
    run_time: Option<DistributionView>,
    limit: Option<LimitView>,
    factory: Option<FactoryView>,
}

impl<'a> From<&'a KindStats> for KindView<'a> {
    fn from(kind: &'a KindStats) -> Self {
        Self {
            name: &kind.name,
            queue_wait: kind.queue_wait.as_ref().map(Into::into),
            run_time: kind.run_time.as_ref().map(Into::into),
            limit: kind.limit.as_ref().map(Into::into),
            factory: kind.factory.as_ref().map(Into::into),
        }
    }
}

#[derive(Serialize)]
struct LimitView {
    all: Option<BoundView>,
    per_key: Option<BoundView>,
    running: u32,
    queued: u64,
    keys: u64,
}

impl From<&LimitStats> for LimitView {
    fn from(limit: &LimitStats) -> Self {
        let LimitStats { all, per_key, running, queued, keys } = *limit;
        Self { all: all.map(Into::into), per_key: per_key.map(Into::into), running, queued, keys }
    }
}

#[derive(Serialize)]
struct BoundView {
    concurrency: u32,
    rate: f64,
    burst: u32,
}

impl From<LimitBound> for BoundView {
    fn from(LimitBound { concurrency, rate, burst }: LimitBound) -> Self {
        Self { concurrency, rate, burst }
    }
}

#[derive(Serialize)]
struct DistributionView {
    count: u64,
    p50: Seconds,
    p90: Seconds,
    p99: Seconds,
    max: Seconds,
}

impl From<&Distribution> for DistributionView {
    fn from(distribution: &Distribution) -> Self {
        Self {
            count: distribution.count,
            p50: seconds(distribution.p50.as_ref()),
            p90: seconds(distribution.p90.as_ref()),
            p99: seconds(distribution.p99.as_ref()),
            max: seconds(distribution.max.as_ref()),
        }
    }
}

#[derive(Serialize)]
struct WorkerView<'a> {
    id: u32,
    state: &'static str,
    job_id: &'a str,
    job_age: Seconds,
    completed: u64,
    failed: u64,
    total_run_time: Seconds,
    mean_run_time: Seconds,
    since_progress: Seconds,
}

impl<'a> From<&'a WorkerStats> for WorkerView<'a> {
    fn from(worker: &'a WorkerStats) -> Self {
        Self {
            id: worker.id,
            state: WorkerState::as_str_name(&worker.state()),
            job_id: &worker.job_id,
            job_age: seconds(worker.job_age.as_ref()),
            completed: worker.completed,
            failed: worker.failed,
            total_run_time: seconds(worker.total_run_time.as_ref()),
            mean_run_time: seconds(worker.mean_run_time.as_ref()),
            since_progress: seconds(worker.since_progress.as_ref()),
        }
    }
}

#[cfg(test)]
mod tests;
