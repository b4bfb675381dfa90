//! Builds the status of every failed call. The message is constant for each reason, so that logs can be grouped by it;
//! figures are in the metadata of `google.rpc.ErrorInfo`. Failures that concern the operator are logged here. The retry
//! time (pushback) comes from `src/scheduler/admission.rs`.

mod job;

use std::{borrow::Cow, collections::HashMap, time::Duration};

use tonic::{Code, Status, metadata::MetadataValue};
use tonic_types::{ErrorDetails, FieldViolation as WireViolation, StatusExt};

pub(super) use self::job::{
    group_not_open, job_exists, not_told, read_failure, status, store_full, store_unavailable, write_failure,
    wrong_state,
};
use super::{
    context::REQUEST_ID,
    status_message::{shorten, shorten_encoded},
};
use crate::{
    auth::Denial,
    incidents::{self, Incident},
    model::{FieldViolation, MAX_RETRY_AFTER, Origin, Reason, Rejection, RejectionReason, RequestId},
};

/// Domain of every `google.rpc.ErrorInfo` of this service.
pub(super) const DOMAIN: &str = "waterwheel.dev";
const PUSHBACK: &str = "grpc-retry-pushback-ms";
/// Maximum bytes, as HTTP/2 sends them, of a percent-encoded message and its base64 details, which repeat the message.
/// With the other headers and trailers they stay below 4 KiB, the buffer of a stock nginx, which otherwise answers 502.
/// The C core of gRPC answers more than 8 KiB with RESOURCE_EXHAUSTED. Clients may retry both.
const MAX_WIRE_BYTES: usize = 3_300;
/// Messages up to this length fit together with the longest details.
const SHORT_MESSAGE: usize = 200;
/// Longest description of a violation, in bytes.
const MAX_DESCRIPTION: usize = 160;
/// Retry time while other messages are being uploaded.
const UPLOAD_RETRY: Duration = Duration::from_secs(1);
/// Longest job id that a status repeats, in bytes.
const MAX_JOB_ID: usize = 64;
/// Maximum number of violations in a status.
const MAX_VIOLATIONS: usize = 8;

/// When a client should retry.
enum Pushback {
    /// Not specified: the client's own policy decides.
    Unsaid,
    /// Never with this job.
    Never,
    After(Duration),
}

impl Pushback {
    /// Limited to [`MAX_RETRY_AFTER`], and rounded up to a millisecond, the unit of the trailer: a retry that comes too
    /// early is refused again.
    fn after(delay: Duration) -> Self {
        let millis = u64::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Self::After(Duration::from_millis(millis).min(MAX_RETRY_AFTER))
    }
}

/// The parts of a failed call's status.
struct FailedCall {
    code: Code,
    reason: Reason,
    /// The same for all calls that fail for this reason.
    message: Cow<'static, str>,
    /// What the caller can do; empty if nothing is to be said.
    help: &'static str,
    pushback: Pushback,
    execution: &'static str,
    /// Figures of this call, by name.
    facts: Vec<(&'static str, String)>,
    violations: Vec<WireViolation>,
}

impl FailedCall {
    /// A failure without a known job, with the message of its reason.
    fn of(reason: Reason) -> Self {
        Self {
            code: Code::from_i32(reason.code() as i32),
            reason,
            message: reason.words().into(),
            help: reason.help(),
            pushback: Pushback::Unsaid,
            execution: "NOT_STARTED",
            facts: Vec::new(),
            violations: Vec::new(),
        }
    }

    /// Replaces the message.
    fn saying(self, message: impl Into<Cow<'static, str>>) -> Self {
        Self { message: message.into(), ..self }
    }

    /// Marks the failure as permanent.
    fn never(self) -> Self {
        Self { pushback: Pushback::Never, ..self }
    }

    fn fact(mut self, name: &'static str, fact: impl Into<String>) -> Self {
        self.facts.push((name, fact.into()));
        self
    }

    fn violation(mut self, field: &str, description: &str) -> Self {
        self.violations.push(WireViolation::new(field, shorten(description, MAX_DESCRIPTION)));
        self
    }

    /// The fact of this name; empty if there is none.
    fn fact_of(&self, name: &str) -> &str {
        self.facts.iter().find(|(known, _)| *known == name).map_or("", |(_, fact)| fact)
    }

    fn status(self) -> Status {
        self.status_of(None, None)
    }

    fn status_of(self, request_id: Option<&RequestId>, peer: Option<&Origin>) -> Status {
        self.log(request_id, peer);
        let Self { code, reason, message, help, pushback, execution, facts, violations } = self;
        let mut metadata: HashMap<_, _> = facts.into_iter().map(|(name, fact)| (name.to_owned(), fact)).collect();
        metadata.insert("execution".to_owned(), execution.to_owned());
        let mut details = ErrorDetails::with_error_info(reason.name(), DOMAIN, metadata);
        if !help.is_empty() {
            details.add_help_link(help, "");
        }
        if !violations.is_empty() {
            details.set_bad_request(violations);
        }
        if let Pushback::After(delay) = pushback {
            details.set_retry_info(Some(delay));
        }
        let mut status = fitting(code, &message, details);
        push_back(&mut status, &pushback);
        if let Some(request_id) = request_id {
            add_request_id(&mut status, request_id);
        }
        status
    }

    /// The title of its log line; `None` for failures that do not concern the operator. Callers can correct those, or a
    /// handler reported them. A panic has its own log line.
    fn log_title(&self) -> Option<&'static str> {
        match (self.code, self.execution) {
            _ if matches!(self.reason, Reason::HandlerFailed | Reason::HandlerPanicked | Reason::MessageBroken) => None,
            (Code::Unauthenticated | Code::PermissionDenied, _) => Some("calls were denied"),
            (Code::DeadlineExceeded, _) => Some("jobs reached their deadline"),
            (Code::ResourceExhausted | Code::Unavailable, "NOT_STARTED") => Some("jobs did not start"),
            (Code::ResourceExhausted | Code::Unavailable | Code::Aborted, _) => Some("jobs were interrupted"),
            (Code::Internal, _) => Some("workers crashed"),
            _ => None,
        }
    }

    fn log(&self, request_id: Option<&RequestId>, peer: Option<&Origin>) {
        let Some(what) = self.log_title() else { return };
        incidents::log(self.fact_of("pool"), self.reason.name(), || Incident {
            what,
            kind: self.fact_of("kind").to_owned(),
            job: self.fact_of("job").to_owned(),
            request_id: request_id.map(ToString::to_string).unwrap_or_default(),
            tenant: self.fact_of("tenant").to_owned(),
            principal: self.fact_of("principal").to_owned(),
            peer: peer.map(ToString::to_string).unwrap_or_default(),
            cause: self.message.clone().into_owned(),
            ..Incident::default()
        });
    }
}

/// A status whose message is shortened so that it fits in the headers together with `details`.
fn fitting(code: Code, message: &str, details: ErrorDetails) -> Status {
    let space = if message.len() <= SHORT_MESSAGE {
        MAX_WIRE_BYTES
    } else {
        let bare = Status::with_error_details(code, "", details.clone());
        MAX_WIRE_BYTES.saturating_sub(bare.details().len().div_ceil(3) * 4)
    };
    Status::with_error_details(code, shorten_encoded(message, space), details)
}

/// The status of a call whose job cannot be parsed.
pub(super) fn unreadable(violations: Vec<FieldViolation>, request_id: &RequestId) -> Status {
    refused(RejectionReason::Invalid { violations }, request_id)
}

/// The status of a call that lasted until the server accepts no more jobs.
pub(super) fn draining(request_id: &RequestId) -> Status {
    refused(RejectionReason::Draining, request_id)
}

/// The status of a call that is refused without a known job.
fn refused(reason: RejectionReason, request_id: &RequestId) -> Status {
    let rejection = Rejection { reason, pool: None, kind: "".into(), retry_after: None };
    status(&rejection.into(), request_id)
}

/// The status of a call that fails for this reason, with the reason's message.
pub(super) fn of(reason: Reason) -> Status {
    FailedCall::of(reason).status()
}

/// The status of a call that fails for this reason, with its own message.
pub(super) fn saying(reason: Reason, message: impl Into<Cow<'static, str>>) -> Status {
    FailedCall::of(reason).saying(message).status()
}

/// The status of a call for an unknown job.
pub(super) fn unknown_job(job: &str, message: &'static str) -> Status {
    FailedCall::of(Reason::NotFound).saying(message).fact("job", shorten(job, MAX_JOB_ID)).status()
}

/// The status of a call with an invalid field or header.
pub(super) fn invalid_field(field: &str, description: &str) -> Status {
    let call = FailedCall::of(Reason::InvalidField).saying(format!("{field}: {description}"));
    call.violation(field, description).status()
}

/// The status of an operator's call that the state of the pool or the process does not allow.
pub(super) fn failed_precondition(reason: Reason, message: impl Into<Cow<'static, str>>) -> Status {
    FailedCall { code: Code::FailedPrecondition, ..FailedCall::of(reason).saying(message) }.status()
}

/// The status of a message that the codec refused. The codec gives no details. It answers OUT_OF_RANGE to a message
/// over its limit, or RESOURCE_EXHAUSTED if the message exceeds the limit when decompressed.
pub(super) fn refused_by_codec(refusal: Status) -> Status {
    if !refusal.details().is_empty() {
        return refusal;
    }
    match refusal.code() {
        Code::OutOfRange | Code::ResourceExhausted => FailedCall::of(Reason::PayloadTooLarge).never().status(),
        Code::InvalidArgument => invalid_field("job.labels", refusal.message()),
        Code::Internal => {
            let what = shorten(refusal.message(), MAX_DESCRIPTION);
            FailedCall::of(Reason::MessageBroken).never().fact("fault", what).status()
        }
        Code::Unimplemented => {
            let mut status = FailedCall::of(Reason::CompressionUnknown).status();
            *status.metadata_mut() = refusal.metadata().clone();
            status
        }
        _ => refusal,
    }
}

/// The status of a call with too large headers.
pub(super) fn headers_too_large(limit: usize) -> Status {
    FailedCall::of(Reason::HeadersTooLarge).never().fact("limit_bytes", limit.to_string()).status()
}

/// The status of a call whose incomplete message was evicted in favour of others.
pub(super) fn uploads_full() -> Status {
    FailedCall { pushback: Pushback::After(UPLOAD_RETRY), ..FailedCall::of(Reason::UploadsFull) }.status()
}

/// The status of a message whose prefix announces more than the limit.
pub(super) fn message_too_large(length: usize, largest: usize) -> Status {
    let call = FailedCall::of(Reason::PayloadTooLarge).never();
    call.fact("message_bytes", length.to_string()).fact("limit_bytes", largest.to_string()).status()
}

/// The status of an answer that would exceed the bounds of unread answers.
pub(super) fn answers_full() -> Status {
    FailedCall { execution: "STARTED", ..FailedCall::of(Reason::AnswersFull).never() }.status()
}

/// The status of a call that reached its deadline without a job to report. Its message never arrived, or it had many
/// jobs, which have answers of their own.
pub(super) fn too_late(request_id: &RequestId) -> Status {
    FailedCall { execution: "UNKNOWN", ..FailedCall::of(Reason::CallTimeout).never() }.status_of(Some(request_id), None)
}

/// The status of a call in which the server panicked.
pub(super) fn panicked() -> Status {
    let call = FailedCall::of(Reason::HandlerPanicked).saying("the server panicked in this call");
    FailedCall { execution: "UNKNOWN", ..call.never() }.status()
}

/// The status of a call that failed by an error of the server.
pub(super) fn internal(message: &'static str) -> Status {
    let call = FailedCall::of(Reason::ServerFailed).saying(message);
    FailedCall { execution: "UNKNOWN", ..call }.status()
}

/// The status of a denied call or job.
pub(super) fn denied(denial: &Denial, request_id: &RequestId, peer: Option<&Origin>) -> Status {
    let facts = denial.facts().into_iter().map(|(name, fact)| (name, shorten(fact, MAX_DESCRIPTION)));
    let call = FailedCall::of(denial.reason()).saying(denial.to_string());
    FailedCall { facts: facts.collect(), ..call }.status_of(Some(request_id), peer)
}

/// Adds the request id to a status.
pub(super) fn add_request_id(status: &mut Status, request_id: &RequestId) {
    if let Ok(value) = MetadataValue::try_from(request_id.as_str()) {
        status.metadata_mut().insert(REQUEST_ID, value);
    }
}

fn push_back(status: &mut Status, pushback: &Pushback) {
    let millis = match pushback {
        Pushback::Unsaid => return,
        Pushback::Never => MetadataValue::from_static("-1"),
        Pushback::After(delay) => MetadataValue::from(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
    };
    status.metadata_mut().insert(PUSHBACK, millis);
}
