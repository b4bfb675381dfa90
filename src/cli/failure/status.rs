//! A failed call: decoded from its status and details, as text with advice, and as JSON.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use tonic::{Code, Status};
use tonic_types::{FieldViolation, StatusExt};

use crate::{
    cli::{
        failure::Exit,
        output::{sanitized, setting, short_duration},
    },
    model::{CODE_NAMES, Reason},
};

/// Facts in the metadata that are not printed with the message. `rung` is how far the stop ladder went.
const UNSHOWN: [&str; 5] = ["accepts", "execution", "job", "kind", "rung"];

/// A call that failed with a status. Control characters are removed from all texts.
#[derive(Debug)]
pub(super) struct CallError {
    code: Code,
    message: String,
    /// The server's reason, by name.
    reason: Option<String>,
    metadata: BTreeMap<String, String>,
    retry_after: Option<Duration>,
    pub(super) violations: Vec<FieldViolation>,
    /// The server's advice to the caller.
    advice: Option<String>,
}

impl CallError {
    /// Decodes a status; unknown details are ignored.
    pub(super) fn of(status: &Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info();
        let metadata = info.iter().flat_map(|info| &info.metadata);
        let metadata: BTreeMap<_, _> = metadata.map(|(key, value)| (sanitized(key), sanitized(value))).collect();
        let message = sanitized(status.message());
        let violations = details.bad_request().into_iter().flat_map(|request| &request.field_violations);
        let violations = violations.map(|it| FieldViolation::new(sanitized(&it.field), sanitized(&it.description)));
        let violations = violations.filter(|it| it.description != message).collect();
        Self {
            code: status.code(),
            message,
            reason: info.map(|info| sanitized(&info.reason)),
            metadata,
            retry_after: details.retry_info().and_then(|it| it.retry_delay),
            violations,
            advice: details.help().and_then(|help| Some(sanitized(&help.links.first()?.description))),
        }
    }

    /// The fields that only failed calls have. Empty ones are left out.
    pub(super) fn to_json(&self) -> Value {
        let mut json = json!({
            "code": CODE_NAMES[self.code as usize],
            "status_message": self.message,
            "reason": self.reason,
            "execution": self.execution(),
        });
        if !self.metadata.is_empty() {
            json["metadata"] = json!(self.metadata);
        }
        if let Some(delay) = self.retry_after {
            json["retry_after"] = json!(format!("{:.3}s", delay.as_secs_f64()));
        }
        if !self.violations.is_empty() {
            let violation = |it: &FieldViolation| json!({ "field": it.field, "description": it.description });
            json["violations"] = self.violations.iter().map(violation).collect();
        }
        json
    }

    /// Whether the job had started: `NOT_STARTED`, which makes a retry safe, `STARTED`, or `UNKNOWN`.
    fn execution(&self) -> &str {
        self.fact("execution").unwrap_or("UNKNOWN")
    }

    /// The reason, if this version knows it.
    fn known(&self) -> Option<Reason> {
        self.reason.as_deref().and_then(Reason::of)
    }

    /// The reason, or the code if there is none.
    pub(super) fn name(&self) -> &str {
        self.reason.as_deref().unwrap_or(CODE_NAMES[self.code as usize])
    }

    /// Whether the listener does not have the service.
    pub(super) fn is_unknown_service(&self) -> bool {
        self.known() == Some(Reason::UnknownService)
    }

    /// The code that the process ends with.
    pub(super) fn exit(&self) -> Exit {
        match (self.code, self.execution()) {
            // A handler may send any code, so it says nothing here.
            _ if self.known() == Some(Reason::HandlerFailed) => Exit::Failed,
            // An operator's restart failed, and no job was asked for.
            _ if self.is_failed_restart() => Exit::Failed,
            // The job did not start, but exit code 4 would invite a retry that cannot succeed.
            _ if self.known().is_some_and(is_permanent) => Exit::Usage,
            (Code::DeadlineExceeded, _) => Exit::DeadlineExceeded,
            (Code::InvalidArgument | Code::NotFound | Code::Unimplemented, _) => Exit::Usage,
            (Code::Unauthenticated | Code::PermissionDenied, _) => Exit::Usage,
            (_, "NOT_STARTED") => Exit::Refused,
            _ => Exit::Failed,
        }
    }

    /// Whether a new process of the restarted pool was not ready.
    fn is_failed_restart(&self) -> bool {
        self.code == Code::FailedPrecondition && self.known() == Some(Reason::HandlerUnavailable)
    }

    /// A fact in the metadata of the status.
    fn fact(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str).filter(|it| !it.is_empty())
    }

    /// A fact in milliseconds.
    fn milliseconds(&self, key: &str) -> Option<Duration> {
        let ms: f64 = self.fact(key)?.parse().ok()?;
        Duration::try_from_secs_f64(ms / 1e3).ok()
    }

    /// What happened, and whether the job had started, if the server said so.
    pub(super) fn what(&self) -> String {
        let what = match self.known() {
            Some(Reason::InvalidField) if !self.violations.is_empty() => Reason::InvalidField.words().to_owned(),
            // The handler's own words.
            Some(Reason::HandlerFailed) => return self.message.trim_end().to_owned(),
            _ => format!("{}{}", self.message.trim_end(), self.figures()),
        };
        let started = match self.execution() {
            _ if self.reason.is_none() => "",
            "STARTED" => "; the job had started",
            _ if self.needs_another_request() => "",
            "NOT_STARTED" => "; the job did not start",
            _ => "; whether the job started is unknown",
        };
        format!("{}{started}", what.trim_end())
    }

    /// Whether the code says that the same request cannot succeed. Such codes also tell that no job started.
    fn needs_another_request(&self) -> bool {
        use Code::{FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Unauthenticated};
        matches!(self.code, InvalidArgument | NotFound | FailedPrecondition | PermissionDenied | Unauthenticated)
    }

    /// The figures of this call; the message is the same for all calls of one reason.
    fn figures(&self) -> String {
        let figures = self.metadata.iter().filter(|(key, _)| !UNSHOWN.contains(&key.as_str()));
        let figures = figures.map(|(key, value)| match (key.strip_suffix("_ms"), self.milliseconds(key)) {
            (Some(name), Some(time)) => format!("{} {}", name.replace('_', " "), short_duration(time)),
            _ => format!("{} {value}", key.replace('_', " ")),
        });
        let figures: Vec<_> = figures.collect();
        if figures.is_empty() { String::new() } else { format!(" ({})", figures.join(", ")) }
    }

    /// What to do, if anything helps.
    pub(super) fn help(&self) -> Option<String> {
        let retry = self.retry_after.map(|delay| format!("try again in {}", short_duration(delay)));
        match (retry, self.flag_advice().or_else(|| self.advice.clone())) {
            (Some(retry), Some(advice)) => Some(format!("{retry}, or {advice}")),
            (retry, advice) => retry.or(advice),
        }
    }

    /// Advice that names command-line flags, where that is clearer than the server's advice.
    fn flag_advice(&self) -> Option<String> {
        match self.known()? {
            Reason::DeadlineUnreachable => {
                // A tenth more, because the expected wait changes.
                let needed = self.milliseconds("needed_timeout_ms").filter(|needed| !needed.is_zero())?;
                let deadline = Duration::from_millis((needed.as_secs_f64() * 1.1e3).ceil() as u64);
                Some(format!("pass --deadline {}", setting(deadline)))
            }
            Reason::HandlerUnavailable if self.is_failed_restart() => {
                Some("correct the program, and restart the pool again".to_owned())
            }
            Reason::QueueFull => Some("pass --when-full wait".to_owned()),
            Reason::NoCredentials | Reason::RpcDenied => match self.fact("accepts")? {
                "certificate" => Some("pass --cert and --key".to_owned()),
                "token" => Some("pass --token-file".to_owned()),
                "nothing" => None,
                _ => Some("pass --cert and --key, or --token-file".to_owned()),
            },
            _ => None,
        }
    }

    /// The failed job. With NOT_FOUND there is none to name: the user has just typed the id.
    pub(super) fn job(&self) -> Option<&str> {
        let asked_for = self.known() == Some(Reason::NotFound);
        self.fact("job").filter(|_| !asked_for)
    }
}

/// Whether the reason says that the same request would be refused again, whatever the code says.
fn is_permanent(reason: Reason) -> bool {
    use Reason::{HeadersTooLarge, JobExists, NoConfig, NoStore, PayloadTooLarge, WrongState};
    matches!(reason, PayloadTooLarge | HeadersTooLarge | WrongState | JobExists | NoConfig | NoStore)
}
