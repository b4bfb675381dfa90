//! The answer that a caller got for a job.

use prost::Message;
use tonic::{Code, Status};
use tonic_types::StatusExt;
use waterwheel::{pool::LostWhile, proto::JobFailure};

/// The end of a job from the view of its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Completed {
        job_id: String,
    },
    Failed {
        reason: String,
        execution: String,
        job_id: Option<String>,
    },
    /// The caller gave up.
    Left,
    /// The client timed out before the server answered.
    Timer,
    /// A status that the client created: the connection broke, or could not be made.
    Broken {
        code: Code,
        message: String,
    },
    /// The server ended the call at its deadline, before it had read a job.
    Late,
    /// The `SubmitMany` call ended without a result for this job.
    Unsaid {
        reason: String,
    },
}

impl Answer {
    pub(crate) fn of(status: &Status) -> Self {
        let Some(info) = status.get_details_error_info() else {
            return match status.code() {
                Code::Cancelled | Code::DeadlineExceeded if status.message().contains("Timeout expired") => Self::Timer,
                code => Self::Broken { code, message: format!("{status:?}") },
            };
        };
        let fact = |name: &str| info.metadata.get(name).cloned();
        if (info.reason.as_str(), fact("execution").as_deref()) == ("CALL_TIMEOUT", Some("UNKNOWN")) {
            return Self::Late;
        }
        // A job that arrived after its deadline was refused, and the pool counts it as such.
        let is_refused = info.reason == "EXPIRED_IN_QUEUE" && fact("job").is_none();
        let reason = if is_refused { "DEADLINE_UNREACHABLE".to_owned() } else { info.reason.clone() };
        Self::Failed { execution: fact("execution").unwrap_or_default(), job_id: fact("job"), reason }
    }

    /// The answer for a failure inside a response message.
    pub(crate) fn of_failure(failure: JobFailure) -> Self {
        let JobFailure { code, message, details } = failure;
        // `JobFailure` and `google.rpc.Status` have the same encoding.
        let bytes = JobFailure { code, message: message.clone(), details }.encode_to_vec();
        Self::of(&Status::with_details(Code::from_i32(code), message, bytes.into()))
    }

    /// The answer for the remaining jobs of a `SubmitMany` call that ended with this status.
    pub(crate) fn of_the_rest(self) -> Self {
        match self {
            Self::Late => Self::Unsaid { reason: "RUN_TIMEOUT".into() },
            Self::Failed { reason, .. } => Self::Unsaid { reason },
            other => other,
        }
    }

    /// Name of the outcome or refusal, by which answers and counts are compared.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Completed { .. } => "COMPLETED",
            Self::Failed { reason, execution, job_id } => match (reason.as_str(), job_id) {
                // The job had been accepted, because a refused job has no id.
                ("DRAINING", Some(_)) => "DRAINED",
                // The deadline passed while the caller waited for queue capacity.
                ("RUN_TIMEOUT", None) if execution == "NOT_STARTED" => "QUEUE_FULL",
                (reason, _) => reason,
            },
            Self::Left => "left",
            Self::Timer => "timer",
            Self::Broken { .. } => "broken",
            Self::Late => "late",
            Self::Unsaid { .. } => "unsaid",
        }
    }

    /// Whether the caller got no answer about the outcome.
    pub(crate) fn is_unseen(&self) -> bool {
        matches!(self, Self::Left | Self::Timer | Self::Broken { .. } | Self::Late | Self::Unsaid { .. })
    }

    /// Whether the client could not connect.
    pub(crate) fn is_unconnected(&self) -> bool {
        matches!(self, Self::Broken { message, .. } if message.contains("ConnectError"))
    }

    /// The stage of the job when a drain ended it, if one did.
    pub(crate) fn lost_while(&self) -> Option<LostWhile> {
        match self.name() {
            "DRAINED" => Some(LostWhile::Queued),
            "DRAIN_KILLED" => Some(LostWhile::Running),
            _ => None,
        }
    }

    pub(crate) fn job_id(&self) -> Option<&str> {
        match self {
            Self::Completed { job_id } => Some(job_id),
            Self::Failed { job_id, .. } => job_id.as_deref(),
            _ => None,
        }
    }
}
