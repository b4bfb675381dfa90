use std::{collections::HashMap, time::Duration};

use tonic::{Code, Status, metadata::MetadataValue};
use tonic_types::{ErrorDetails, FieldViolation as WireViolation, StatusExt};

use super::{
    context::REQUEST_ID,
    message::{shorten, shorten_encoded},
};
use crate::auth::Denial;
use crate::model::{
    Execution, Failure, FailureCause, FailureCode, FieldViolation, HandlerError, JobError, LONGEST_HINT, Rejection,
    RejectionReason, RequestId, TenantPart,
};

/// Domain of every `google.rpc.ErrorInfo` of this service.
pub(super) const DOMAIN: &str = "waterwheel.dev";
const PUSHBACK: &str = "grpc-retry-pushback-ms";
/// Most bytes that a message, percent-encoded, and its details, in base64, take in the headers: grpc's C core answers
/// longer headers with RESOURCE_EXHAUSTED, which invites retries. The details repeat the message.
const ON_THE_WIRE: usize = 4_000;
/// Messages up to so many bytes fit beside the longest details.
const SHORT: usize = 200;
/// Longest description of a violation, in bytes.
const DESCRIPTION: usize = 160;
/// Other messages are whole by then.
const UPLOAD_AGAIN: Duration = Duration::from_secs(1);
/// Longest id of a job that is repeated, in bytes.
const JOB: usize = 64;
/// Most violations that are listed.
const VIOLATIONS: usize = 8;

/// When a client may come back.
enum Pushback {
    /// Nothing is said: the client's own policy decides.
    Unsaid,
    /// Not with this job.
    Never,
    After(Duration),
}

impl Pushback {
    /// No hint exceeds [`LONGEST_HINT`], whatever the reason.
    fn after(delay: Duration) -> Self {
        Self::After(delay.min(LONGEST_HINT))
    }
}

/// What a failed call carries.
struct Answer {
    code: Code,
    reason: &'static str,
    message: String,
    pushback: Pushback,
    execution: &'static str,
}

/// The one place where the ends of jobs become statuses.
pub(super) fn status(error: &JobError, request_id: &RequestId) -> Status {
    let (answer, mut facts) = match error {
        JobError::Rejected(rejection) => (rejected(rejection), rejection_facts(rejection)),
        JobError::Failed(failure) => (failed(failure), failure_facts(failure)),
    };
    facts.insert("execution".into(), answer.execution.into());
    let mut details = ErrorDetails::new();
    details.set_error_info(answer.reason, DOMAIN, facts);
    if let JobError::Rejected(rejection) = error
        && let RejectionReason::Invalid { violations } = &rejection.reason
    {
        details.set_bad_request(wire_violations(violations));
    }
    if let JobError::Rejected(rejection) = error
        && let RejectionReason::UnknownKind { .. } = rejection.reason
    {
        details.set_bad_request(vec![WireViolation::new("job.kind", shorten(&answer.message, DESCRIPTION))]);
    }
    if let Pushback::After(delay) = answer.pushback {
        details.set_retry_info(Some(delay));
    }
    let mut status = fitting(answer.code, &answer.message, details);
    push_back(&mut status, &answer.pushback);
    name(&mut status, request_id);
    status
}

/// A status whose message is cut so that it fits the headers beside `details`.
fn fitting(code: Code, message: &str, details: ErrorDetails) -> Status {
    let room = if message.len() <= SHORT {
        ON_THE_WIRE
    } else {
        let bare = Status::with_error_details(code, "", details.clone());
        ON_THE_WIRE.saturating_sub(bare.details().len().div_ceil(3) * 4)
    };
    Status::with_error_details(code, shorten_encoded(message, room), details)
}

/// A call whose job cannot be read.
pub(super) fn unreadable(violations: Vec<FieldViolation>, request_id: &RequestId) -> Status {
    let reason = RejectionReason::Invalid { violations };
    let rejection = Rejection { reason, pool: None, kind: "".into(), retry_after: None };
    status(&rejection.into(), request_id)
}

/// A call with a field, or a header, that makes no sense.
pub(super) fn invalid_field(field: &str, description: &str) -> Status {
    let mut details = of_a_call("INVALID_FIELD", "NOT_STARTED");
    details.set_bad_request(vec![WireViolation::new(field, shorten(description, DESCRIPTION))]);
    fitting(Code::InvalidArgument, &format!("{field}: {description}"), details)
}

/// A call that names something that does not exist.
pub(super) fn not_found(what: &str) -> Status {
    fitting(Code::NotFound, what, of_a_call("NOT_FOUND", "NOT_STARTED"))
}

/// A call that names a job which does not exist any more.
pub(super) fn no_job(job: &str) -> Status {
    unknown_job(job, "no pool has it: it has ended, or its id is another one")
}

/// A call that asks for a job that nobody has or remembers.
pub(super) fn forgotten_job(job: &str) -> Status {
    let why = "no pool has or remembers it: it was refused, it is of another process, or it ended longer ago than \
               pool.NAME.ended_jobs reaches";
    unknown_job(job, why)
}

fn unknown_job(job: &str, why: &str) -> Status {
    let mut facts = HashMap::from([("execution".to_owned(), "NOT_STARTED".to_owned())]);
    let job = shorten(job, JOB);
    let message = format!("job {job:?}: {why}");
    facts.insert("job".to_owned(), job);
    fitting(Code::NotFound, &message, ErrorDetails::with_error_info("NOT_FOUND", DOMAIN, facts))
}

/// A call of an operator that the state of its pool, or of the process, rules out.
pub(super) fn failed_precondition(reason: &str, message: &str) -> Status {
    fitting(Code::FailedPrecondition, message, of_a_call(reason, "NOT_STARTED"))
}

/// A call of something that is not served; `reason` says what.
pub(super) fn unimplemented(reason: &str, message: &str) -> Status {
    fitting(Code::Unimplemented, message, of_a_call(reason, "NOT_STARTED"))
}

/// What the codec says of a message that it did not read. It answers one over its limit with OUT_OF_RANGE, or with
/// RESOURCE_EXHAUSTED where it grew over it when it was decompressed, and both without details.
pub(super) fn refused_by_codec(refusal: Status) -> Status {
    match refusal.code() {
        Code::OutOfRange | Code::ResourceExhausted => {}
        // Bytes that are no message are the caller's fault, whatever the codec calls them.
        Code::Internal => return invalid_field("message", refusal.message()),
        _ => return refusal,
    }
    let details = of_a_call("PAYLOAD_TOO_LARGE", "NOT_STARTED");
    let mut status = fitting(Code::ResourceExhausted, refusal.message(), details);
    push_back(&mut status, &Pushback::Never);
    status
}

/// A call with more headers than are taken.
pub(super) fn headers_too_large(limit: usize) -> Status {
    let message = format!("the headers of the call are over {limit} bytes; send less metadata");
    let mut status = fitting(Code::ResourceExhausted, &message, of_a_call("HEADERS_TOO_LARGE", "NOT_STARTED"));
    push_back(&mut status, &Pushback::Never);
    status
}

/// A call that would watch what too many watch already.
pub(super) fn watches_full(message: &str) -> Status {
    fitting(Code::ResourceExhausted, message, of_a_call("WATCHES_FULL", "NOT_STARTED"))
}

/// A call that came by a name, or from a page, of nobody that is known.
pub(super) fn misdirected(message: &str) -> Status {
    fitting(Code::PermissionDenied, message, of_a_call("MISDIRECTED", "NOT_STARTED"))
}

/// A call whose message was not whole when others needed its room.
pub(super) fn uploads_full() -> Status {
    let mut details = of_a_call("UPLOADS_FULL", "NOT_STARTED");
    details.set_retry_info(Some(UPLOAD_AGAIN));
    let message = "unfinished messages hold all the memory that they may, and this one was the oldest";
    let mut status = fitting(Code::ResourceExhausted, message, details);
    push_back(&mut status, &Pushback::After(UPLOAD_AGAIN));
    status
}

/// The end of a call of many jobs at its deadline. Jobs that were answered say for themselves how they ended.
pub(super) fn too_late(request_id: &RequestId) -> Status {
    let details = of_a_call("RUN_TIMEOUT", "UNKNOWN");
    let mut status = fitting(Code::DeadlineExceeded, "the call reached its deadline", details);
    push_back(&mut status, &Pushback::Never);
    name(&mut status, request_id);
    status
}

/// A call in which the server itself panicked.
pub(super) fn panicked() -> Status {
    let details = of_a_call("HANDLER_PANICKED", "UNKNOWN");
    let mut status = fitting(Code::Internal, "the server panicked in this call", details);
    push_back(&mut status, &Pushback::Never);
    status
}

/// The end of a call that outlived the intake of jobs.
pub(super) fn draining(request_id: &RequestId) -> Status {
    let rejection = Rejection { reason: RejectionReason::Draining, pool: None, kind: "".into(), retry_after: None };
    status(&rejection.into(), request_id)
}

/// A call, or a job, that is not let in.
pub(super) fn denied(denial: &Denial, request_id: Option<&RequestId>) -> Status {
    let code = if denial.is_unauthenticated() { Code::Unauthenticated } else { Code::PermissionDenied };
    let facts = denial.facts().into_iter().map(|(name, fact)| (name.to_owned(), shorten(fact, DESCRIPTION)));
    let facts: HashMap<_, _> = facts.chain([("execution".to_owned(), "NOT_STARTED".to_owned())]).collect();
    let details = ErrorDetails::with_error_info(denial.reason(), DOMAIN, facts);
    let mut status = fitting(code, &denial.to_string(), details);
    if let Some(request_id) = request_id {
        name(&mut status, request_id);
    }
    status
}

/// Details of a call of which no job is known.
fn of_a_call(reason: &str, execution: &str) -> ErrorDetails {
    ErrorDetails::with_error_info(reason, DOMAIN, HashMap::from([("execution".to_owned(), execution.to_owned())]))
}

/// Gives a status the id of its request.
pub(super) fn name(status: &mut Status, request_id: &RequestId) {
    if let Ok(value) = MetadataValue::try_from(request_id.as_str()) {
        status.metadata_mut().insert(REQUEST_ID, value);
    }
}

fn rejected(rejection: &Rejection) -> Answer {
    let Rejection { reason, retry_after, .. } = rejection;
    let pushback = || retry_after.map_or(Pushback::Unsaid, Pushback::after);
    let (code, pushback) = match reason {
        RejectionReason::QueueFull
        | RejectionReason::QueueTooLong { .. }
        | RejectionReason::NoRoomInTime
        | RejectionReason::DeadlineUnreachable { .. }
        | RejectionReason::WaitTooLong { .. }
        | RejectionReason::TenantShare { .. }
        | RejectionReason::LimitExceeded { .. }
        | RejectionReason::OverRate { .. } => (Code::ResourceExhausted, pushback()),
        // It ends with another job of the same tenant, whose time nobody knows.
        RejectionReason::OverInFlight { .. } => (Code::ResourceExhausted, Pushback::Never),
        RejectionReason::Draining | RejectionReason::PoolDraining => (Code::Unavailable, Pushback::Unsaid),
        RejectionReason::UnknownKind { .. } | RejectionReason::Invalid { .. } => {
            (Code::InvalidArgument, Pushback::Unsaid)
        }
        RejectionReason::PayloadTooLarge { .. } => (Code::ResourceExhausted, Pushback::Never),
    };
    Answer { code, reason: reason.name(), message: reason.to_string(), pushback, execution: "NOT_STARTED" }
}

fn failed(failure: &Failure) -> Answer {
    let (code, reason, pushback) = match &failure.cause {
        FailureCause::Handler(HandlerError::Refused { code, .. }) => {
            (handler_code(*code), "HANDLER_FAILED", Pushback::Never)
        }
        FailureCause::Handler(HandlerError::Crashed { .. }) => (Code::Internal, "WORKER_CRASHED", Pushback::Never),
        FailureCause::Handler(HandlerError::OutputTooLarge { .. }) => {
            (Code::ResourceExhausted, "OUTPUT_TOO_LARGE", Pushback::Never)
        }
        FailureCause::Handler(HandlerError::Unavailable { .. }) => {
            (Code::Unavailable, "HANDLER_UNAVAILABLE", Pushback::Unsaid)
        }
        FailureCause::HandlerUnavailable { retry_after, .. } => {
            (Code::Unavailable, "HANDLER_UNAVAILABLE", Pushback::after(*retry_after))
        }
        FailureCause::Panicked { .. } => (Code::Internal, "HANDLER_PANICKED", Pushback::Never),
        FailureCause::RunTimeout { .. } => (Code::DeadlineExceeded, "RUN_TIMEOUT", Pushback::Never),
        FailureCause::ExpiredInQueue { .. } => (Code::DeadlineExceeded, "EXPIRED_IN_QUEUE", Pushback::Never),
        FailureCause::Handler(HandlerError::Stopped) | FailureCause::Cancelled => {
            (Code::Cancelled, "CANCELLED", Pushback::Never)
        }
        FailureCause::CancelledByOperator => (Code::Cancelled, "CANCELLED_BY_OPERATOR", Pushback::Never),
        FailureCause::Shed { retry_after } => (Code::ResourceExhausted, "SHED", Pushback::after(*retry_after)),
        FailureCause::Drained => (Code::Unavailable, "DRAINING", Pushback::Unsaid),
        FailureCause::DrainKilled { idempotent: true } => (Code::Unavailable, "DRAIN_KILLED", Pushback::Unsaid),
        FailureCause::DrainKilled { idempotent: false } => (Code::Aborted, "DRAIN_KILLED", Pushback::Never),
    };
    let execution = match failure.execution {
        Execution::NotStarted => "NOT_STARTED",
        Execution::Started => "STARTED",
    };
    Answer { code, reason, message: failure.cause.to_string(), pushback, execution }
}

/// The codes that a handler may answer with.
fn handler_code(code: FailureCode) -> Code {
    match code {
        FailureCode::Unknown => Code::Unknown,
        FailureCode::InvalidArgument => Code::InvalidArgument,
        FailureCode::NotFound => Code::NotFound,
        FailureCode::AlreadyExists => Code::AlreadyExists,
        FailureCode::PermissionDenied => Code::PermissionDenied,
        FailureCode::FailedPrecondition => Code::FailedPrecondition,
        FailureCode::OutOfRange => Code::OutOfRange,
        FailureCode::Unimplemented => Code::Unimplemented,
        FailureCode::Unavailable => Code::Unavailable,
        FailureCode::DataLoss => Code::DataLoss,
    }
}

fn rejection_facts(rejection: &Rejection) -> HashMap<String, String> {
    let mut facts = HashMap::new();
    if !rejection.kind.is_empty() {
        facts.insert("kind".to_owned(), rejection.kind.to_string());
    }
    if let Some(pool) = &rejection.pool {
        facts.insert("pool".into(), pool.to_string());
    }
    if let RejectionReason::DeadlineUnreachable { expected, needed, budget } = &rejection.reason {
        facts.insert("expected_wait_ms".into(), millis(*expected));
        facts.insert("needed_budget_ms".into(), millis(*needed));
        facts.insert("budget_ms".into(), millis(*budget));
    }
    if let RejectionReason::QueueTooLong { expected } = &rejection.reason {
        facts.insert("expected_wait_ms".into(), millis(*expected));
    }
    if let RejectionReason::WaitTooLong { expected, patience } = &rejection.reason {
        facts.insert("expected_wait_ms".into(), millis(*expected));
        facts.insert("queue_timeout_ms".into(), millis(*patience));
    }
    if let RejectionReason::TenantShare { tenant, part } = &rejection.reason {
        let TenantPart { jobs, bytes, most_jobs, most_bytes } = part;
        let pool = rejection.pool.as_deref().unwrap_or_default();
        facts.insert("tenant".into(), tenant.clone());
        facts.insert("key".into(), format!("pool.{pool}.tenant_share"));
        let figures =
            [("queued_jobs", jobs), ("queued_bytes", bytes), ("most_jobs", most_jobs), ("most_bytes", most_bytes)];
        facts.extend(figures.map(|(name, figure)| (name.to_owned(), figure.to_string())));
    }
    if let RejectionReason::LimitExceeded { limit, expected, budget } = &rejection.reason {
        facts.insert("limit".into(), limit.name().into());
        facts.insert("expected_wait_ms".into(), millis(*expected));
        facts.insert("budget_ms".into(), millis(*budget));
    }
    facts
}

fn failure_facts(failure: &Failure) -> HashMap<String, String> {
    let mut facts = HashMap::from([
        ("job".to_owned(), failure.job.to_string()),
        ("kind".to_owned(), failure.kind.to_string()),
        ("pool".to_owned(), failure.pool.to_string()),
        ("queue_ms".to_owned(), millis(failure.queue)),
        ("run_ms".to_owned(), millis(failure.run)),
    ]);
    if let Some(rung) = failure.rung {
        facts.insert("rung".into(), rung.to_string());
    }
    facts
}

fn wire_violations(violations: &[FieldViolation]) -> Vec<WireViolation> {
    let wire = |v: &FieldViolation| WireViolation::new(v.field, shorten(&v.description, DESCRIPTION));
    violations.iter().take(VIOLATIONS).map(wire).collect()
}

fn push_back(status: &mut Status, pushback: &Pushback) {
    let millis = match pushback {
        Pushback::Unsaid => return,
        Pushback::Never => MetadataValue::from_static("-1"),
        Pushback::After(delay) => MetadataValue::from(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
    };
    status.metadata_mut().insert(PUSHBACK, millis);
}

fn millis(duration: Duration) -> String {
    format!("{:.3}", duration.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests;
