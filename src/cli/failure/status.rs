//! A failed call, decoded from its status and details.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use serde::{Serialize, Serializer};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::{
    cli::{exit::Exit, output::plain},
    model::{CODE_NAMES, Reason},
};

/// A call that failed with a status.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct CallError {
    #[serde(serialize_with = "code_by_name")]
    pub(super) code: Code,
    #[serde(rename = "status_message")]
    pub(super) message: String,
    /// The server's reason, by name.
    pub(super) reason: Option<String>,
    pub(super) execution: Execution,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) metadata: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_seconds")]
    pub(super) retry_after: Option<Duration>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) violations: Vec<Violation>,
    /// The server's advice to the caller.
    #[serde(skip)]
    pub(super) advice: Option<String>,
}

/// What is wrong with one field of the request.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Violation {
    pub(super) field: String,
    pub(super) description: String,
}

/// Whether the job had started when the call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum Execution {
    /// It had not: a retry is safe.
    NotStarted,
    /// It had.
    Started,
    /// The server did not say.
    Unknown,
}

impl CallError {
    /// Decodes a status; unknown details are ignored.
    pub(super) fn of(status: &Status) -> Self {
        let details = status.get_error_details();
        let (reason, metadata) = match details.error_info() {
            Some(info) => (Some(plain(&info.reason)), tidy(&info.metadata)),
            None => (None, BTreeMap::new()),
        };
        let execution = match metadata.get("execution").map(String::as_str) {
            Some("NOT_STARTED") => Execution::NotStarted,
            Some("STARTED") => Execution::Started,
            _ => Execution::Unknown,
        };
        let violations = details.bad_request().map_or_else(Vec::new, |request| {
            let violation = |it: &tonic_types::FieldViolation| Violation {
                field: plain(&it.field),
                description: plain(&it.description),
            };
            let is_message = |it: &Violation| it.description == plain(status.message());
            request.field_violations.iter().map(violation).filter(|it| !is_message(it)).collect()
        });
        Self {
            code: status.code(),
            message: plain(status.message()),
            reason,
            execution,
            metadata,
            retry_after: details.retry_info().and_then(|it| it.retry_delay),
            violations,
            advice: details.help().and_then(|help| Some(plain(&help.links.first()?.description))),
        }
    }

    /// The reason, if this version knows it.
    pub(super) fn known(&self) -> Option<Reason> {
        self.reason.as_deref().and_then(Reason::of)
    }

    /// The reason, or the code if there is none.
    pub(super) fn name(&self) -> &str {
        self.reason.as_deref().unwrap_or_else(|| code_name(self.code))
    }

    /// Whether the server does not have the method.
    pub(super) fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }

    /// The code that the process ends with.
    pub(super) fn exit(&self) -> Exit {
        match (self.code, self.execution) {
            // A handler may send any code, so it says nothing here.
            _ if self.known() == Some(Reason::HandlerFailed) => Exit::Failed,
            // The job did not start, but exit code 4 would invite a retry that cannot succeed.
            _ if matches!(self.known(), Some(Reason::PayloadTooLarge | Reason::HeadersTooLarge)) => Exit::Usage,
            (Code::DeadlineExceeded, _) => Exit::DeadlineExceeded,
            (Code::InvalidArgument | Code::NotFound | Code::Unimplemented, _) => Exit::Usage,
            (Code::Unauthenticated | Code::PermissionDenied, _) => Exit::Usage,
            (_, Execution::NotStarted) => Exit::Refused,
            _ => Exit::Failed,
        }
    }

    /// A fact in the metadata of the status.
    pub(super) fn fact(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str).filter(|it| !it.is_empty())
    }

    /// A fact in milliseconds.
    pub(super) fn milliseconds(&self, key: &str) -> Option<Duration> {
        let ms: f64 = self.fact(key)?.parse().ok()?;
        Duration::try_from_secs_f64(ms / 1e3).ok()
    }
}

/// The name of a code in the gRPC specification.
pub(super) fn code_name(code: Code) -> &'static str {
    CODE_NAMES[code as usize]
}

fn tidy(metadata: &HashMap<String, String>) -> BTreeMap<String, String> {
    metadata.iter().map(|(key, value)| (plain(key), plain(value))).collect()
}

fn code_by_name<S: Serializer>(code: &Code, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(code_name(*code))
}

fn as_seconds<S: Serializer>(delay: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match delay {
        Some(delay) => serializer.collect_str(&format_args!("{:.3}s", delay.as_secs_f64())),
        None => serializer.serialize_none(),
    }
}
