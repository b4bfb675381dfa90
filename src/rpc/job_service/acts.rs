//! The calls that change jobs: one by its id, or those that match a filter, a page in each call. A page is changed in
//! steps, so that other writes do not wait long.

use tonic::Status;
use tracing::info;

use super::{JobsCall, check_id, filter::read_filter, unknown};
use crate::{
    model::Reason,
    proto::{
        self, CancelJobsRequest, CancelJobsResponse, DeleteJobRequest, DeleteJobResponse, DetachedJobFilter,
        JobServiceCancelJobRequest, JobServiceCancelJobResponse, PurgeJobsRequest, PurgeJobsResponse, RetryJobRequest,
        RetryJobResponse, RetryJobsRequest, RetryJobsResponse,
    },
    rpc::{
        context::operator_span,
        status::{self, failed_precondition, invalid_field},
    },
    store::{Action, BATCH, Change, Extent, Filter, JobName, JobRecord, JobState, Order},
};

/// Number of jobs that one write changes.
const STEP: usize = 100;
/// Bytes of payloads and outputs that one write removes; the last job may exceed it.
const STEP_BYTES: u64 = 64 << 20;

/// What the calls by filter have in common.
struct Act {
    filter: Option<DetachedJobFilter>,
    dry_run: bool,
    page_token: String,
    reason: String,
    expected: u64,
}

/// What a call by filter did.
#[derive(Default)]
struct Acted {
    done: u64,
    /// Running jobs that were asked to stop.
    requested: u64,
    /// Jobs for which there was no room.
    refused: u64,
    next_page_token: String,
}

impl Acted {
    fn count(&mut self, change: Change) {
        match change {
            Change::Done => self.done += 1,
            Change::Requested => self.requested += 1,
            Change::Full(_) => self.refused += 1,
            // It has changed since the list.
            Change::NotFound | Change::WrongState(_) => {}
        }
    }
}

impl JobsCall {
    pub(super) async fn cancel_job(
        &self,
        request: JobServiceCancelJobRequest,
    ) -> Result<JobServiceCancelJobResponse, Status> {
        let state = match self.change(request.job_id, Action::Cancel, &request.reason).await? {
            Change::Requested => proto::JobState::Running,
            _ => proto::JobState::Cancelled,
        };
        Ok(JobServiceCancelJobResponse { state: state.into() })
    }

    pub(super) async fn retry_job(&self, request: RetryJobRequest) -> Result<RetryJobResponse, Status> {
        let job = self.job(&request.job_id, Extent::Bare).await?;
        // As for a created job, the quota limits how often, and the hold is not kept.
        let _hold = self.service.access.admit_again(&self.context, &job.request.job)?;
        self.change(request.job_id, Action::Retry, &request.reason).await.map(|_| RetryJobResponse {})
    }

    pub(super) async fn delete_job(&self, request: DeleteJobRequest) -> Result<DeleteJobResponse, Status> {
        self.change(request.job_id, Action::Delete, &request.reason).await.map(|_| DeleteJobResponse {})
    }

    /// Changes one job.
    pub(super) async fn change(&self, id: String, action: Action, reason: &str) -> Result<Change, Status> {
        check_id(&id)?;
        let job = match self.service.access.authenticator {
            Some(_) => JobName::from(&self.job(&id, Extent::Bare).await?),
            None => JobName::from(&*id),
        };
        let changes = self.detached.change(vec![job], action).await;
        match changes.map_err(status::write_failure)?.pop() {
            Some(change @ (Change::Done | Change::Requested)) => {
                // Programs, which give no reason, may do this often.
                if !reason.is_empty() {
                    let mut acted = Acted::default();
                    acted.count(change);
                    self.log(action, Some(&id), &acted, reason);
                }
                Ok(change)
            }
            Some(Change::WrongState(state)) => Err(status::wrong_state(&id, state)),
            Some(Change::Full(full)) => Err(status::store_full(full)),
            Some(Change::NotFound) | None => Err(unknown(&id)),
        }
    }

    pub(super) async fn cancel_jobs(&self, request: CancelJobsRequest) -> Result<CancelJobsResponse, Status> {
        let CancelJobsRequest { filter, dry_run, page_token, reason, expected } = request;
        let acted = self.act(Action::Cancel, Act { filter, dry_run, page_token, reason, expected }).await?;
        let Acted { done: cancelled, requested: asked_to_stop, next_page_token, .. } = acted;
        Ok(CancelJobsResponse { cancelled, asked_to_stop, next_page_token })
    }

    pub(super) async fn retry_jobs(&self, request: RetryJobsRequest) -> Result<RetryJobsResponse, Status> {
        let RetryJobsRequest { filter, dry_run, page_token, reason, expected } = request;
        let acted = self.act(Action::Retry, Act { filter, dry_run, page_token, reason, expected }).await?;
        let Acted { done: retried, refused, next_page_token, .. } = acted;
        Ok(RetryJobsResponse { retried, refused, next_page_token })
    }

    pub(super) async fn purge_jobs(&self, request: PurgeJobsRequest) -> Result<PurgeJobsResponse, Status> {
        let PurgeJobsRequest { filter, dry_run, page_token, reason, expected } = request;
        let acted = self.act(Action::Delete, Act { filter, dry_run, page_token, reason, expected }).await?;
        Ok(PurgeJobsResponse { removed: acted.done, next_page_token: acted.next_page_token })
    }

    /// Changes a page of the jobs that match a filter.
    async fn act(&self, action: Action, act: Act) -> Result<Acted, Status> {
        let Act { filter, dry_run, page_token, reason, expected } = act;
        let filter = filter.unwrap_or_default();
        if filter == DetachedJobFilter::default() {
            return Err(invalid_field("filter", "it matches all jobs; set a field of it, or `all`"));
        }
        let mut filter = read_filter(self, filter).await?;
        let is_asked = |state: &JobState| filter.states.is_empty() || filter.states.contains(state);
        filter.states = JobState::ALL.into_iter().filter(|state| allows(action, *state) && is_asked(state)).collect();
        if filter.states.is_empty() {
            return Ok(Acted::default());
        }
        if expected > 0 && page_token.is_empty() {
            self.check_expected(&filter, expected).await?;
        }
        // Jobs with one ordering key run again in the order in which they were accepted, and a cancelled job gives its
        // key to none that is cancelled next.
        let order = if action == Action::Retry { Order::Oldest } else { Order::Newest };
        let (jobs, next_page_token) = self.page(filter, order, &page_token, BATCH).await?;
        let mut acted = Acted { next_page_token, ..Acted::default() };
        if dry_run {
            let is_running = |job: &JobRecord| job.state == JobState::Running;
            jobs.iter().for_each(|job| acted.count(if is_running(job) { Change::Requested } else { Change::Done }));
            return Ok(acted);
        }
        let changed = self.change_all(action, &jobs, &mut acted).await;
        if !jobs.is_empty() {
            self.log(action, None, &acted, &reason);
        }
        changed.map(|()| acted)
    }

    /// Refuses an act on over a tenth more jobs than its caller expects.
    async fn check_expected(&self, filter: &Filter, expected: u64) -> Result<(), Status> {
        let found = self.group(filter.clone()).await?.jobs;
        if found.saturating_sub(expected) <= expected / 10 {
            return Ok(());
        }
        let message = format!("{found} jobs match, and {expected} were expected");
        Err(failed_precondition(Reason::MoreJobs, message))
    }

    async fn change_all(&self, action: Action, jobs: &[JobRecord], acted: &mut Acted) -> Result<(), Status> {
        let mut rest = jobs;
        while !rest.is_empty() {
            let (step, others) = rest.split_at(step(rest));
            // The quotas of tenants count as for a single job.
            let is_admitted = |job: &&JobRecord| {
                action != Action::Retry || self.service.access.admit_again(&self.context, &job.request.job).is_ok()
            };
            let names: Vec<_> = step.iter().filter(is_admitted).map(JobName::ended).collect();
            acted.refused += (step.len() - names.len()) as u64;
            let changes = self.detached.change(names, action).await.map_err(status::write_failure)?;
            changes.into_iter().for_each(|change| acted.count(change));
            rest = others;
        }
        Ok(())
    }

    fn log(&self, action: Action, job: Option<&str>, acted: &Acted, reason: &str) {
        let _entered = operator_span(self.context.caller.as_deref(), self.peer.as_deref(), reason).entered();
        let Acted { done: jobs, requested, refused, .. } = *acted;
        match action {
            Action::Cancel => info!(job, jobs, asked_to_stop = requested, "an operator cancelled detached jobs"),
            Action::Retry => info!(job, jobs, refused, "an operator ran detached jobs again"),
            Action::Delete => info!(job, jobs, "an operator removed detached jobs"),
            // No call gives a reason for it.
            Action::CloseGroup => {}
        }
    }
}

/// Whether an act by filter applies to jobs in a state.
fn allows(action: Action, state: JobState) -> bool {
    match action {
        Action::Cancel => !state.is_ended(),
        Action::Retry => state > JobState::Succeeded,
        Action::Delete => state.is_ended(),
        Action::CloseGroup => false,
    }
}

/// How many of the jobs the next write changes.
fn step(jobs: &[JobRecord]) -> usize {
    let mut bytes = 0;
    let fits = |job: &&JobRecord| {
        let fits = bytes < STEP_BYTES;
        bytes += job.payload_bytes + job.output_bytes;
        fits
    };
    jobs.iter().take(STEP).take_while(fits).count()
}
