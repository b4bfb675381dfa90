//! Why a command failed, what to do, and the exit code. `failure/text.rs` words failed calls.

mod status;
mod text;

use std::{io, path::PathBuf, time::Duration};

use serde::Serialize;
use thiserror::Error;
use tonic::Status;

use self::status::CallError;
use super::{
    access::AccessError,
    connect::{Address, Unspoken, explain, root_cause},
    console::{BAD, Console, FAINT, STRONG, paint},
    exit::Exit,
    output::{self, Format, counted, json, setting},
    sim::TooMuch,
};
use crate::{config::Faults, file::FileFault, sim::RecordingError, store::StoreError};

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The payload could not be read.
    #[error("cannot read {}: {fault}", path.display())]
    ReadPayload { path: PathBuf, fault: FileFault },
    /// There is no connection.
    #[error("cannot reach {address}: {cause}")]
    Unreachable { address: Address, cause: String, flag: &'static str },
    /// The server's certificate is not trusted, or the server does not trust this client's.
    #[error("no TLS with {address}: {cause}")]
    NoTls { address: Address, cause: String },
    /// The peer speaks something else, such as TLS.
    #[error("no call to {address}: {}", Unspoken::NotPlain)]
    NotPlain { address: Address },
    /// The address is that of the listener for callers.
    #[error("{address} is the listener for callers, not for operators")]
    NotForOperators { address: Address },
    /// The connection broke, or the peer violated the protocol.
    #[error("lost the call to {address}: {cause}; whether the job started is unknown")]
    Lost { address: Address, cause: String },
    /// The server ended the call with a status.
    #[error("{}", .0.what())]
    Call(Box<CallError>),
    /// The server did not answer in time.
    #[error("no answer by the deadline of {}; whether the job started is unknown", setting(*deadline))]
    NoAnswer { deadline: Duration },
    /// A required part of the answer is missing.
    #[error("the answer of {address} has no {missing}")]
    Incomplete { address: Address, missing: &'static str },
    /// The server restarted while it was watched.
    #[error("the server at {address} restarted while it was watched")]
    Restarted { address: Address },
    /// The connection ended while the server still had jobs.
    #[error("the connection ended during the drain, with {queued} queued and {running} running")]
    DrainUnseen { queued: u64, running: u64 },
    /// Another operator ended the drain of a pool.
    #[error("the pool was resumed before it was drained, with {queued} queued and {running} running")]
    DrainResumed { queued: u64, running: u64 },
    /// A certificate, a key or a token cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The configuration has faults.
    #[error("the configuration has {}", counted(.0.iter().len(), "fault"))]
    Config(#[from] Faults),
    /// A log cannot be replayed.
    #[error(transparent)]
    Replay(#[from] RecordingError),
    /// The simulation is too large.
    #[error(transparent)]
    Simulation(#[from] TooMuch),
    /// The store cannot be opened, or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The output could not be written.
    #[error("cannot write the output: {}", explain(.0))]
    Output(#[from] io::Error),
    /// A file could not be written.
    #[error("cannot write {}: {}", path.display(), explain(error))]
    WriteFile { path: PathBuf, error: io::Error },
    /// The runtime could not be started.
    #[error("cannot start: {}", explain(.0))]
    Runtime(io::Error),
}

impl Failure {
    /// The failure in a status: of the call, or of the connection.
    pub(crate) fn of_status(status: Status, address: &Address) -> Self {
        use std::error::Error;
        let Some(source) = status.source() else { return Self::Call(Box::new(CallError::of(&status))) };
        let address = address.clone();
        match std::iter::successors(Some(source), |&error| error.source()).find_map(|error| error.downcast_ref()) {
            Some(Unspoken::NotPlain) => Self::NotPlain { address },
            Some(Unspoken::NoTls(cause)) => Self::NoTls { address, cause: cause.clone() },
            None => Self::Lost { address, cause: root_cause(source) },
        }
    }

    /// The same failure at the operators' address, which has a flag of its own.
    pub(crate) fn of_ops(self, address: &Address) -> Self {
        match self {
            Self::Unreachable { address, cause, .. } => Self::Unreachable { address, cause, flag: "--ops" },
            Self::Call(error) if error.is_unimplemented() => Self::NotForOperators { address: address.clone() },
            other => other,
        }
    }

    /// The exit code.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::ReadPayload { .. } | Self::Access(_) | Self::Config(_) | Self::Replay(_) | Self::Simulation(_) => {
                Exit::Usage
            }
            Self::NotForOperators { .. } => Exit::Usage,
            Self::Unreachable { .. } | Self::NoTls { .. } | Self::NotPlain { .. } => Exit::Unreachable,
            Self::Call(error) => error.exit(),
            Self::NoAnswer { .. } => Exit::DeadlineExceeded,
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::OutputClosed,
            Self::Lost { .. }
            | Self::Incomplete { .. }
            | Self::Restarted { .. }
            | Self::DrainUnseen { .. }
            | Self::DrainResumed { .. }
            | Self::Output(_)
            | Self::WriteFile { .. }
            | Self::Store(_)
            | Self::Runtime(_) => Exit::Failed,
        }
    }

    /// The failure as text, with styles and without a final line end.
    pub(crate) fn text(&self) -> String {
        if let Self::Config(faults) = self {
            return faults.styled();
        }
        let what = indented(&self.to_string());
        let mut text = match self {
            Self::Call(error) => format!("{}  {what}", paint(BAD, error.name())),
            _ => what,
        };
        if let Self::Call(error) = self {
            for violation in &error.violations {
                let field = paint(STRONG, &violation.field);
                text.push_str(&format!("\n  {field}: {}", indented(&violation.description)));
            }
        }
        let help = self.help();
        if let Self::Call(error) = self
            && let Some(job) = error.job().filter(|job| !help.as_ref().is_some_and(|help| help.contains(job)))
        {
            text.push_str(&format!("\n{}", output::job_id(job)));
        }
        if let Some(help) = help {
            text.push_str(&format!("\n  {} {help}", paint(FAINT, "help:")));
        }
        text
    }

    /// The failure as one line of JSON.
    pub(crate) fn json(&self) -> String {
        let call = match self {
            Self::Call(error) => Some(&**error),
            _ => None,
        };
        let faults = match self {
            Self::Config(faults) => Some(faults.to_json()),
            _ => None,
        };
        json::line(&ErrorLine {
            error: ErrorView {
                message: self.to_string(),
                help: self.help(),
                exit_code: self.exit().code(),
                call,
                faults,
            },
        })
    }

    /// What to do about it.
    fn help(&self) -> Option<String> {
        let help = match self {
            Self::ReadPayload { fault: FileFault::NotRegular("pipe"), .. } => "pipe it into the command, and pass -",
            Self::ReadPayload { .. } => "pass a file that can be read, or - for standard input",
            Self::WriteFile { error, .. } if error.kind() == io::ErrorKind::AlreadyExists => {
                "move the file that is there away, or choose another name"
            }
            Self::WriteFile { .. } => "name a directory that can be written",
            Self::Unreachable { flag, .. } => {
                return Some(format!("start one with \"waterwheel dev\", or pass {flag}"));
            }
            Self::NoTls { .. } => {
                "pass --ca with the roots of its certificate, and --cert and --key if it asks for them; leave out --tls if \
                 it speaks none"
            }
            Self::NotPlain { .. } => "pass --tls, and --ca if the system does not know the roots of its certificate",
            Self::NotForOperators { .. } => {
                "pass --ops with the other address of the server, its `server.ops_listen`, by default 127.0.0.1:7071"
            }
            Self::Lost { .. } => "check that the address is a waterwheel server, and read its log",
            Self::NoAnswer { .. } => "see \"waterwheel stats\" for the state of the server",
            Self::Incomplete { .. } => "use a client of the same version as the server",
            Self::Restarted { .. } => "run the command again",
            Self::DrainUnseen { .. } => "the receipt, the last line of the server's output, names what was lost",
            Self::DrainResumed { .. } => "drain it again when it is no longer needed",
            Self::Call(error) => return error.help(),
            Self::Access(error) => error.help(),
            Self::Replay(error) => error.help(),
            Self::Simulation(error) => error.help(),
            Self::Config(_) | Self::Output(_) | Self::Store(_) | Self::Runtime(_) => return None,
        };
        Some(help.to_owned())
    }
}

/// Prints the failure and returns its exit code. If the reader of the output is gone, nothing is printed.
pub(super) async fn report(failure: &Failure, format: Format, console: &mut Console<'_>) -> Exit {
    let exit = failure.exit();
    if exit != Exit::OutputClosed {
        let line = match format {
            Format::Text => failure.text(),
            Format::Json => failure.json(),
        };
        // The error output cannot be written either; the exit code remains.
        drop(console.err.line(&line).await);
    }
    exit
}

#[derive(Serialize)]
struct ErrorLine<'a> {
    error: ErrorView<'a>,
}

#[derive(Serialize)]
struct ErrorView<'a> {
    message: String,
    help: Option<String>,
    exit_code: u8,
    #[serde(flatten)]
    call: Option<&'a CallError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    faults: Option<serde_json::Value>,
}

/// Indents all lines after the first.
fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n    ")
}

#[cfg(test)]
mod tests;
