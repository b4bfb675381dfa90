//! What happened to a failed call, and what to do: what the server says of it, with its figures, and the flags of the
//! command line.

use std::time::Duration;

use tonic::Code;

use super::status::{CallError, Execution};
use crate::{
    cli::output::{rough, setting},
    model::{DeadlinePolicy, Reason},
};

/// Facts that are not shown beside the message.
const UNSHOWN: [&str; 5] = ["accepts", "execution", "job", "kind", "rung"];

impl CallError {
    /// What happened, with whether the job had started where the server said so.
    pub(super) fn what(&self) -> String {
        let what = match self.known() {
            Some(Reason::InvalidField) if !self.violations.is_empty() => Reason::InvalidField.words().to_owned(),
            Some(Reason::HandlerFailed) => self.message.clone(),
            _ => format!("{}{}", self.message.trim_end(), self.figures()),
        };
        let started = match (self.execution, self.code) {
            _ if self.reason.is_none() => "",
            (Execution::Started, _) if self.known().is_some_and(tells_the_start) => "",
            (Execution::Started, _) => "; the job had started",
            // Of a call that no retry mends, or that has no job, there is nothing to say.
            (
                _,
                Code::InvalidArgument
                | Code::NotFound
                | Code::FailedPrecondition
                | Code::PermissionDenied
                | Code::Unauthenticated,
            ) => "",
            (Execution::NotStarted, _) => "; the job did not start",
            (Execution::Unknown, _) => "; whether the job started is unknown",
        };
        format!("{}{started}", what.trim_end())
    }

    /// What the server tells beside its words, which are the same for all such calls.
    fn figures(&self) -> String {
        let figures = self.metadata.iter().filter(|(key, _)| !UNSHOWN.contains(&key.as_str()));
        let figures = figures.map(|(key, value)| match (key.strip_suffix("_ms"), self.milliseconds(key)) {
            (Some(name), Some(time)) => format!("{} {}", name.replace('_', " "), rough(time)),
            _ => format!("{} {value}", key.replace('_', " ")),
        });
        let figures: Vec<_> = figures.collect();
        if figures.is_empty() { String::new() } else { format!(" ({})", figures.join(", ")) }
    }

    /// What to do about it, where something can be done.
    pub(super) fn help(&self) -> Option<String> {
        let retry = self.retry_after.map(|delay| format!("try again in {}", rough(delay)));
        match (retry, self.flags().or_else(|| self.advice.clone())) {
            (Some(retry), Some(advice)) => Some(format!("{retry}, or {advice}")),
            (retry, advice) => retry.or(advice),
        }
    }

    /// The flags that mend it, where the server cannot say it as well.
    fn flags(&self) -> Option<String> {
        let flags = match self.known()? {
            Reason::DeadlineUnreachable => format!("pass --deadline {}", setting(enough(self.needed()?))),
            Reason::NoCredentials => match self.fact("accepts")? {
                "certificate" => "pass --cert and --key".to_owned(),
                "token" => "pass --token-file".to_owned(),
                "nothing" => return None,
                _ => "pass --cert and --key, or --token-file".to_owned(),
            },
            Reason::InvalidToken => "write a new token to the --token-file".to_owned(),
            Reason::InvalidCertificate => "pass another --cert and --key".to_owned(),
            _ => return None,
        };
        Some(flags)
    }

    /// The deadline with which the job would have been accepted. The server speaks of what is left of it before the
    /// answer must go out.
    fn needed(&self) -> Option<Duration> {
        let needed = self.milliseconds("needed_budget_ms")?;
        (!needed.is_zero()).then(|| needed + DeadlinePolicy::default().reply_margin)
    }

    /// The job that failed. One that was asked for is in the message.
    pub(super) fn job(&self) -> Option<&str> {
        let asked_for = matches!(self.known(), Some(Reason::NotFound | Reason::AmbiguousId));
        self.fact("job").filter(|_| !asked_for)
    }
}

/// Whether the words of a reason say by themselves that the job had started.
fn tells_the_start(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::DrainKilled
            | Reason::RunTimeout
            | Reason::HandlerFailed
            | Reason::HandlerPanicked
            | Reason::WorkerCrashed
            | Reason::OutputTooLarge
    )
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

    use super::enough;

    #[test]
    fn enough_is_a_little_more_in_two_digits() {
        let cases = [(0, 1), (3, 4), (15, 16), (120, 130), (1500, 1600), (1503, 1600), (95_238, 100_000)];
        for (expected, deadline) in cases {
            assert_eq!(enough(Duration::from_millis(expected)), Duration::from_millis(deadline), "{expected} ms");
        }
    }
}
