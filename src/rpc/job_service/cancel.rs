//! `CancelJobs`: cancels the jobs that match a filter.

use tonic::Status;

use super::{
    JobsCall,
    filter::read_filter,
    page_token::{page_token, read_page_token},
};
use crate::{
    proto::{CancelJobsRequest, CancelJobsResponse},
    rpc::status,
    store::{Action, BATCH, Change, JobName, JobState},
};

/// States of the jobs that can be cancelled.
const OPEN: [JobState; 4] = [JobState::Scheduled, JobState::Ready, JobState::Blocked, JobState::Running];
/// Jobs that are cancelled at a time, so that other writes do not wait long.
const AT_A_TIME: usize = 100;

impl JobsCall {
    /// Cancels a page of jobs, the newest first. A job that has ended meanwhile is left out.
    pub(super) async fn cancel_jobs(&self, request: CancelJobsRequest) -> Result<CancelJobsResponse, Status> {
        let CancelJobsRequest { filter, dry_run, page_token: token } = request;
        let mut filter = read_filter(self, filter.unwrap_or_default())?;
        let secret = self.store().secret().await.map_err(status::read_failure)?;
        let before = read_page_token(&secret, &token)?;
        let is_asked = |state: &JobState| filter.states.is_empty() || filter.states.contains(state);
        filter.states = OPEN.into_iter().filter(is_asked).collect();
        if filter.states.is_empty() {
            return Ok(CancelJobsResponse::default());
        }
        let page = self.store().list(filter, before, BATCH).await.map_err(status::read_failure)?;
        let next_page_token = page_token(&secret, page.next);
        let mut answer = CancelJobsResponse { next_page_token, ..CancelJobsResponse::default() };
        for jobs in page.jobs.chunks(AT_A_TIME) {
            let changes = if dry_run {
                let change = |state| if state == JobState::Running { Change::Requested } else { Change::Done };
                jobs.iter().map(|job| change(job.state)).collect()
            } else {
                let jobs = jobs.iter().map(JobName::from).collect();
                self.detached.change(jobs, Action::Cancel).await.map_err(status::write_failure)?
            };
            answer.cancelled += changes.iter().filter(|change| **change == Change::Done).count() as u64;
            answer.asked_to_stop += changes.iter().filter(|change| **change == Change::Requested).count() as u64;
        }
        Ok(answer)
    }
}
