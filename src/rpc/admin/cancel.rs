use tonic::{Response, Status};
use tracing::info;

use super::Admin;
use crate::{
    model::JobId,
    pool::CancelledWhile,
    proto::{CancelJobRequest, CancelJobResponse, JobStage},
    rpc::status::{invalid_field, no_job},
};

/// `CancelJob`.
pub(super) fn cancel_job(admin: &Admin, request: &CancelJobRequest) -> Result<Response<CancelJobResponse>, Status> {
    let id = &request.job_id;
    if id.is_empty() {
        return Err(invalid_field("job_id", "send the id of a job, as its answer and its log lines tell it"));
    }
    let job: JobId = id.parse().map_err(|_| no_job(id))?;
    let found = admin.pools.all().iter().find_map(|pool| Some((pool, pool.cancel(job)?)));
    let (pool, found) = found.ok_or_else(|| no_job(id))?;
    info!(pool = %pool.name(), job = %job, "an operator cancelled the job");
    let stage = match found {
        CancelledWhile::Waiting => JobStage::Waiting,
        CancelledWhile::Queued => JobStage::Queued,
        CancelledWhile::Running => JobStage::Running,
    };
    let answer = CancelJobResponse { job_id: job.to_string(), pool: pool.name().to_string(), stage: stage.into() };
    Ok(Response::new(answer))
}
