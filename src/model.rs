//! Plain data that every layer shares: jobs, deadlines, outcomes, refusals. Nothing here depends on queues, workers or
//! gRPC.

mod attempt;
mod call;
mod deadline;
mod durations;
mod job;
mod limit;
mod outcome;
mod peer;
mod reason;
mod rejection;
mod request_id;
mod userinfo;

pub use attempt::{Attempt, AttemptToken, Replay};
pub use call::{Call, JOB_TARGET, TRACE_TARGET, TraceContext};
pub use deadline::{Deadline, DeadlinePolicy};
pub use durations::Durations;
pub use job::{
    Criticality, FieldViolation, InvalidJobId, Job, JobId, JobStage, Labels, MAX_LABELS, MAX_TENANT, WhenFull,
};
pub use limit::{KindLimits, Limit, Limiter, Rate};
pub use outcome::{
    Completed, Execution, Failure, FailureCode, HandlerError, JobError, Outcome, Output, ProgramEnd, Rung, Waterfall,
};
pub use peer::{Origin, Peer};
pub use reason::{CODE_NAMES, Code, Reason};
pub use rejection::{MAX_RETRY_AFTER, Rejection, RejectionReason, TenantPart};
pub use request_id::{InvalidRequestId, RequestId};
pub(crate) use userinfo::{WITHHELD, userinfo, without_userinfo};
