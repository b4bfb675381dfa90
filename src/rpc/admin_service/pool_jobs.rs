//! `ListJobs`, `Explain` and `CancelJob`.

use std::time::Duration;

use tokio::time::Instant;
use tonic::{Response, Status};
use tracing::info;

use super::Admin;
use crate::{
    model::{JobId, JobStage, Limiter, ProgramEnd, RequestId},
    pool::{
        Binding, EndedFailure, EndedJob, Explanation, JobFilter, JobNames, JobOrder, ListedJob, Listing, RunningJob,
        TenantRate, Wait,
    },
    proto::{
        self, CancelJobRequest, CancelJobResponse, CancelledJob, EndedState, ExplainRequest, ExplainResponse,
        HeldState, ListJobsRequest, ListJobsResponse, RunningState, explain_response::State,
    },
    rpc::{
        convert::{duration, job_stage, waterfall},
        stats::check_pool,
        status::{invalid_field, unknown_job},
    },
};

/// Maximum number of jobs in an answer, and the default limit.
const MAX_JOBS: u32 = 1000;
const DEFAULT_LIMIT: u32 = 100;
const STAGES: [JobStage; 5] =
    [JobStage::Waiting, JobStage::Queued, JobStage::Running, JobStage::Completed, JobStage::Failed];
/// Maximum number of tenants in an answer.
const MAX_TENANTS: usize = 16;
/// Maximum number of other jobs with the same request id in an answer.
const MAX_OTHERS: usize = 16;

/// Message for a request without a job.
const NAME_A_JOB: &str = "send the id of a job, from its answer or its log lines, or its request id";
const ENDED: &str = "this job has already ended, or does not exist";
const FORGOTTEN: &str = "no pool has or remembers this job: it was refused, it is of another process, or it ended longer \
                         ago than pool.NAME.ended_jobs reaches";

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
    if request.stages().any(|stage| stage == proto::JobStage::Unspecified) {
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
    let JobNames { request_id, tenant, .. } = names;
    let run = match &ended {
        Some(EndedJob { started, waterfall, .. }) => started.then_some(waterfall.run),
        None => run.map(|running| running.run),
    };
    let outcome = ended.map_or("", |ended| ended.outcome.reason().name());
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
    }
}

/// Explains one job, by its id or its request id.
pub(super) fn explain(admin: &Admin, request: &ExplainRequest) -> Result<Response<ExplainResponse>, Status> {
    let id = &request.job_id;
    if id.is_empty() {
        return Err(invalid_field("job_id", NAME_A_JOB));
    }
    let known = id.parse().ok().and_then(|job| admin.pools.explain(job));
    let (explanation, others) = match known {
        Some(explanation) => (explanation, Vec::new()),
        None => newest_of_request(admin, id).ok_or_else(|| unknown_job(id, FORGOTTEN))?,
    };
    let Explanation { job: listed, wait } = explanation;
    let ListedJob { job, pool, kind, names, run, ended, age, left, stopping, .. } = listed;
    let JobNames { request_id, tenant, principal, runner } = names;
    let state = match (run, ended) {
        (_, Some(ended)) => State::Ended(self::ended(&ended)),
        (None, None) => State::Held(held(wait, age, left)),
        (Some(RunningJob { worker, queue, run, left, stuck, .. }), None) => State::Running(RunningState {
            worker,
            queue: Some(duration(queue)),
            run: Some(duration(run)),
            left: Some(duration(left)),
            stopping,
            stuck,
        }),
    };
    let answer = ExplainResponse {
        job_id: job.to_string(),
        pool: pool.to_string(),
        kind: kind.to_string(),
        state: Some(state),
        tenant: tenant.as_deref().unwrap_or_default().to_owned(),
        request_id: request_id.map(|id| id.to_string()).unwrap_or_default(),
        principal: principal.as_deref().unwrap_or_default().to_owned(),
        runner: runner.map(String::from).unwrap_or_default(),
        other_job_ids: others.iter().map(JobId::to_string).collect(),
    };
    Ok(Response::new(answer))
}

/// The newest job with this request id, and the ids of others.
fn newest_of_request(admin: &Admin, id: &str) -> Option<(Explanation, Vec<JobId>)> {
    let filter = JobFilter { request_id: Some(id.parse().ok()?), ..JobFilter::default() };
    let mut jobs = admin.pools.list(&filter, 1 + MAX_OTHERS).jobs.into_iter().map(|listed| listed.job);
    Some((admin.pools.explain(jobs.next()?)?, jobs.collect()))
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
    }
}

fn binding(binding: Binding) -> proto::Binding {
    match binding {
        Binding::Workers => proto::Binding::Workers,
        Binding::Tenants => proto::Binding::Tenants,
        Binding::Pause => proto::Binding::Pause,
        Binding::OrderingKey => proto::Binding::OrderingKey,
        Binding::Limit(Limiter::Concurrency) => proto::Binding::LimitConcurrency,
        Binding::Limit(Limiter::Rate) => proto::Binding::LimitRate,
        Binding::Limit(Limiter::KeyConcurrency) => proto::Binding::LimitKeyConcurrency,
        Binding::Limit(Limiter::KeyRate) => proto::Binding::LimitKeyRate,
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

/// Cancels one job, or all jobs of a request.
pub(super) fn cancel_job(admin: &Admin, request: &CancelJobRequest) -> Result<Response<CancelJobResponse>, Status> {
    let CancelJobRequest { job_id, request_id, reason: _ } = request;
    let id = match (job_id.as_str(), request_id.as_str()) {
        ("", "") => return Err(invalid_field("job_id", NAME_A_JOB)),
        ("", id) | (id, "") => id,
        _ => return Err(invalid_field("request_id", "send it without job_id")),
    };
    let one = job_id.parse().ok().and_then(|job| cancel(admin, job));
    let (jobs, all) = match one {
        Some(one) => (vec![one], 1),
        None => cancel_request(admin, id).ok_or_else(|| unknown_job(id, ENDED))?,
    };
    Ok(Response::new(CancelJobResponse { jobs, all: all as u64 }))
}

fn cancel(admin: &Admin, job: JobId) -> Option<CancelledJob> {
    let (pool, stage) = admin.pools.all().iter().find_map(|pool| Some((pool.name(), pool.cancel(job)?)))?;
    info!(%pool, %job, "an operator cancelled the job");
    Some(CancelledJob { job_id: job.to_string(), pool: pool.to_string(), stage: job_stage(stage).into() })
}

/// Cancels the jobs with this request id. Returns them with the number of all; `None` if there is none.
fn cancel_request(admin: &Admin, id: &str) -> Option<(Vec<CancelledJob>, usize)> {
    let filter = JobFilter { request_id: Some(id.parse().ok()?), ..JobFilter::held() };
    let Listing { jobs, all } = admin.pools.list(&filter, MAX_JOBS as usize);
    let cancelled: Vec<_> = jobs.into_iter().filter_map(|listed| cancel(admin, listed.job)).collect();
    (!cancelled.is_empty()).then_some((cancelled, all))
}
