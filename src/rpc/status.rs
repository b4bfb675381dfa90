//! The one way to make the status of a call that fails: a sentence that is the same for each reason, so that logs can be
//! grouped by it, and the figures beside it, in the metadata of `google.rpc.ErrorInfo`. What is the server's matter goes
//! to the log from here, too.

mod job;

use std::{borrow::Cow, collections::HashMap, time::Duration};

use tonic::{Code, Status, metadata::MetadataValue};
use tonic_types::{ErrorDetails, FieldViolation as WireViolation, StatusExt};

pub(super) use self::job::status;
use super::{
    context::REQUEST_ID,
    message::{shorten, shorten_encoded},
};
use crate::{
    auth::Denial,
    incidents::{self, Incident},
    model::{FieldViolation, MAX_RETRY_AFTER, Origin, Reason, Rejection, RejectionReason, RequestId},
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
    /// No hint exceeds [`MAX_RETRY_AFTER`], whatever the reason.
    fn after(delay: Duration) -> Self {
        Self::After(delay.min(MAX_RETRY_AFTER))
    }
}

/// What a failed call carries.
struct Answer {
    code: Code,
    reason: Reason,
    /// The same for all calls that fail like this one.
    message: Cow<'static, str>,
    pushback: Pushback,
    execution: &'static str,
    /// What is particular to this call, by name.
    facts: Vec<(&'static str, String)>,
    violations: Vec<WireViolation>,
}

impl Answer {
    /// A call of which no job is known, in the words of its reason.
    fn of(reason: Reason) -> Self {
        Self {
            code: Code::from_i32(reason.code() as i32),
            reason,
            message: reason.words().into(),
            pushback: Pushback::Unsaid,
            execution: "NOT_STARTED",
            facts: Vec::new(),
            violations: Vec::new(),
        }
    }

    /// The same in better words.
    fn saying(self, message: impl Into<Cow<'static, str>>) -> Self {
        Self { message: message.into(), ..self }
    }

    /// The same, for which no new try is of use.
    fn never(self) -> Self {
        Self { pushback: Pushback::Never, ..self }
    }

    fn fact(mut self, name: &'static str, fact: impl Into<String>) -> Self {
        self.facts.push((name, fact.into()));
        self
    }

    fn violation(mut self, field: &str, description: &str) -> Self {
        self.violations.push(WireViolation::new(field, shorten(description, DESCRIPTION)));
        self
    }

    /// The fact of this name; empty where there is none.
    fn known(&self, name: &str) -> &str {
        self.facts.iter().find(|(known, _)| *known == name).map_or("", |(_, fact)| fact)
    }

    fn status(self) -> Status {
        self.status_of(None, None)
    }

    fn status_of(self, request_id: Option<&RequestId>, peer: Option<&Origin>) -> Status {
        self.tell(request_id, peer);
        let Self { code, reason, message, pushback, execution, facts, violations } = self;
        let mut metadata: HashMap<_, _> = facts.into_iter().map(|(name, fact)| (name.to_owned(), fact)).collect();
        metadata.insert("execution".to_owned(), execution.to_owned());
        let mut details = ErrorDetails::with_error_info(reason.name(), DOMAIN, metadata);
        if !reason.help().is_empty() {
            details.add_help_link(reason.help(), "");
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
            name(&mut status, request_id);
        }
        status
    }

    /// What its sort is called in the log. What a caller can mend alone, and what a handler says, is not the server's
    /// matter; of a panic its own line tells.
    fn sort(&self) -> Option<&'static str> {
        match (self.code, self.execution) {
            _ if matches!(self.reason, Reason::HandlerFailed | Reason::HandlerPanicked | Reason::MessageBroken) => None,
            (Code::Unauthenticated | Code::PermissionDenied, _) => Some("calls were denied"),
            (Code::DeadlineExceeded, _) => Some("jobs ran out of time"),
            (Code::ResourceExhausted | Code::Unavailable, "NOT_STARTED") => Some("jobs did not start"),
            (Code::ResourceExhausted | Code::Unavailable | Code::Aborted, _) => Some("jobs were broken off"),
            (Code::Internal, _) => Some("workers crashed"),
            _ => None,
        }
    }

    fn tell(&self, request_id: Option<&RequestId>, peer: Option<&Origin>) {
        let Some(what) = self.sort() else { return };
        incidents::log(self.known("pool"), self.reason.name(), || Incident {
            what,
            kind: self.known("kind").to_owned(),
            job: self.known("job").to_owned(),
            request_id: request_id.map(ToString::to_string).unwrap_or_default(),
            tenant: self.known("tenant").to_owned(),
            principal: self.known("principal").to_owned(),
            peer: peer.map(ToString::to_string).unwrap_or_default(),
            cause: self.message.clone().into_owned(),
        });
    }
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
    let answer = Answer::of(Reason::InvalidField).saying(format!("{field}: {description}"));
    answer.violation(field, description).status()
}

/// A call that names something that does not exist.
pub(super) fn not_found(what: String) -> Status {
    Answer::of(Reason::NotFound).saying(what).status()
}

/// A call that names a job which does not exist any more.
pub(super) fn no_job(job: &str) -> Status {
    unknown_job(job, "no pool has this job: it has ended, or its id is another one")
}

/// A call that asks for a job that nobody has or remembers.
pub(super) fn forgotten_job(job: &str) -> Status {
    let message = "no pool has or remembers this job: it was refused, it is of another process, or it ended longer ago \
                   than pool.NAME.ended_jobs reaches";
    unknown_job(job, message)
}

fn unknown_job(job: &str, message: &'static str) -> Status {
    Answer::of(Reason::NotFound).saying(message).fact("job", shorten(job, JOB)).status()
}

/// A call that names several jobs, these among them, by the request id of their call.
pub(super) fn ambiguous(all: usize, jobs: &[String]) -> Status {
    let answer = Answer::of(Reason::AmbiguousId);
    answer.fact("count", all.to_string()).fact("jobs", jobs.join(" ")).status()
}

/// A call of an operator that the state of its pool, or of the process, rules out.
pub(super) fn failed_precondition(reason: Reason, message: impl Into<Cow<'static, str>>) -> Status {
    Answer { code: Code::FailedPrecondition, ..Answer::of(reason).saying(message) }.status()
}

/// A call of something that is not served; `reason` says what.
pub(super) fn unimplemented(reason: Reason, message: String) -> Status {
    Answer::of(reason).saying(message).status()
}

/// What the codec says of a message that it did not read, without details. It answers one over its limit with
/// OUT_OF_RANGE, or with RESOURCE_EXHAUSTED where it grew over it when it was decompressed.
pub(super) fn refused_by_codec(refusal: Status) -> Status {
    match refusal.code() {
        Code::OutOfRange | Code::ResourceExhausted if refusal.details().is_empty() => {
            Answer::of(Reason::PayloadTooLarge).never().status()
        }
        Code::InvalidArgument if refusal.details().is_empty() => invalid_field("job.labels", refusal.message()),
        Code::Internal if refusal.details().is_empty() => {
            let what = shorten(refusal.message(), DESCRIPTION);
            Answer::of(Reason::MessageBroken).never().fact("fault", what).status()
        }
        Code::Unimplemented if refusal.details().is_empty() => {
            let mut status = Answer::of(Reason::CompressionUnknown).status();
            *status.metadata_mut() = refusal.metadata().clone();
            status
        }
        _ => refusal,
    }
}

/// A call of a method that takes one message, which sent none or more.
pub(super) fn not_one_message() -> Status {
    Answer::of(Reason::NotOneMessage).status()
}

/// A call with more headers than are taken.
pub(super) fn headers_too_large(limit: usize) -> Status {
    let answer = Answer::of(Reason::HeadersTooLarge);
    answer.never().fact("limit_bytes", limit.to_string()).status()
}

/// A call that would watch what too many watch already.
pub(super) fn watches_full(message: &'static str) -> Status {
    Answer::of(Reason::WatchesFull).saying(message).status()
}

/// A call that came by a name, or from a page, of nobody that is known.
pub(super) fn misdirected(message: &'static str) -> Status {
    Answer::of(Reason::Misdirected).saying(message).status()
}

/// A call whose message was not whole when others needed its room.
pub(super) fn uploads_full() -> Status {
    Answer { pushback: Pushback::After(UPLOAD_AGAIN), ..Answer::of(Reason::UploadsFull) }.status()
}

/// A message whose head says that it is larger than any that is taken.
pub(super) fn message_too_large(length: usize, largest: usize) -> Status {
    let answer = Answer::of(Reason::PayloadTooLarge).never();
    answer.fact("message_bytes", length.to_string()).fact("limit_bytes", largest.to_string()).status()
}

/// An answer that found no room beside those that its connection, or all of them, have not read.
pub(super) fn answers_full() -> Status {
    Answer { execution: "STARTED", ..Answer::of(Reason::AnswersFull).never() }.status()
}

/// The end of a call at its deadline that no job accounts for: its message never came, or it had many jobs, and those
/// that were answered say for themselves how they ended.
pub(super) fn too_late(request_id: &RequestId) -> Status {
    Answer { execution: "UNKNOWN", ..Answer::of(Reason::CallTimeout).never() }.status_of(Some(request_id), None)
}

/// A call in which the server itself panicked.
pub(super) fn panicked() -> Status {
    let answer = Answer::of(Reason::HandlerPanicked).saying("the server panicked in this call");
    Answer { execution: "UNKNOWN", ..answer.never() }.status()
}

/// A call in which something of the server itself went wrong.
pub(super) fn internal(message: &'static str) -> Status {
    let answer = Answer::of(Reason::ServerFailed).saying(message);
    Answer { execution: "UNKNOWN", ..answer }.status()
}

/// The end of a call that outlived the intake of jobs.
pub(super) fn draining(request_id: &RequestId) -> Status {
    let rejection = Rejection { reason: RejectionReason::Draining, pool: None, kind: "".into(), retry_after: None };
    status(&rejection.into(), request_id)
}

/// A call, or a job, that is not let in.
pub(super) fn denied(denial: &Denial, request_id: &RequestId, peer: Option<&Origin>) -> Status {
    let facts = denial.facts().into_iter().map(|(name, fact)| (name, shorten(fact, DESCRIPTION)));
    let answer = Answer::of(denial.reason()).saying(denial.to_string());
    Answer { facts: facts.collect(), ..answer }.status_of(Some(request_id), peer)
}

/// Gives a status the id of its request.
pub(super) fn name(status: &mut Status, request_id: &RequestId) {
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

#[cfg(test)]
mod tests;
