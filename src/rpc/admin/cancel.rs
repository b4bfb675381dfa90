//! `CancelJob`.

use tonic::{Response, Status};
use tracing::info;

use super::{Admin, NAME_A_JOB};
use crate::{
    model::{JobId, JobStage},
    pool::{JobFilter, Listing},
    proto::{CancelJobRequest, CancelJobResponse},
    rpc::{
        convert::job_stage,
        status::{ambiguous, invalid_field, no_job},
    },
};

/// Most job ids in a refusal.
const MAX_NAMED: usize = 16;

/// Cancels one job, by its id or its request id.
pub(super) fn cancel_job(admin: &Admin, request: &CancelJobRequest) -> Result<Response<CancelJobResponse>, Status> {
    let id = &request.job_id;
    if id.is_empty() {
        return Err(invalid_field("job_id", NAME_A_JOB));
    }
    let found = id.parse().ok().and_then(|job| Some((job, cancel(admin, job)?)));
    let (job, (pool, stage)) = match found {
        Some(found) => found,
        None => {
            let job = of_request(admin, id)?;
            (job, cancel(admin, job).ok_or_else(|| no_job(id))?)
        }
    };
    info!(pool, job = %job, "an operator cancelled the job");
    let (pool, stage) = (pool.to_owned(), job_stage(stage).into());
    Ok(Response::new(CancelJobResponse { job_id: job.to_string(), pool, stage }))
}

fn cancel(admin: &Admin, job: JobId) -> Option<(&str, JobStage)> {
    admin.pools.all().iter().find_map(|pool| Some((&**pool.name(), pool.cancel(job)?)))
}

/// The one job with this request id.
fn of_request(admin: &Admin, id: &str) -> Result<JobId, Status> {
    let request_id = id.parse().map_err(|_| no_job(id))?;
    let filter = JobFilter { request_id: Some(request_id), ..JobFilter::held() };
    let Listing { jobs, all } = admin.pools.list(&filter, MAX_NAMED);
    match &*jobs {
        [] => Err(no_job(id)),
        [one] => Ok(one.job),
        several => {
            let ids: Vec<_> = several.iter().map(|listed| listed.job.to_string()).collect();
            Err(ambiguous(all, &ids))
        }
    }
}
