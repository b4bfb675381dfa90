//! Why a command failed, how to correct it, and the exit codes of all commands. `failure/status.rs` describes failed
//! calls.

mod status;

use std::{error::Error, fmt, io, path::Path, process::ExitCode};

use serde_json::json;
use tokio_rustls::rustls::{self, AlertDescription};
use tonic::Status;

use self::status::CallError;
use super::{
    access::Address,
    console::{BAD, FAINT, STRONG, paint},
    output::{self, pluralized},
};
use crate::{config::Faults, file::explain, sim::RecordingError, store::StoreError};

/// Exit status of the program. `waterwheel --help` says what each code means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Done = 0,
    /// A job, a call or the server failed.
    Failed = 1,
    /// The command was used wrongly.
    Usage = 2,
    /// A drain lost jobs.
    JobsLost = 3,
    /// The job did not start.
    Refused = 4,
    /// The deadline passed.
    DeadlineExceeded = 5,
    /// There is no connection.
    Unreachable = 6,
    /// The code of shells for SIGINT.
    Interrupted = 130,
    /// The code of shells for SIGPIPE.
    OutputClosed = 141,
}

impl Exit {
    /// The number of the exit status.
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// What each [`Exit`] means, for the end of the program's `--help`.
pub(super) const TABLE: &str = "\
Exit codes:
    0  done
    1  the job or the call failed, the server could not start (as on a taken address), the
       output could not be written, or `check --env` found the environment insufficient
    2  wrong usage: an argument, a file, or a request that the server calls invalid or denies,
       or that the state of the job does not allow
    3  a drain lost jobs or left answers unfinished
    4  refused: the job did not start, so that sending it again is safe
    5  the deadline passed
    6  the server cannot be reached
  130  interrupted (Ctrl-C cancels the call)
  141  the reader of the output closed it
`probe` has its own: 0 serving, 1 not serving, 2 no answer.";

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    help: Option<String>,
    exit: Exit,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    /// The connection broke, or the peer violated the protocol.
    Lost,
    /// The server ended the call with a status.
    Call(Box<CallError>),
    /// The configuration has faults.
    Config(Faults),
    Other,
}

impl Failure {
    /// The failure, and how to correct it.
    pub(crate) fn new(exit: Exit, what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..Self::bare(exit, what.into()) }
    }

    /// An argument or a file is wrong.
    pub(crate) fn usage(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what, help)
    }

    fn bare(exit: Exit, what: String) -> Self {
        Self { what, help: None, exit, cause: Cause::Other }
    }

    /// There is no connection.
    pub(crate) fn unreachable(address: &Address, cause: &str) -> Self {
        let help = "start one with \"waterwheel dev\", or pass its address: --server for callers, --ops for operators";
        Self::new(Exit::Unreachable, format!("cannot reach {address}: {cause}"), help)
    }

    /// The TLS handshake failed: the server's certificate or the client's is not trusted, or the server has no TLS.
    pub(crate) fn no_tls(address: &Address, error: &io::Error) -> Self {
        let alert = error.get_ref().and_then(|error| error.downcast_ref());
        let (cause, help) = match alert {
            Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) => {
                ("it wants a client certificate".to_owned(), "pass --cert and --key")
            }
            Some(rustls::Error::AlertReceived(alert)) => (
                format!("it refused with the alert {alert:?}"),
                "pass a --cert and --key that its client CA has issued",
            ),
            Some(rustls::Error::InvalidMessage(_)) => (
                "it does not speak TLS".to_owned(),
                "write http://HOST:PORT; without it, --tls, --ca, --cert, WATERWHEEL_CA and WATERWHEEL_CERT turn TLS on",
            ),
            _ => (explain(error), "pass --ca with the roots of its certificate"),
        };
        Self::new(Exit::Unreachable, format!("no TLS with {address}: {cause}"), help)
    }

    /// The server does not speak HTTP/2 in plaintext.
    pub(crate) fn not_plain(address: &Address) -> Self {
        let help = "pass --tls, and --ca if the system does not know the roots of its certificate";
        Self::new(Exit::Unreachable, format!("no call to {address}: it does not speak HTTP/2 in plaintext"), help)
    }

    /// A required part of the answer is missing.
    pub(crate) fn incomplete(address: &Address, missing: &str) -> Self {
        let help = "use a client of the same version as the server";
        Self::new(Exit::Failed, format!("the answer of {address} has no {missing}"), help)
    }

    /// A file could not be written.
    pub(crate) fn unwritten(path: &Path, error: &io::Error) -> Self {
        let help = match error.kind() {
            io::ErrorKind::AlreadyExists => "move the file that is there away, or choose another name",
            _ => "name a directory that can be written",
        };
        Self::new(Exit::Failed, format!("cannot write {}: {}", path.display(), explain(error)), help)
    }

    /// The failure in a status: of the call, or of the connection.
    pub(crate) fn of_status(status: Status, address: &Address) -> Self {
        let Some(source) = status.source() else {
            let error = CallError::of(&status);
            if error.is_unknown_service() {
                let help = "pass --ops with its `server.ops_listen`, by default 127.0.0.1:7071, or --server with its `server.listen`";
                return Self::usage(format!("{address} does not have this service: a server has two listeners"), help);
            }
            return error.into();
        };
        let cause = root_cause(source);
        let what = format!("lost the call to {address}: {cause}; whether the job started is unknown");
        let help = "check that the address is a waterwheel server, and read its log";
        Self { cause: Cause::Lost, ..Self::new(Exit::Failed, what, help) }
    }

    /// Whether the connection broke during the call.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.cause, Cause::Lost)
    }

    /// The exit code.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// The failure as text, with styles and without a final line end.
    pub(crate) fn text(&self) -> String {
        if let Cause::Config(faults) = &self.cause {
            return faults.styled();
        }
        let mut text = indented(&self.what);
        if let Cause::Call(error) = &self.cause {
            text = format!("{}  {text}", paint(BAD, error.name()));
            for violation in &error.violations {
                let field = paint(STRONG, &violation.field);
                text.push_str(&format!("\n  {field}: {}", indented(&violation.description)));
            }
            // The help may name the job already.
            if let Some(job) = error.job().filter(|job| !self.help.as_ref().is_some_and(|help| help.contains(job))) {
                text.push_str(&format!("\n{}", output::job_id(job)));
            }
        }
        if let Some(help) = &self.help {
            text.push_str(&format!("\n  {} {help}", paint(FAINT, "help:")));
        }
        text
    }

    /// The failure as one line of JSON.
    pub(crate) fn json(&self) -> String {
        let mut error = match &self.cause {
            Cause::Call(error) => error.to_json(),
            Cause::Config(faults) => json!({ "faults": faults.to_json() }),
            _ => json!({}),
        };
        error["message"] = json!(self.what);
        error["help"] = json!(self.help);
        error["exit_code"] = json!(self.exit.code());
        json!({ "error": error }).to_string()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self { what: error.what(), help: error.help(), exit: error.exit(), cause: Cause::Call(Box::new(error)) }
    }
}

impl From<Faults> for Failure {
    fn from(faults: Faults) -> Self {
        let what = format!("the configuration has {}", pluralized(faults.iter().len(), "fault"));
        Self { cause: Cause::Config(faults), ..Self::bare(Exit::Usage, what) }
    }
}

impl From<RecordingError> for Failure {
    fn from(error: RecordingError) -> Self {
        Self::usage(error.to_string(), error.help())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::bare(Exit::Failed, error.to_string())
    }
}

impl From<io::Error> for Failure {
    /// The output could not be written.
    fn from(error: io::Error) -> Self {
        let exit = if error.kind() == io::ErrorKind::BrokenPipe { Exit::OutputClosed } else { Exit::Failed };
        Self::bare(exit, format!("cannot write the output: {}", explain(&error)))
    }
}

/// The innermost error, which describes the cause.
fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.downcast_ref().map_or_else(|| innermost.to_string(), explain)
}

/// Indents all lines after the first.
pub(super) fn indented(text: &str) -> String {
    text.trim_end().replace('\n', "\n    ")
}

#[cfg(test)]
mod tests;
