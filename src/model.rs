//! Plain data that all layers share: jobs, deadlines, outcomes, refusals. It is independent of queues, workers and
//! gRPC.

mod attempt;
mod call;
mod deadline;
mod durations;
mod job;
mod limit;
mod outcome;
mod reason;
mod rejection;
mod request_id;
pub(crate) mod text;
mod userinfo;

pub use attempt::{Attempt, AttemptToken, Replay};
pub use call::{Call, CertificateRequest, JOB_TARGET, Origin, Peer, TRACE_TARGET, TraceContext};
pub use deadline::{Deadline, DeadlinePolicy};
pub use durations::Durations;
pub use job::{
    Criticality, FieldViolation, InvalidJobId, Job, JobId, JobStage, Labels, MAX_KIND, MAX_LABELS, MAX_TENANT,
    WhenFull, check_label_key, check_label_value, check_text,
};
pub use limit::{KindLimits, Limit, Limiter, Rate};
pub use outcome::{
    Completed, Execution, Failure, FailureCode, HandlerError, JobError, Outcome, Output, ProgramEnd, Rung, Waterfall,
};
pub use reason::{CODE_NAMES, Code, Reason};
pub use rejection::{MAX_RETRY_AFTER, Rejection, RejectionReason, TenantPart};
pub use request_id::{InvalidRequestId, RequestId};
pub(crate) use userinfo::{WITHHELD, userinfo, without_userinfo};
