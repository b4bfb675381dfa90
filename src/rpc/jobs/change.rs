//! `CancelJob`, `RetryJob`, `DeleteJob` and `PurgeJobs`.

use tonic::Status;

use super::{Asked, convert};
use crate::{
    proto::{JobServiceCancelJobRequest, JobServiceCancelJobResponse, JobState, PurgeJobsRequest, PurgeJobsResponse},
    rpc::status,
    store::{Action, Change},
};

pub(super) async fn cancel_job(
    asked: &Asked,
    request: JobServiceCancelJobRequest,
) -> Result<JobServiceCancelJobResponse, Status> {
    let state = match change(asked, request.job_id, Action::Cancel).await? {
        Change::Requested => JobState::Running,
        _ => JobState::Cancelled,
    };
    Ok(JobServiceCancelJobResponse { state: state.into() })
}

/// Changes one job.
pub(super) async fn change(asked: &Asked, id: String, action: Action) -> Result<Change, Status> {
    if asked.parts.guard.gate.is_some() {
        asked.job(&id, false).await?;
    }
    let changes = asked.store().change(vec![id.clone()], action).await;
    match changes.map_err(|error| status::store_fails(&error))?.pop() {
        Some(change @ (Change::Done | Change::Requested)) => Ok(change),
        Some(Change::WrongState(state)) => Err(status::wrong_state(&id, state)),
        Some(Change::Full) => Err(status::store_full()),
        Some(Change::NotFound) | None => Err(status::no_detached_job(&id)),
    }
}

pub(super) async fn purge_jobs(asked: &Asked, request: PurgeJobsRequest) -> Result<PurgeJobsResponse, Status> {
    let filter = convert::filter(asked, request.filter.unwrap_or_default())?;
    let mut removed = 0;
    loop {
        match asked.store().purge(filter.clone()).await {
            Ok(0) => return Ok(PurgeJobsResponse { removed }),
            Ok(batch) => removed += batch as u64,
            Err(error) => return Err(status::store_fails(&error)),
        }
    }
}
