//! The text of a failed call: the server's message with its figures, and what to do, naming flags.

use std::time::Duration;

use tonic::Code;

use super::status::{CallError, Execution};
use crate::{
    cli::output::{rough, setting},
    model::Reason,
};

/// Longest `deadline.reply_margin` of a server.
const MAX_REPLY_MARGIN: Duration = Duration::from_secs(1);

/// Facts that are not printed beside the message.
const UNSHOWN: [&str; 5] = ["accepts", "execution", "job", "kind", "rung"];

impl CallError {
    /// What happened, and whether the job had started, if the server said so.
    pub(super) fn what(&self) -> String {
        let what = match self.known() {
            Some(Reason::InvalidField) if !self.violations.is_empty() => Reason::InvalidField.words().to_owned(),
            Some(Reason::HandlerFailed) => self.message.clone(),
            _ => format!("{}{}", self.message.trim_end(), self.figures()),
        };
        let started = match (self.execution, self.code) {
            _ if self.reason.is_none() => "",
            (Execution::Started, _) if self.known().is_some_and(implies_the_start) => "",
            (Execution::Started, _) => "; the job had started",
            // Nothing to say where no retry helps, or where there is no job.
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

    /// The figures of this call; the message is the same for all calls of one reason.
    fn figures(&self) -> String {
        let figures = self.metadata.iter().filter(|(key, _)| !UNSHOWN.contains(&key.as_str()));
        let figures = figures.map(|(key, value)| match (key.strip_suffix("_ms"), self.milliseconds(key)) {
            (Some(name), Some(time)) => format!("{} {}", name.replace('_', " "), rough(time)),
            _ => format!("{} {value}", key.replace('_', " ")),
        });
        let figures: Vec<_> = figures.collect();
        if figures.is_empty() { String::new() } else { format!(" ({})", figures.join(", ")) }
    }

    /// What to do, if anything helps.
    pub(super) fn help(&self) -> Option<String> {
        let retry = self.retry_after.map(|delay| format!("try again in {}", rough(delay)));
        match (retry, self.flag_advice().or_else(|| self.advice.clone())) {
            (Some(retry), Some(advice)) => Some(format!("{retry}, or {advice}")),
            (retry, advice) => retry.or(advice),
        }
    }

    /// Flags of the command line, where they are clearer than the server's advice.
    fn flag_advice(&self) -> Option<String> {
        let flags = match self.known()? {
            Reason::DeadlineUnreachable => {
                format!("pass --deadline {}", setting(with_headroom(self.needed_deadline()?)))
            }
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

    /// A deadline that is long enough for the job to be accepted. The server speaks of the time until its answer goes
    /// out. That is its reply margin before the deadline: at most a second and a hundredth of the deadline, and at most a
    /// tenth of it.
    fn needed_deadline(&self) -> Option<Duration> {
        let needed = self.milliseconds("needed_budget_ms")?;
        (!needed.is_zero()).then(|| needed + (needed / 9).min(MAX_REPLY_MARGIN + needed / 99))
    }

    /// The failed job. If the command named the job, the message has it already.
    pub(super) fn job(&self) -> Option<&str> {
        let asked_for = matches!(self.known(), Some(Reason::NotFound | Reason::AmbiguousId));
        self.fact("job").filter(|_| !asked_for)
    }
}

/// Whether the reason itself says that the job had started.
fn implies_the_start(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::DrainKilled
            | Reason::RunTimeout
            | Reason::HandlerFailed
            | Reason::HandlerPanicked
            | Reason::WorkerCrashed
            | Reason::WorkerLost
            | Reason::OutputTooLarge
    )
}

/// The same duration, 5 % longer and rounded up to two digits.
fn with_headroom(expected: Duration) -> Duration {
    let ms = (expected.as_secs_f64() * 1e3 * 1.05).max(1.0);
    let step = 10f64.powi(ms.log10().floor() as i32 - 1).max(1.0);
    // Ignore rounding error: otherwise 1600.0000001 ms would become 1.7 s.
    Duration::from_millis(((ms / step - 1e-6).ceil() * step) as u64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::with_headroom;

    #[test]
    fn headroom_is_five_percent_in_two_digits() {
        let cases = [(0, 1), (3, 4), (15, 16), (120, 130), (1500, 1600), (1503, 1600), (95_238, 100_000)];
        for (expected, deadline) in cases {
            assert_eq!(
                with_headroom(Duration::from_millis(expected)),
                Duration::from_millis(deadline),
                "{expected} ms"
            );
        }
    }
}
