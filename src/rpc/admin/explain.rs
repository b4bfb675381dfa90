use tokio::time::Instant;
use tonic::{Response, Status};

use super::Admin;
use crate::{
    model::{JobId, Limiter},
    pool::{Binding, EndedJob, Explanation, JobEnd, Stage},
    proto::{self, EndedState, ExplainRequest, ExplainResponse, HeldState, RunningState, explain_response::State},
    rpc::{
        convert::{duration, waterfall as waterfall_of},
        status::{forgotten_job, invalid_field},
    },
};

/// `Explain`.
pub(super) fn explain(admin: &Admin, request: &ExplainRequest) -> Result<Response<ExplainResponse>, Status> {
    let id = &request.job_id;
    if id.is_empty() {
        return Err(invalid_field("job_id", "send the id of a job, as its answer and its log lines tell it"));
    }
    let job: JobId = id.parse().map_err(|_| forgotten_job(id))?;
    let Explanation { pool, kind, stage } = admin.pools.explain(job).ok_or_else(|| forgotten_job(id))?;
    let answer = ExplainResponse {
        job_id: job.to_string(),
        pool: pool.to_string(),
        kind: kind.to_string(),
        state: Some(state(stage)),
    };
    Ok(Response::new(answer))
}

fn state(stage: Stage) -> State {
    match stage {
        Stage::Held { queued, position, age, left } => State::Held(HeldState {
            position: position as u64,
            ahead: queued.map(|queued| queued.ahead as u64),
            expected_start: queued.and_then(|queued| queued.expected_start).map(duration),
            bound_by: queued.map_or(proto::Binding::Room, |queued| binding(queued.bound_by)).into(),
            age: Some(duration(age)),
            left: Some(duration(left)),
        }),
        Stage::Running { worker, queue, run, left, stopping, stuck } => State::Running(RunningState {
            worker,
            queue: Some(duration(queue)),
            run: Some(duration(run)),
            left: Some(duration(left)),
            stopping,
            stuck,
        }),
        Stage::Ended(ended) => State::Ended(self::ended(&ended)),
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
    let EndedJob { job: _, end, rung, started, waterfall, at, .. } = ended;
    EndedState {
        outcome: outcome(*end).to_owned(),
        started: *started,
        rung: rung.map(|rung| rung.to_string()).unwrap_or_default(),
        waterfall: Some(waterfall_of(*waterfall)),
        since: Some(duration(Instant::now().saturating_duration_since(*at))),
    }
}

/// The reason that the caller of such a job is told; a name of its own for one that completed.
fn outcome(end: JobEnd) -> &'static str {
    match end {
        JobEnd::Completed => "COMPLETED",
        JobEnd::HandlerFailed => "HANDLER_FAILED",
        JobEnd::WorkerCrashed => "WORKER_CRASHED",
        JobEnd::OutputTooLarge => "OUTPUT_TOO_LARGE",
        JobEnd::HandlerUnavailable => "HANDLER_UNAVAILABLE",
        JobEnd::Panicked => "HANDLER_PANICKED",
        JobEnd::RunTimeout => "RUN_TIMEOUT",
        JobEnd::ExpiredInQueue => "EXPIRED_IN_QUEUE",
        JobEnd::Cancelled => "CANCELLED",
        JobEnd::CancelledByOperator => "CANCELLED_BY_OPERATOR",
        JobEnd::Shed => "SHED",
        JobEnd::Drained => "DRAINING",
        JobEnd::DrainKilled => "DRAIN_KILLED",
    }
}
