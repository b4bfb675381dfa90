//! `ListJobs`, and what `Explain` says of a job in a pool.

use std::time::Duration;

use prost_types::Timestamp;
use tokio::time::Instant;
use tonic::{Response, Status};

use super::Admin;
use crate::{
    model::{JobStage, Limiter, ProgramEnd, RequestId},
    pool::{
        Binding, EndedFailure, EndedJob, Explanation, JobFilter, JobNames, JobOrder, ListedJob, Listing, Outage,
        RunningJob, StopRequest, TenantRate, Wait,
    },
    proto::{
        self, EndedState, ExplainResponse, HeldState, ListJobsRequest, ListJobsResponse, RunningState,
        explain_response::State,
    },
    rpc::{
        convert::{duration, job_stage, time_after, time_before, waterfall},
        stats::check_pool,
        status::invalid_field,
        status_message::shorten,
    },
};

/// Maximum number of jobs in an answer, and the default limit.
pub(super) const MAX_JOBS: u32 = 1000;
const DEFAULT_LIMIT: u32 = 100;
const STAGES: [JobStage; 5] =
    [JobStage::Waiting, JobStage::Queued, JobStage::Running, JobStage::Completed, JobStage::Failed];
/// Maximum number of tenants in an answer.
const MAX_TENANTS: usize = 16;
/// Longest message in a list, in bytes.
const MAX_MESSAGE: usize = 120;

/// Lists jobs that match a filter.
pub(super) fn list_jobs(admin: &Admin, request: ListJobsRequest) -> Result<Response<ListJobsResponse>, Status> {
    check_pool(&admin.pools, &request.pool)?;
    let max = match request.limit {
        0 => DEFAULT_LIMIT,
        limit @ 1..=MAX_JOBS => limit,
        _ => return Err(invalid_field("limit", &format!("send up to {MAX_JOBS}"))),
    };
    let tenants = tenants(admin, &request.pool);
    let order = match request.order() {
        proto::JobOrder::Unspecified => proto::JobOrder::Newest,
        order => order,
    };
    let Listing { jobs, all } = admin.pools.list(&filter(request)?, max as usize);
    let jobs = jobs.into_iter().map(listed).collect();
    Ok(Response::new(ListJobsResponse { jobs, all: all as u64, order: order.into(), tenants }))
}

fn filter(request: ListJobsRequest) -> Result<JobFilter, Status> {
    let order = match request.order() {
        proto::JobOrder::Unspecified | proto::JobOrder::Newest => JobOrder::Newest,
        proto::JobOrder::Oldest => JobOrder::Oldest,
    };
    if request.stages().any(|stage| matches!(stage, proto::JobStage::Unspecified | proto::JobStage::Stored)) {
        return Err(invalid_field("stages", "not a stage; send values of the enum"));
    }
    let is_asked = |stage: &JobStage| request.stages().any(|sent| sent == job_stage(*stage));
    let stages = STAGES.into_iter().filter(is_asked).collect();
    let ListJobsRequest { stages: _, pool, kind, tenant, request_id, older, order: _, limit: _, stale } = request;
    let older = older.map(Duration::try_from).transpose();
    let named = |name: String| Some(name).filter(|name| !name.is_empty());
    let request_id = named(request_id).map(|id| id.parse::<RequestId>()).transpose();
    Ok(JobFilter {
        stages,
        pool: named(pool),
        kind: named(kind),
        tenant,
        request_id: request_id.map_err(|error| invalid_field("request_id", &error.to_string()))?,
        older: older.map_err(|_| invalid_field("older", "negative; send the smallest age"))?.unwrap_or_default(),
        stale,
        order,
    })
}

fn tenants(admin: &Admin, pool: &str) -> Vec<proto::TenantRate> {
    let pools = admin.pools.all().iter().filter(|entry| pool.is_empty() || &**entry.name() == pool);
    let mut tenants: Vec<proto::TenantRate> = Vec::new();
    for TenantRate { tenant, asks, refusals } in pools.flat_map(|pool| pool.tenant_rates()) {
        match tenants.iter_mut().find(|known| *known.tenant == *tenant) {
            Some(known) => (known.asks, known.refusals) = (known.asks + asks, known.refusals + refusals),
            None => tenants.push(proto::TenantRate { tenant: tenant.into(), asks, refusals }),
        }
    }
    tenants.sort_by(|a, b| b.asks.total_cmp(&a.asks));
    tenants.truncate(MAX_TENANTS);
    tenants
}

fn listed(listed: ListedJob) -> proto::ListedJob {
    let ListedJob { job, pool, kind, names, stage, run, ended, age, .. } = listed;
    let JobNames { request_id, tenant, attempt, .. } = names;
    let run = match &ended {
        Some(EndedJob { started, waterfall, .. }) => started.then_some(waterfall.run),
        None => run.map(|running| running.run),
    };
    let outcome = ended.as_ref().map_or("", |ended| ended.outcome.reason().name());
    let failure = ended.as_ref().and_then(|ended| ended.failure.as_deref());
    proto::ListedJob {
        job_id: job.into(),
        request_id: request_id.map(|id| id.as_str().to_owned()).unwrap_or_default(),
        pool: pool.to_string(),
        kind: kind.to_string(),
        tenant: tenant.as_deref().unwrap_or_default().to_owned(),
        stage: job_stage(stage).into(),
        age: Some(duration(age)),
        run: run.map(duration),
        outcome: outcome.to_owned(),
        arrive_time: Some(time_before(age)),
        detached_job_id: attempt.as_ref().map(|attempt| attempt.job.clone()).unwrap_or_default(),
        attempt: attempt.map_or(0, |attempt| attempt.number),
        message: failure.map(|failure| shorten(&failure.message, MAX_MESSAGE).to_string()).unwrap_or_default(),
    }
}

/// What is known of a job in a pool.
pub(super) fn explained(explanation: Explanation) -> ExplainResponse {
    let Explanation { job: listed, wait, blocker, outage } = explanation;
    let ListedJob { job, pool, kind, names, run, ended, age, left, stop, .. } = listed;
    let JobNames { request_id, tenant, principal, runner, attempt, trace_id, is_sampled: _ } = names;
    let state = match (run, ended, outage) {
        (_, Some(ended), _) => State::Ended(self::ended(&ended)),
        (_, None, Some(outage)) => State::Held(HeldState {
            bound_by: proto::Binding::Program.into(),
            until: next_start(&outage),
            blocker: outage.cause,
            expected_start: None,
            ..held(wait, age, left)
        }),
        (None, None, None) => State::Held(HeldState { blocker, ..held(wait, age, left) }),
        (Some(running), None, None) => State::Running(self::running(running, stop)),
    };
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    ExplainResponse {
        job_id: job.to_string(),
        pool: pool.to_string(),
        kind: kind.to_string(),
        state: Some(state),
        tenant: text(tenant.as_deref()),
        request_id: text(request_id.as_ref().map(RequestId::as_str)),
        principal: text(principal.as_deref()),
        runner: text(runner.as_deref()),
        other_job_ids: Vec::new(),
        detached_job_id: text(attempt.as_deref().map(|attempt| attempt.job.as_str())),
        attempt: attempt.map_or(0, |attempt| attempt.number),
        trace_id: text(trace_id.as_deref()),
        arrive_time: Some(time_before(age)),
        detached: None,
    }
}

fn running(running: RunningJob, stop: Option<StopRequest>) -> RunningState {
    let RunningJob { worker, queue, run, left, stuck, .. } = running;
    let stop = stop.map(|StopRequest { reason, since, grace_left, .. }| proto::StopRequest {
        reason: reason.name().to_owned(),
        since: Some(duration(since)),
        grace_left: Some(duration(grace_left)),
    });
    RunningState {
        worker,
        queue: Some(duration(queue)),
        run: Some(duration(run)),
        left: Some(duration(left)),
        stopping: stop.is_some(),
        stuck,
        stop,
    }
}

/// When the next process of a program starts; `None` if it has started.
pub(super) fn next_start(outage: &Outage) -> Option<Timestamp> {
    let left = outage.next_start.saturating_duration_since(Instant::now());
    (!left.is_zero()).then(|| time_after(left))
}

fn held(wait: Option<Wait>, age: Duration, left: Duration) -> HeldState {
    let queued = wait.and_then(|wait| wait.queued);
    HeldState {
        position: wait.map_or(0, |wait| wait.position as u64),
        ahead: queued.map(|queued| queued.ahead as u64),
        expected_start: queued.and_then(|queued| queued.expected_start).map(duration),
        bound_by: queued.map_or(proto::Binding::Room, |queued| binding(queued.bound_by)).into(),
        age: Some(duration(age)),
        left: Some(duration(left)),
        blocker: String::new(),
        until: queued.and_then(|queued| queued.held_until).map(|until| time_after(until - Instant::now())),
    }
}

fn binding(binding: Binding) -> proto::Binding {
    match binding {
        Binding::Workers => proto::Binding::Workers,
        Binding::NoWorker(_) => proto::Binding::NoWorker,
        Binding::Tenants => proto::Binding::Tenants,
        Binding::Pause => proto::Binding::Pause,
        Binding::OrderingKey => proto::Binding::OrderingKey,
        Binding::Limit(limiter) => limit(limiter),
    }
}

pub(super) fn limit(limiter: Limiter) -> proto::Binding {
    match limiter {
        Limiter::Concurrency => proto::Binding::LimitConcurrency,
        Limiter::Rate => proto::Binding::LimitRate,
        Limiter::KeyConcurrency => proto::Binding::LimitKeyConcurrency,
        Limiter::KeyRate => proto::Binding::LimitKeyRate,
        Limiter::Hold => proto::Binding::LimitHold,
        Limiter::KeyHold => proto::Binding::LimitKeyHold,
    }
}

fn ended(ended: &EndedJob) -> EndedState {
    let EndedJob { outcome, rung, started, waterfall: times, at, failure, .. } = ended;
    let (message, program) = match failure.as_deref() {
        Some(EndedFailure { message, program }) => (message.clone(), program.clone()),
        None => (String::new(), None),
    };
    EndedState {
        outcome: outcome.reason().name().to_owned(),
        started: *started,
        rung: rung.map(|rung| rung.to_string()).unwrap_or_default(),
        waterfall: Some(waterfall(*times)),
        since: Some(duration(Instant::now().saturating_duration_since(*at))),
        message,
        program: program.map(|ProgramEnd { summary: _, exit_code, signal, stderr }| proto::ProgramEnd {
            exit_code,
            signal,
            stderr,
        }),
    }
}
