//! `GetJob`, `ListJobs` and `WaitJob`.

use tokio::time::sleep_until;
use tonic::Status;

use super::{Asked, convert};
use crate::{
    proto::{
        GetJobRequest, GetJobResponse, JobServiceListJobsRequest, JobServiceListJobsResponse, WaitJobRequest,
        WaitJobResponse,
    },
    rpc::status::{self, invalid_field},
    store::{BATCH, StoredJob},
};

/// Jobs of a page, without a number in the request.
const USUAL: usize = 100;

pub(super) async fn get_job(asked: &Asked, request: GetJobRequest) -> Result<GetJobResponse, Status> {
    let job = asked.job(&request.job_id, request.with_payload).await?;
    Ok(GetJobResponse { job: Some(convert::stored(job)) })
}

pub(super) async fn list_jobs(
    asked: &Asked,
    request: JobServiceListJobsRequest,
) -> Result<JobServiceListJobsResponse, Status> {
    let JobServiceListJobsRequest { filter, page_size, page_token } = request;
    let limit = match page_size as usize {
        0 => USUAL,
        size if size <= BATCH => size,
        _ => return Err(invalid_field("page_size", &format!("send up to {BATCH}"))),
    };
    let filter = convert::filter(asked, filter.unwrap_or_default())?;
    let token = Some(page_token).filter(|token| !token.is_empty());
    let page = asked.store().list(filter, token, limit).await.map_err(|error| status::store_fails(&error))?;
    let jobs = page.jobs.into_iter().map(convert::record).collect();
    Ok(JobServiceListJobsResponse { jobs, next_page_token: page.next.unwrap_or_default() })
}

/// Waits for the end of a job, at most until the deadline of the call, which the server bounds as that of any job.
pub(super) async fn wait_job(asked: &Asked, request: WaitJobRequest) -> Result<WaitJobResponse, Status> {
    let id = &request.job_id;
    // Many callers may wait: they hold no payload.
    let seen = asked.job(id, false).await?;
    let answer = |job: StoredJob| Ok(WaitJobResponse { job: Some(convert::stored(job)) });
    if seen.record.state.is_ended() {
        return answer(seen);
    }
    let deadline = asked.call.deadline(&asked.parts.deadline);
    let ended = tokio::select! {
        ended = asked.store().wait(id) => ended.map_err(|error| status::store_fails(&error))?,
        () = sleep_until(deadline.reply_by()) => Some(asked.job(id, false).await?),
        () = asked.parts.pools.closing() => return Err(status::draining(asked.call.request_id())),
    };
    ended.map_or_else(|| Err(status::no_detached_job(id)), answer)
}
