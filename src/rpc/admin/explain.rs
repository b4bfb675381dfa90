//! `Explain`.

use std::time::Duration;

use tokio::time::Instant;
use tonic::{Response, Status};

use super::{Admin, NAME_A_JOB};
use crate::{
    model::{JobId, Limiter, ProgramEnd},
    pool::{Binding, EndedFailure, EndedJob, Explanation, JobFilter, JobNames, ListedJob, Stage, Wait},
    proto::{self, EndedState, ExplainRequest, ExplainResponse, HeldState, RunningState, explain_response::State},
    rpc::{
        convert::{duration, waterfall as waterfall_of},
        status::{forgotten_job, invalid_field},
    },
};

/// Most other jobs of the same request id in an answer.
const MAX_OTHERS: usize = 16;

/// Explains one job, by its id or its request id.
pub(super) fn explain(admin: &Admin, request: &ExplainRequest) -> Result<Response<ExplainResponse>, Status> {
    let id = &request.job_id;
    if id.is_empty() {
        return Err(invalid_field("job_id", NAME_A_JOB));
    }
    let known = id.parse().ok().and_then(|job| admin.pools.explain(job));
    let (explanation, others) = match known {
        Some(explanation) => (explanation, Vec::new()),
        None => of_request(admin, id).ok_or_else(|| forgotten_job(id))?,
    };
    let Explanation { job: listed, wait } = explanation;
    let ListedJob { job, pool, kind, names, stage, age, left, stopping, traceparent: _ } = listed;
    let JobNames { request_id, tenant, principal, runner } = names;
    let state = match stage {
        Stage::Waiting | Stage::Queued => State::Held(held(wait, age, left)),
        Stage::Running { worker, queue, run, left, stuck, since_progress: _ } => State::Running(RunningState {
            worker,
            queue: Some(duration(queue)),
            run: Some(duration(run)),
            left: Some(duration(left)),
            stopping,
            stuck,
        }),
        Stage::Ended(ended) => State::Ended(self::ended(&ended)),
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
fn of_request(admin: &Admin, id: &str) -> Option<(Explanation, Vec<JobId>)> {
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
    let EndedJob { job: _, outcome, rung, started, waterfall, at, names: _, failure, .. } = ended;
    let (message, program) = match failure.as_deref() {
        Some(EndedFailure { message, program }) => (message.clone(), program.clone()),
        None => (String::new(), None),
    };
    EndedState {
        outcome: outcome.reason().name().to_owned(),
        started: *started,
        rung: rung.map(|rung| rung.to_string()).unwrap_or_default(),
        waterfall: Some(waterfall_of(*waterfall)),
        since: Some(duration(Instant::now().saturating_duration_since(*at))),
        message,
        program: program.map(|ProgramEnd { told: _, exit_code, signal, stderr }| proto::ProgramEnd {
            exit_code,
            signal,
            stderr,
        }),
    }
}
