//! The words for each reason of the service: what happened, and what to do.

use std::time::Duration;

use serde::{Serialize, Serializer};
use tonic::Code;

use super::status::{CallError, Execution};
use crate::{
    cli::output::{exact, plain, rough, setting},
    model::DeadlinePolicy,
};

/// Why the service refused or failed a job, from `google.rpc.ErrorInfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reason {
    QueueFull,
    DeadlineUnreachable,
    Shed,
    QuotaExceeded,
    TenantShare,
    Draining,
    PoolDraining,
    HandlerUnavailable,
    DrainKilled,
    ExpiredInQueue,
    RunTimeout,
    HandlerFailed,
    HandlerPanicked,
    WorkerCrashed,
    UnknownKind,
    InvalidField,
    PayloadTooLarge,
    OutputTooLarge,
    HeadersTooLarge,
    UploadsFull,
    LimitExceeded,
    NotFound,
    AmbiguousId,
    NoCredentials,
    InvalidToken,
    InvalidCertificate,
    RpcDenied,
    KindDenied,
    TenantMismatch,
    CriticalityDenied,
    ShedDenied,
    /// A reason that this client does not know.
    Other(String),
}

const NAMES: [(&str, Reason); 31] = [
    ("QUEUE_FULL", Reason::QueueFull),
    ("DEADLINE_UNREACHABLE", Reason::DeadlineUnreachable),
    ("SHED", Reason::Shed),
    ("QUOTA_EXCEEDED", Reason::QuotaExceeded),
    ("TENANT_SHARE", Reason::TenantShare),
    ("DRAINING", Reason::Draining),
    ("POOL_DRAINING", Reason::PoolDraining),
    ("HANDLER_UNAVAILABLE", Reason::HandlerUnavailable),
    ("DRAIN_KILLED", Reason::DrainKilled),
    ("EXPIRED_IN_QUEUE", Reason::ExpiredInQueue),
    ("RUN_TIMEOUT", Reason::RunTimeout),
    ("HANDLER_FAILED", Reason::HandlerFailed),
    ("HANDLER_PANICKED", Reason::HandlerPanicked),
    ("WORKER_CRASHED", Reason::WorkerCrashed),
    ("UNKNOWN_KIND", Reason::UnknownKind),
    ("INVALID_FIELD", Reason::InvalidField),
    ("PAYLOAD_TOO_LARGE", Reason::PayloadTooLarge),
    ("OUTPUT_TOO_LARGE", Reason::OutputTooLarge),
    ("HEADERS_TOO_LARGE", Reason::HeadersTooLarge),
    ("UPLOADS_FULL", Reason::UploadsFull),
    ("LIMIT_EXCEEDED", Reason::LimitExceeded),
    ("NOT_FOUND", Reason::NotFound),
    ("AMBIGUOUS_ID", Reason::AmbiguousId),
    ("NO_CREDENTIALS", Reason::NoCredentials),
    ("INVALID_TOKEN", Reason::InvalidToken),
    ("INVALID_CERTIFICATE", Reason::InvalidCertificate),
    ("RPC_DENIED", Reason::RpcDenied),
    ("KIND_DENIED", Reason::KindDenied),
    ("TENANT_MISMATCH", Reason::TenantMismatch),
    ("CRITICALITY_DENIED", Reason::CriticalityDenied),
    ("SHED_DENIED", Reason::ShedDenied),
];

impl Reason {
    /// The reason of this name.
    pub(super) fn of(name: &str) -> Self {
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map_or_else(|| Self::Other(plain(name)), |(_, reason)| reason.clone())
    }

    /// The name on the wire.
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Other(name) => name,
            known => NAMES
                .iter()
                .find(|(_, reason)| reason == known)
                .map(|(name, _)| *name)
                .expect("every known reason is in the table"),
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl CallError {
    /// What happened, with whether the job had started where the server said so.
    pub(super) fn what(&self) -> String {
        let what = self.happening().unwrap_or_else(|| format!("{}{}", self.message.trim_end(), self.figures()));
        let started = match (&self.reason, self.execution) {
            // Without a job, or with one that no retry mends, there is nothing to say.
            (None | Some(Reason::NotFound | Reason::InvalidField | Reason::UnknownKind), _) => "",
            (Some(reason), _) if reason.is_of_access() || self.is_of_operators() => "",
            (_, Execution::NotStarted) => "; the job did not start",
            (Some(reason), Execution::Started) if reason.tells_the_start() => "",
            (_, Execution::Started) => "; the job had started",
            (_, Execution::Unknown) => "; whether the job started is unknown",
        };
        format!("{}{started}", what.trim_end())
    }

    /// What the server tells beside its words, which are the same for all such calls.
    fn figures(&self) -> String {
        let others = ["accepts", "execution", "job", "kind", "pool", "queue_ms", "run_ms", "rung"];
        let figures = self.metadata.iter().filter(|(key, _)| !others.contains(&key.as_str()));
        let figures = figures.map(|(key, value)| match (key.strip_suffix("_ms"), self.milliseconds(key)) {
            (Some(name), Some(time)) => format!("{} {}", name.replace('_', " "), rough(time)),
            _ => format!("{} {value}", key.replace('_', " ")),
        });
        let figures: Vec<_> = figures.collect();
        if figures.is_empty() { String::new() } else { format!(" ({})", figures.join(", ")) }
    }

    /// Whether the call was an operator's, and spoke of no job: the state of the process, or of a pool, rules it out.
    fn is_of_operators(&self) -> bool {
        let is_of_state = matches!(self.reason, Some(Reason::Draining | Reason::PoolDraining | Reason::AmbiguousId));
        self.code == Code::FailedPrecondition && is_of_state
    }

    /// What happened where figures say it better than the server's message.
    fn happening(&self) -> Option<String> {
        let pool = self.fact("pool");
        match self.reason.as_ref()? {
            Reason::DeadlineUnreachable => {
                let expected = rough(self.milliseconds("expected_wait_ms")?);
                if let Some(patience) = self.milliseconds("queue_timeout_ms") {
                    return Some(format!("expected {expected}, more than its queue timeout of {}", rough(patience)));
                }
                let budget = rough(self.milliseconds("budget_ms")?);
                Some(format!("expected {expected}, {budget} left"))
            }
            Reason::QueueFull => Some(match self.milliseconds("expected_wait_ms") {
                Some(wait) => {
                    format!("a job would wait {} in pool {}, which lets none wait so long", rough(wait), pool?)
                }
                None => format!("the queue of pool {} is full", pool?),
            }),
            Reason::TenantShare => {
                let (jobs, most) = (self.fact("queued_jobs")?, self.fact("most_jobs")?);
                Some(format!(
                    "tenant {:?} has {jobs} jobs queued in pool {}, and may have {most} for now",
                    self.fact("tenant")?,
                    pool?
                ))
            }
            Reason::Shed => Some("evicted from the queue for a more important job".to_owned()),
            Reason::UploadsFull => Some("the server holds too many unfinished messages".to_owned()),
            Reason::DrainKilled => {
                let run = exact(self.milliseconds("run_ms")?);
                Some(format!("stopped by the drain after it ran {run}"))
            }
            Reason::ExpiredInQueue => {
                let queue = exact(self.milliseconds("queue_ms")?);
                Some(format!("its time was up after {queue} in the queue"))
            }
            Reason::RunTimeout => {
                let run = exact(self.milliseconds("run_ms")?);
                Some(format!("its time was up after it ran {run}"))
            }
            Reason::InvalidField if !self.violations.is_empty() => Some("the request has invalid fields".to_owned()),
            _ => None,
        }
    }

    /// What to do about it, where something can be done.
    pub(super) fn help(&self) -> Option<String> {
        let Some(reason) = &self.reason else {
            return self.retry();
        };
        let help = match reason {
            Reason::QueueFull => self.retry_or("pass --when-full wait"),
            Reason::DeadlineUnreachable if self.fact("queue_timeout_ms").is_some() => {
                self.retry_or("pass a longer --queue-timeout")
            }
            Reason::DeadlineUnreachable => match self.needed() {
                Some(needed) => self.retry_or(&format!("pass --deadline {}", setting(enough(needed)))),
                None => self.retry_or("pass a longer --deadline"),
            },
            Reason::Shed => self.retry_or("pass a higher --criticality"),
            Reason::TenantShare => self.retry_or("send less for this tenant"),
            Reason::QuotaExceeded => self.retry().unwrap_or_else(|| "send less for this tenant".to_owned()),
            Reason::Draining if self.is_of_operators() => "wait for its end, or ask another server".to_owned(),
            Reason::PoolDraining => {
                "resume it with \"waterwheel resume\", once its drain is no longer wanted".to_owned()
            }
            Reason::HandlerUnavailable => self.retry_or("look into the server's log"),
            Reason::Draining => "send it to another server, or here once it serves again".to_owned(),
            Reason::DrainKilled => "send it again if the work may run twice".to_owned(),
            Reason::ExpiredInQueue => {
                "pass a longer --deadline or --queue-timeout; \"waterwheel stats\" shows the wait".to_owned()
            }
            Reason::RunTimeout => "pass a longer --deadline or --run-timeout".to_owned(),
            Reason::HandlerFailed if self.blames_the_payload() => self.log("correct the payload, or"),
            Reason::HandlerFailed => self.log("the program failed, and no exit_codes rule blames the payload:"),
            Reason::HandlerPanicked | Reason::WorkerCrashed => self.log("the handler has a bug:"),
            Reason::UnknownKind => "\"waterwheel stats\" lists the kinds".to_owned(),
            Reason::InvalidField => "correct the fields and send it again".to_owned(),
            Reason::PayloadTooLarge => "send less, or raise server.max_payload in the server's config".to_owned(),
            Reason::OutputTooLarge => "stream it, or raise max_output in the server's config".to_owned(),
            Reason::HeadersTooLarge => {
                "use a shorter token, or raise server.http2.max_header_list in the server's config".to_owned()
            }
            Reason::LimitExceeded => self.retry_or("send less of this kind"),
            Reason::UploadsFull => self.retry_or("raise server.memory in the server's config"),
            Reason::NotFound if self.fact("job").is_some() => {
                "\"waterwheel jobs\" lists the jobs that are known".to_owned()
            }
            Reason::NotFound => "\"waterwheel stats\" lists the pools".to_owned(),
            Reason::AmbiguousId => "pass the id of the job that is meant".to_owned(),
            Reason::NoCredentials => match self.fact("accepts") {
                Some("certificate") => "pass --cert and --key".to_owned(),
                Some("token") => "pass --token-file".to_owned(),
                // Its message says what else there is to do.
                Some("nothing") => return None,
                _ => "pass --cert and --key, or --token-file".to_owned(),
            },
            Reason::InvalidToken => "write a new token to the --token-file".to_owned(),
            Reason::InvalidCertificate => "pass another --cert and --key".to_owned(),
            Reason::RpcDenied | Reason::KindDenied => "the operator allows it by a rule in [auth.rule]".to_owned(),
            Reason::TenantMismatch => "leave out --tenant".to_owned(),
            Reason::CriticalityDenied => {
                format!("pass --criticality {}", self.fact("max_criticality")?.to_ascii_lowercase().replace('_', "-"))
            }
            Reason::ShedDenied => "pass another --when-full".to_owned(),
            Reason::Other(_) => return self.retry(),
        };
        Some(help)
    }

    /// Whether the handler said that it is what was sent. An exit code that no rule maps says nothing.
    fn blames_the_payload(&self) -> bool {
        !matches!(self.code, Code::Unknown | Code::Internal | Code::Unavailable | Code::DataLoss)
    }

    /// The deadline with which the job would have been accepted. The server speaks of what is left of it before the
    /// answer must go out; the wait alone is what servers tell that do not know more.
    fn needed(&self) -> Option<Duration> {
        let needed = self.milliseconds("needed_budget_ms").or_else(|| self.milliseconds("expected_wait_ms"))?;
        (!needed.is_zero()).then(|| needed + DeadlinePolicy::default().reply_margin)
    }

    /// The job that failed. One that was asked for is in the message.
    pub(super) fn job(&self) -> Option<&str> {
        let asked_for = matches!(self.reason, Some(Reason::NotFound | Reason::AmbiguousId));
        self.fact("job").filter(|_| !asked_for)
    }

    fn retry(&self) -> Option<String> {
        self.retry_after.map(|delay| format!("try again in {}", rough(delay)))
    }

    fn retry_or(&self, otherwise: &str) -> String {
        match self.retry() {
            Some(retry) => format!("{retry}, or {otherwise}"),
            None => otherwise.to_owned(),
        }
    }

    fn log(&self, before: &str) -> String {
        match self.fact("job") {
            Some(job) => format!("{before} see \"waterwheel explain {job}\" and the server's log"),
            None => format!("{before} look into the server's log"),
        }
    }
}

impl Reason {
    /// Whether the call was not let in.
    fn is_of_access(&self) -> bool {
        matches!(
            self,
            Self::NoCredentials
                | Self::InvalidToken
                | Self::InvalidCertificate
                | Self::RpcDenied
                | Self::KindDenied
                | Self::TenantMismatch
                | Self::CriticalityDenied
                | Self::ShedDenied
        )
    }

    /// Whether the words for it say by themselves that the job had started.
    fn tells_the_start(&self) -> bool {
        matches!(
            self,
            Self::DrainKilled
                | Self::RunTimeout
                | Self::HandlerFailed
                | Self::HandlerPanicked
                | Self::WorkerCrashed
                | Self::OutputTooLarge
        )
    }
}

/// A deadline that leaves a twentieth of room, rounded up to two digits.
fn enough(expected: Duration) -> Duration {
    let ms = (expected.as_secs_f64() * 1e3 * 1.05).max(1.0);
    let step = 10f64.powi(ms.log10().floor() as i32 - 1).max(1.0);
    // Without the small part, 1600.0000001 ms would round up to 1.7 s.
    Duration::from_millis(((ms / step - 1e-6).ceil() * step) as u64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{NAMES, Reason, enough};

    #[test]
    fn every_reason_is_found_by_its_name() {
        for (name, reason) in &NAMES {
            assert_eq!(Reason::of(name), *reason);
            assert_eq!(reason.as_str(), *name);
        }
        assert_eq!(Reason::of("NEW\x07").as_str(), "NEW\u{fffd}");
    }

    #[test]
    fn enough_is_a_little_more_in_two_digits() {
        let cases = [(0, 1), (3, 4), (15, 16), (120, 130), (1500, 1600), (1503, 1600), (95_238, 100_000)];
        for (expected, deadline) in cases {
            assert_eq!(enough(Duration::from_millis(expected)), Duration::from_millis(deadline), "{expected} ms");
        }
    }
}
