//! Groups of jobs, each with one job that waits for the others.

use tonic::Status;

use super::{JobsCall, create::read, unknown};
use crate::{
    model::{FieldViolation, RequestId},
    proto::{
        CloseGroupRequest, CloseGroupResponse, CreateGroupRequest, CreateGroupResponse, CreateJobRequest,
        CreateJobResponse, GetGroupRequest, GetGroupResponse, GroupCondition,
    },
    rpc::status,
    store::{Action, Extent, GROUP_PREFIX, JobRecord, NewJob, Start},
};

/// Label by which the handlers of a group know it.
pub(super) const GROUP_LABEL: &str = "group";

impl JobsCall {
    /// Stores the job that waits for a new group.
    pub(super) async fn create_group(&self, request: CreateGroupRequest) -> Result<CreateGroupResponse, Status> {
        let CreateJobResponse { job_id, already_existed } = self.store_job(self.waiting_job(request)).await?;
        Ok(CreateGroupResponse { job_id, already_existed })
    }

    fn waiting_job(&self, request: CreateGroupRequest) -> Result<NewJob, Vec<FieldViolation>> {
        let CreateGroupRequest { job, group_id, options, when } = request;
        let fault = |field, detail| Err(vec![FieldViolation::new(field, detail)]);
        let job_id = format!("{GROUP_PREFIX}{group_id}");
        if group_id.is_empty() || job_id.parse::<RequestId>().is_err() {
            return fault("group_id", "send 1 to 122 visible ASCII characters");
        }
        if options.as_ref().is_some_and(|options| options.start.is_some()) {
            return fault("options.start", "the job starts when its group is complete; leave it out");
        }
        let Ok(when) = GroupCondition::try_from(when) else {
            return fault("when", "not a condition; send a value of the enum");
        };
        let mut new = read(self, CreateJobRequest { job, job_id, options })?;
        new.job.labels.insert(GROUP_LABEL.to_owned(), group_id);
        Ok(NewJob { start: Start::Group { must_succeed: when != GroupCondition::AllEnded }, ..new })
    }

    pub(super) async fn close_group(&self, request: CloseGroupRequest) -> Result<CloseGroupResponse, Status> {
        let job = format!("{GROUP_PREFIX}{}", request.group_id);
        self.change(job, Action::CloseGroup, "").await.map(|_| CloseGroupResponse {})
    }

    pub(super) async fn get_group(&self, request: GetGroupRequest) -> Result<GetGroupResponse, Status> {
        let job = self.group_job(&request.group_id).await?;
        let members = self.store().members(job.row).await.map_err(status::read_failure)?;
        let members = members.ok_or_else(|| unknown(&job.request.id))?;
        let when = if members.must_succeed { GroupCondition::AllSucceeded } else { GroupCondition::AllEnded };
        let [succeeded, failed, cancelled, expired] = members.ended;
        Ok(GetGroupResponse {
            when: when.into(),
            closed: members.is_closed,
            active: members.active,
            succeeded,
            failed,
            cancelled,
            expired,
            waits_for: if job.waits_for_group() { members.waits_for() } else { String::new() },
            job: Some(self.shown(job)),
        })
    }

    /// The job that waits for a group, if the caller may see it.
    pub(super) async fn group_job(&self, group: &str) -> Result<JobRecord, Status> {
        self.job(&format!("{GROUP_PREFIX}{group}"), Extent::Bare).await
    }
}
