//! What a caller was told of a job.

use prost::Message;
use tonic::{Code, Status};
use tonic_types::StatusExt;
use waterwheel::{pool::LostWhile, proto::JobFailure};

/// How a job ended for its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    Completed {
        job_id: String,
    },
    Failed {
        reason: String,
        execution: String,
        job_id: Option<String>,
    },
    /// The caller left.
    Left,
    /// The timer of the client was faster than the server.
    Timer,
    /// A status that the client made: the connection broke, or could not be made.
    Broken {
        code: Code,
        message: String,
    },
    /// The server ended the call at its deadline, before it knew of a job.
    Late,
    /// The call of many jobs ended before it spoke of this one.
    Unsaid {
        reason: String,
    },
}

impl Told {
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
        // A job whose time was up when it arrived was not taken: the pool counts it among those that it refused.
        let is_refused = info.reason == "EXPIRED_IN_QUEUE" && fact("job").is_none();
        let reason = if is_refused { "DEADLINE_UNREACHABLE".to_owned() } else { info.reason.clone() };
        Self::Failed { execution: fact("execution").unwrap_or_default(), job_id: fact("job"), reason }
    }

    /// The status inside a response.
    pub(crate) fn of_failure(failure: JobFailure) -> Self {
        let JobFailure { code, message, details } = failure;
        // `JobFailure` is the same on the wire as `google.rpc.Status`.
        let bytes = JobFailure { code, message: message.clone(), details }.encode_to_vec();
        Self::of(&Status::with_details(Code::from_i32(code), message, bytes.into()))
    }

    /// Of the jobs that a call of many has not spoken of, when it ends so.
    pub(crate) fn of_the_rest(self) -> Self {
        match self {
            Self::Late => Self::Unsaid { reason: "RUN_TIMEOUT".into() },
            Self::Failed { reason, .. } => Self::Unsaid { reason },
            other => other,
        }
    }

    /// What the books call it.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Completed { .. } => "COMPLETED",
            Self::Failed { reason, execution, job_id } => match (reason.as_str(), job_id) {
                // It had been accepted: a job that was refused has no id.
                ("DRAINING", Some(_)) => "DRAINED",
                // The deadline came while its caller waited for room.
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

    /// Whether the caller does not know what the server counted.
    pub(crate) fn is_unseen(&self) -> bool {
        matches!(self, Self::Left | Self::Timer | Self::Broken { .. } | Self::Late | Self::Unsaid { .. })
    }

    /// Whether no connection could be made, as the client says.
    pub(crate) fn is_unconnected(&self) -> bool {
        matches!(self, Self::Broken { message, .. } if message.contains("ConnectError"))
    }

    /// How far the job was when a drain ended it, where one did.
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
