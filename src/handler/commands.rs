//! Operator settings for programs: one that runs once for each job, or one that keeps running.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use super::{
    Kind,
    child::{self, Program},
    exec::Exec,
};
use crate::model::FailureCode;

/// A program that runs once for each job. A caller names the kind, never the program.
///
/// The program starts without a shell, in `/` or in its own [`workspace`](Self::workspace), as the leader of its own
/// process group. Standard input is the payload, or `/dev/null` if the payload is empty. Standard output is the output
/// of the job. The program inherits no other descriptors. Its exit ends the job; processes that it leaves in its group
/// are killed.
///
/// The program gets only these variables: `PATH=/usr/local/bin:/usr/bin:/bin`; `HOME` and `TMPDIR` (its workspace, if
/// it has one); those of [`env`](Self::env); `WATERWHEEL_JOB_ID`, `WATERWHEEL_KIND`, `WATERWHEEL_REQUEST_ID`,
/// `WATERWHEEL_DEADLINE_MS` (milliseconds left at its start), `WATERWHEEL_CONTENT_TYPE` and `WATERWHEEL_TENANT` (empty
/// when unspecified), `WATERWHEEL_ATTEMPT`, `WATERWHEEL_IDEMPOTENCY_KEY` and `WATERWHEEL_TOKEN` (an
/// [`AttemptToken`](crate::model::AttemptToken)). Each label becomes `WATERWHEEL_LABEL_<NAME>`, in upper-case letters
/// and digits; any other character becomes `_`. If two labels get the same name, the last one in byte order wins. A
/// traced job also has `TRACEPARENT`, `TRACESTATE` and `BAGGAGE`.
///
/// Exit code 0 is success. [`exit_codes`](Self::exit_codes) maps any other one to a [`FailureCode`], then `sysexits.h`
/// does, and the rest are [`FailureCode::Unknown`].
///
/// `Debug` shows the names of the variables, not their values.
#[derive(Clone, PartialEq, Eq)]
pub struct ExecCommand {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Its arguments, without the program's name.
    pub args: Vec<String>,
    /// Whether each job gets an empty directory of its own, which is removed afterwards. Default `false`.
    pub workspace: bool,
    /// Additional variables. They may override `PATH`, `HOME` and `TMPDIR`.
    pub env: BTreeMap<String, String>,
    /// Failure codes of exit codes, where they differ from `sysexits.h`.
    pub exit_codes: BTreeMap<u8, FailureCode>,
    /// Media type of the output; empty when unspecified.
    pub content_type: String,
    /// Most bytes of standard error that a failure quotes. Default 2 KiB, at most
    /// [`MAX_STDERR_TAIL`](Self::MAX_STDERR_TAIL).
    pub stderr_tail: usize,
    /// Time between SIGTERM and SIGKILL. Default 2 s; never longer than the kind's cancel grace.
    pub kill_grace: Duration,
}

impl fmt::Debug for ExecCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, args, env, .. } = self;
        let mut shown = f.debug_struct("ExecCommand");
        shown.field("program", program).field("args", args).field("env", &env.keys()).finish_non_exhaustive()
    }
}

/// A fault of an [`ExecCommand`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidExecCommand {
    /// The path is relative: `PATH` is not searched.
    #[error("program `{}` is not an absolute path; write the whole path, such as /usr/bin/convert", .0.display())]
    RelativeProgram(PathBuf),
    /// An impossible variable name.
    #[error("variable name `{0}` is empty or contains `=`; choose another name")]
    VariableName(String),
    /// A variable name that is reserved for the variables of each job.
    #[error("variable `{0}` begins with {reserved}, which is reserved for the variables of each job; choose another name", reserved = ExecCommand::RESERVED)]
    ReservedVariable(String),
    /// A zero byte in an argument or a variable.
    #[error("`{0}` contains a zero byte, which is not allowed in an argument or a variable; remove it")]
    ZeroByte(String),
    /// More standard error than a message can hold.
    #[error("stderr_tail is {0} bytes; at most {max} are allowed", max = ExecCommand::MAX_STDERR_TAIL)]
    StderrTail(usize),
}

impl ExecCommand {
    /// Most bytes of standard error that a failure can quote.
    pub const MAX_STDERR_TAIL: usize = child::MAX_TAIL;

    /// Prefix of the variables of each job. No variable of [`env`](Self::env) may begin with it.
    pub const RESERVED: &str = "WATERWHEEL_";

    /// `program` with `args`, and defaults for the rest.
    #[must_use]
    pub fn new<A: Into<String>>(program: impl Into<PathBuf>, args: impl IntoIterator<Item = A>) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            workspace: false,
            env: BTreeMap::new(),
            exit_codes: BTreeMap::new(),
            content_type: String::new(),
            stderr_tail: 2 << 10,
            kill_grace: Duration::from_secs(2),
        }
    }

    /// All faults; empty for a valid command.
    #[must_use]
    pub fn faults(&self) -> Vec<InvalidExecCommand> {
        let mut found = Vec::new();
        if !self.program.is_absolute() {
            found.push(InvalidExecCommand::RelativeProgram(self.program.clone()));
        }
        if self.stderr_tail > Self::MAX_STDERR_TAIL {
            found.push(InvalidExecCommand::StderrTail(self.stderr_tail));
        }
        for name in self.env.keys() {
            if name.is_empty() || name.contains('=') {
                found.push(InvalidExecCommand::VariableName(name.clone()));
            } else if name.starts_with(Self::RESERVED) {
                found.push(InvalidExecCommand::ReservedVariable(name.clone()));
            }
        }
        let texts = self.args.iter().chain(self.env.keys()).chain(self.env.values()).cloned();
        let texts = texts.chain([self.program.to_string_lossy().into_owned()]);
        found.extend(texts.filter(|text| text.contains('\0')).map(InvalidExecCommand::ZeroByte));
        found
    }

    /// A kind called `name` whose jobs run this command.
    ///
    /// # Errors
    /// The first of [`faults`](Self::faults).
    pub fn kind(self, name: &str) -> Result<Kind, InvalidExecCommand> {
        if let Some(fault) = self.faults().into_iter().next() {
            return Err(fault);
        }
        let command = Arc::new(self);
        // The check costs two system calls for each worker. If the program is missing, callers get a retry time.
        Ok(Kind::try_new(name, move || {
            child::check(&command.program)?;
            Ok(Exec { command: Arc::clone(&command) })
        }))
    }
}

/// A program that keeps running and runs many jobs. It speaks the protocol of `docs/workers.md`.
///
/// The program starts without a shell, as the leader of its own process group. Standard input is `/dev/null`; standard
/// output and standard error go to the log. It reads messages from descriptor 3 and writes messages to descriptor 4. It
/// inherits no other descriptors. Its variables are `PATH=/usr/local/bin:/usr/bin:/bin` and those of
/// [`env`](Self::env), and no others.
///
/// `Debug` shows the names of the variables, not their values.
#[derive(Clone, PartialEq, Eq)]
pub struct WorkerProgram {
    /// Name in logs and metrics.
    pub name: String,
    /// Absolute path of the program.
    pub path: PathBuf,
    /// Its arguments, without the program's name.
    pub args: Vec<String>,
    /// Working directory. Default `/`.
    pub directory: Option<PathBuf>,
    /// Additional variables.
    pub env: BTreeMap<String, String>,
    /// Kinds that the program must run. A process that does not announce all of them when it is ready is not used.
    pub kinds: BTreeSet<String>,
    /// Jobs that one process runs at the same time. Default 1.
    pub jobs_per_process: usize,
    /// Time limit from the start of a process until it is ready. Default 10 s.
    pub start_timeout: Duration,
    /// When a process is replaced by a new one. Default never.
    pub recycle: Recycle,
    /// Most bytes of its output that a failure quotes. Default 2 KiB, at most 3 KiB.
    pub stderr_tail: usize,
    /// Time between asking a job to stop and killing its process, and for a process to leave. Default 1 s.
    pub cancel_grace: Duration,
}

/// Limits after which a process is replaced, once it has finished its jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
pub struct Recycle {
    /// Largest number of jobs.
    pub jobs: Option<u64>,
    /// Longest time since its start.
    pub age: Option<Duration>,
    /// Largest resident memory of the process itself, in bytes. It is read after each job.
    pub memory: Option<u64>,
}

impl WorkerProgram {
    /// A program at `path` with `args` for `kinds`, and defaults for the rest.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        path: impl Into<PathBuf>,
        args: impl IntoIterator<Item = String>,
        kinds: impl IntoIterator<Item = String>,
    ) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            args: args.into_iter().collect(),
            directory: None,
            env: BTreeMap::new(),
            kinds: kinds.into_iter().collect(),
            jobs_per_process: 1,
            start_timeout: Duration::from_secs(10),
            recycle: Recycle::default(),
            stderr_tail: 2 << 10,
            cancel_grace: Duration::from_secs(1),
        }
    }

    /// All faults of the command; empty for a valid one.
    #[must_use]
    pub fn faults(&self) -> Vec<InvalidExecCommand> {
        let (env, stderr_tail) = (self.env.clone(), self.stderr_tail);
        ExecCommand { env, stderr_tail, ..ExecCommand::new(&self.path, self.args.clone()) }.faults()
    }

    /// The program to start.
    pub(super) fn command(&self) -> Program {
        Program {
            path: self.path.clone(),
            args: self.args.clone(),
            variables: child::for_program(&self.env),
            directory: self.directory.clone(),
            workspace: false,
            input: Bytes::new(),
            messages: true,
        }
    }

    /// The last part of the grace, between SIGTERM to the process group and SIGKILL.
    pub(super) fn terminate_grace(&self) -> Duration {
        (self.cancel_grace / 4).min(Duration::from_millis(500))
    }

    /// The first part of the grace, in which a worker may comply by itself.
    pub(super) fn ask_grace(&self) -> Duration {
        self.cancel_grace - self.terminate_grace()
    }
}

impl fmt::Debug for WorkerProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, path, args, env, .. } = self;
        let mut shown = f.debug_struct("WorkerProgram");
        shown.field("name", name).field("path", path).field("args", args).field("env", &env.keys());
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_found() {
        let mut command = ExecCommand::new("convert", ["a\0b"]);
        command.stderr_tail = 3_073;
        for name in ["", "A=B", "WATERWHEEL_JOB_ID"] {
            command.env.insert(name.into(), "x".into());
        }
        assert_eq!(
            command.faults(),
            [
                InvalidExecCommand::RelativeProgram("convert".into()),
                InvalidExecCommand::StderrTail(3_073),
                InvalidExecCommand::VariableName(String::new()),
                InvalidExecCommand::VariableName("A=B".into()),
                InvalidExecCommand::ReservedVariable("WATERWHEEL_JOB_ID".into()),
                InvalidExecCommand::ZeroByte("a\0b".into()),
            ]
        );
        assert!(command.kind("k").is_err());
    }

    #[test]
    fn a_sound_command_is_an_async_kind() {
        let kind = ExecCommand::new("/bin/cat", ["-u"]).kind("cat").expect("sound");
        assert!(!kind.is_blocking());
        assert_eq!(&**kind.name(), "cat");
    }
}
