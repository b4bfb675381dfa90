//! Plain data that all layers share: jobs, deadlines, outcomes, refusals. It is independent of queues, workers and
//! gRPC.

mod attempt;
mod call;
mod deadline;
mod durations;
mod handler_error;
mod ids;
mod job;
mod limit;
mod outcome;
mod reason;
mod recorded_job;
mod rejection;
pub(crate) mod text;
#[cfg(feature = "server")]
mod userinfo;

pub use call::{Call, TraceContext};
pub use deadline::{Deadline, DeadlinePolicy};
pub use handler_error::{FailureCode, HandlerError};
pub use ids::{InvalidRequestId, JobId, RequestId};
pub use job::{Criticality, FieldViolation, Job, JobStage, Labels, WhenFull};
pub use limit::{KindLimits, Limit, Limiter, Rate, Share};
pub use outcome::{Completed, Execution, Failure, JobError, JobResult, Outcome, Output, ProgramEnd, Rung, Waterfall};
pub use reason::{Code, Reason};
pub(crate) use recorded_job::{RecordedEnd, RecordedJob, Traits};
pub use rejection::{Rejection, RejectionReason, TenantPart};
#[cfg(feature = "server")]
pub(crate) use userinfo::{WITHHELD, userinfo, without_userinfo};

// For the service, and its tests.
#[doc(hidden)]
pub use {
    attempt::{AttemptToken, ProgressReport, Replay, RunningAttempt},
    call::{CertificateRequest, JOB_TARGET, Origin, Peer, TRACE_TARGET},
    durations::Durations,
    handler_error::NextAttempt,
    ids::{InvalidJobId, KindId},
    job::{MAX_KIND, MAX_LABELS, MAX_TENANT, check_label_key, check_label_value, check_text},
    reason::CODE_NAMES,
    rejection::MAX_RETRY_AFTER,
};
