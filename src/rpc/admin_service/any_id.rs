//! `Explain` and `CancelJob`. Both take any id that a caller was told: of a job in a pool, of a detached job, or of a
//! call.

use std::collections::HashSet;

use tonic::{Response, Status};
use tracing::info;

use super::{
    Admin,
    pool_jobs::{MAX_JOBS, explained},
    stored_state::stored_state,
};
use crate::{
    detached::Detached,
    handler::Context,
    model::{JobId, RequestId},
    pool::{Explanation, JobFilter, ListedJob, Listing},
    proto::{
        self, Binding, CancelJobRequest, CancelJobResponse, CancelledJob, ExplainResponse, explain_response::State,
    },
    rpc::{
        convert::{detached_job_here, job_stage, time},
        status::{self, invalid_field, unknown_job},
    },
    store::{Action, Change, Extent, Filter, JobName, JobRecord, JobState, Order, StoreError},
};

/// Maximum number of jobs with the same request id in an answer of `Explain`.
const MAX_LISTED: usize = 17;
/// Jobs that are cancelled in one write, so that other writes do not wait long.
const CANCELLED_AT_ONCE: usize = 100;
/// States of the detached jobs that can be cancelled.
const CANCELLABLE: [JobState; 4] = [JobState::Scheduled, JobState::Ready, JobState::Blocked, JobState::Running];

/// Message for a request without a job.
const NAME_A_JOB: &str = "send the id of a job, from its answer or its log lines, or its request id";
const ENDED: &str = "this job has already ended, or does not exist";
const FORGOTTEN: &str = "no pool has or remembers this job, and no store: it was refused or removed, it is of another \
                         process, or it ended longer ago than pool.NAME.ended_jobs reaches";

/// Explains the job with this id, or the newest job of the call with this request id.
pub(super) async fn explain(admin: &Admin, id: &str) -> Result<ExplainResponse, Status> {
    if id.is_empty() {
        return Err(invalid_field("id", NAME_A_JOB));
    }
    // No job and no call can have another id, and a store may not be able to compare it.
    let request_id = id.parse::<RequestId>().map_err(|_| unknown_job(id, FORGOTTEN))?;
    if let Some(answer) = explain_job(admin, id).await? {
        return Ok(naming_operator(admin, answer));
    }
    let mut ids = ids_of_request(admin, &request_id).await?.into_iter();
    let newest = match ids.next() {
        Some(newest) => explain_job(admin, &newest).await?,
        None => None,
    };
    let answer = newest.ok_or_else(|| unknown_job(id, FORGOTTEN))?;
    Ok(naming_operator(admin, ExplainResponse { other_job_ids: ids.collect(), ..answer }))
}

/// Adds who paused the pool that the job waits in.
fn naming_operator(admin: &Admin, mut answer: ExplainResponse) -> ExplainResponse {
    if let Some(State::Held(held)) = &mut answer.state
        && held.bound_by() == Binding::Pause
    {
        held.blocker = admin.monitor.operator(&answer.pool).to_string().trim_start_matches([' ', ':']).to_owned();
    }
    answer
}

/// Explains the job with this id in a pool, or else the detached job with this id.
async fn explain_job(admin: &Admin, id: &str) -> Result<Option<ExplainResponse>, Status> {
    let in_pool = id.parse().ok().and_then(|job: JobId| admin.pools.explain(job));
    let Some(detached) = &admin.detached else { return Ok(in_pool.map(explained)) };
    let run = || admin.pools.explain(detached.run_of(id)?.job());
    if let Some(explanation) = in_pool.or_else(run) {
        let attempt = explanation.job.names.attempt.clone();
        let stored = match &attempt {
            // An answer without the stored job is better than none.
            Some(attempt) => detached.store().get(&attempt.job, Extent::Bare).await.unwrap_or_default(),
            None => None,
        };
        // The id may have been used again after its job was removed.
        let is_same = |job: &JobRecord| attempt.as_ref().is_some_and(|attempt| attempt.row == job.row);
        return Ok(Some(with_stored(detached, explanation, stored.filter(is_same))));
    }
    let last = admin.pools.last_attempt(id);
    match (detached.store().get(id, Extent::Bare).await, last) {
        (Ok(Some(job)), Some(last)) if is_end_of(&last, &job) => Ok(Some(with_stored(detached, last, Some(job)))),
        (Ok(Some(job)), _) => in_store(admin, detached, job).await.map(Some),
        (Ok(None), last) | (Err(_), last @ Some(_)) => Ok(last.map(explained)),
        (Err(error), None) => Err(status::read_failure(error)),
    }
}

/// Whether the remembered attempt is the one with which the job has ended.
fn is_end_of(last: &Explanation, job: &JobRecord) -> bool {
    let attempt = last.job.names.attempt.as_deref();
    job.state.is_ended() && attempt.is_some_and(|it| (it.row, it.number) == (job.row, job.starts))
}

fn with_stored(detached: &Detached, explanation: Explanation, stored: Option<JobRecord>) -> ExplainResponse {
    let stored = stored.map(|job| detached_job_here(detached, job));
    ExplainResponse { detached: stored, ..explained(explanation) }
}

/// Explains a job that no pool of this server has.
async fn in_store(admin: &Admin, detached: &Detached, job: JobRecord) -> Result<ExplainResponse, Status> {
    let state = stored_state(admin, detached, &job).await.map_err(status::read_failure)?;
    let kind = job.request.job.kind.clone();
    let pool = admin.pools.of_kind(&kind);
    Ok(ExplainResponse {
        pool: pool.map(|pool| pool.name().to_string()).unwrap_or_default(),
        kind,
        state: Some(State::Stored(state)),
        tenant: job.request.job.tenant.clone(),
        request_id: job.request.request_id.clone(),
        detached_job_id: job.request.id.clone(),
        attempt: job.starts,
        arrive_time: Some(time(job.created_at)),
        detached: Some(detached_job_here(detached, job)),
        ..ExplainResponse::default()
    })
}

/// Ids of the jobs of a call, the newest first: those in the pools, then those that only the store has.
async fn ids_of_request(admin: &Admin, request_id: &RequestId) -> Result<Vec<String>, Status> {
    let filter = JobFilter { request_id: Some(request_id.clone()), ..JobFilter::default() };
    let id = |listed: ListedJob| match listed.names.attempt {
        Some(attempt) => attempt.job.clone(),
        None => listed.job.to_string(),
    };
    let mut ids: Vec<_> = admin.pools.list(&filter, MAX_LISTED).jobs.into_iter().map(id).collect();
    if let Some(detached) = &admin.detached {
        let filter = Filter { request_id: Some(request_id.to_string()), ..Filter::default() };
        match stored(detached, filter, MAX_LISTED).await {
            Ok(stored) => ids.extend(stored.into_iter().map(|job| job.id)),
            Err(error) if ids.is_empty() => return Err(status::read_failure(error)),
            Err(_) => {}
        }
    }
    // A detached job may have several attempts.
    let mut known = HashSet::new();
    ids.retain(|id| known.insert(id.clone()));
    ids.truncate(MAX_LISTED);
    Ok(ids)
}

/// The newest detached jobs that match a filter.
async fn stored(detached: &Detached, filter: Filter, limit: usize) -> Result<Vec<JobName>, StoreError> {
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let page = detached.store().list(filter.clone(), Order::Newest, before, limit - found.len()).await?;
        found.extend(page.jobs.iter().map(JobName::from));
        before = page.next;
        if before.is_none() || found.len() >= limit {
            return Ok(found);
        }
    }
}

/// Cancels one job, or all jobs of a call.
pub(super) async fn cancel_job(
    admin: &Admin,
    request: &CancelJobRequest,
) -> Result<Response<CancelJobResponse>, Status> {
    let CancelJobRequest { id, request_id, reason: _ } = request;
    let (id, is_job) = match (id.as_str(), request_id.as_str()) {
        ("", "") => return Err(invalid_field("id", NAME_A_JOB)),
        (id, "") => (id, true),
        ("", id) => (id, false),
        _ => return Err(invalid_field("request_id", "send it without id")),
    };
    let known = id.parse::<RequestId>().map_err(|_| unknown_job(id, ENDED))?;
    let one = if is_job { cancel_one(admin, id).await? } else { None };
    let (jobs, all) = match one {
        Some(one) => (vec![one], 1),
        None => cancel_request(admin, known).await?,
    };
    if jobs.is_empty() {
        return Err(unknown_job(id, ENDED));
    }
    Ok(Response::new(CancelJobResponse { jobs, all: all as u64 }))
}

/// Cancels the job with this id in a pool, or else the detached job with this id.
async fn cancel_one(admin: &Admin, id: &str) -> Result<Option<CancelledJob>, Status> {
    if let Some(cancelled) = id.parse().ok().and_then(|job| cancel_in_pool(admin, job)) {
        return Ok(Some(cancelled));
    }
    let Some(detached) = &admin.detached else { return Ok(None) };
    // Before the change: the run may end at once.
    let (name, run) = (JobName::from(id), detached.run_of(id));
    match detached.change(vec![name.clone()], Action::Cancel).await.map(|changes| changes.last().copied()) {
        Ok(Some(Change::WrongState(state))) => Err(status::wrong_state(id, state)),
        Ok(change) => Ok(change.and_then(|change| cancelled(&name, run, change))),
        // What runs here can be stopped without the store.
        Err(error) => match run.and_then(|run| cancel_in_pool(admin, run.job())) {
            None => Err(status::write_failure(error)),
            stopped => Ok(stopped),
        },
    }
}

fn cancel_in_pool(admin: &Admin, job: JobId) -> Option<CancelledJob> {
    let detached_job = admin.pools.explain(job)?.job.names.attempt.map(|attempt| attempt.job.clone());
    let (pool, stage) = admin.pools.all().iter().find_map(|pool| Some((pool.name(), pool.cancel(job)?)))?;
    info!(%pool, %job, detached_job, "an operator cancelled the job");
    Some(CancelledJob {
        job_id: job.to_string(),
        pool: pool.to_string(),
        stage: job_stage(stage).into(),
        detached_job_id: detached_job.unwrap_or_default(),
    })
}

/// What the answer says of a detached job; `None` if it was not cancelled.
fn cancelled(job: &JobName, run: Option<Context>, change: Change) -> Option<CancelledJob> {
    let stage = match change {
        Change::Done => proto::JobStage::Stored,
        Change::Requested => proto::JobStage::Running,
        Change::NotFound | Change::WrongState(_) | Change::Full(_) => return None,
    };
    let pool = run.as_ref().map(|run| run.pool().to_string()).unwrap_or_default();
    let run = run.map(|run| run.job().to_string()).unwrap_or_default();
    info!(pool, job = run, detached_job = job.id, "an operator cancelled the job");
    Some(CancelledJob { job_id: run, pool, stage: stage.into(), detached_job_id: job.id.clone() })
}

/// Cancels the jobs of a call. Returns them with the number of all.
async fn cancel_request(admin: &Admin, request_id: RequestId) -> Result<(Vec<CancelledJob>, usize), Status> {
    let (mut jobs, mut all, mut failure) = (Vec::new(), 0, None);
    if let Some(detached) = &admin.detached {
        match cancel_stored(detached, request_id.to_string()).await {
            Ok(found) => (jobs, all) = found,
            Err(error) => failure = Some(error),
        }
    }
    let filter = JobFilter { request_id: Some(request_id), ..JobFilter::held() };
    let Listing { jobs: held, all: all_held } = admin.pools.list(&filter, MAX_JOBS as usize);
    // The store has asked for the end of attempts, unless it failed.
    let is_asked = |listed: &&ListedJob| failure.is_none() && listed.names.attempt.is_some();
    let attempts = held.iter().filter(is_asked).count();
    jobs.extend(held.iter().filter(|job| !is_asked(job)).filter_map(|listed| cancel_in_pool(admin, listed.job)));
    jobs.truncate(MAX_JOBS as usize);
    match failure {
        Some(error) if jobs.is_empty() => Err(status::write_failure(error)),
        _ => Ok((jobs, all + all_held - attempts)),
    }
}

/// Cancels the detached jobs of a call. Returns them, with a number that is larger if there are more.
async fn cancel_stored(detached: &Detached, request_id: String) -> Result<(Vec<CancelledJob>, usize), StoreError> {
    let filter = Filter { request_id: Some(request_id), states: CANCELLABLE.to_vec(), ..Filter::default() };
    let names = stored(detached, filter, MAX_JOBS as usize + 1).await?;
    let mut jobs = Vec::new();
    for names in names.get(..MAX_JOBS as usize).unwrap_or(&names).chunks(CANCELLED_AT_ONCE) {
        let runs: Vec<_> = names.iter().map(|name| detached.run_of(&name.id)).collect();
        let changes = detached.change(names.to_vec(), Action::Cancel).await?;
        let jobs_and_runs = names.iter().zip(runs).zip(changes);
        jobs.extend(jobs_and_runs.filter_map(|((name, run), change)| cancelled(name, run, change)));
    }
    Ok((jobs, names.len()))
}
