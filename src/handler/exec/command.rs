//! The command of an `exec` kind, checked when the configuration is read. Its grace before SIGKILL is `kill_grace`.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use super::Exec;
use crate::{
    handler::{Kind, child},
    model::FailureCode,
};

/// Prefix of the variables that are set for each job.
const RESERVED: &str = "WATERWHEEL_";

/// A program that an operator lets jobs run. A caller names the kind, never the program.
///
/// The program starts without a shell, in `/` or a [`workspace`](Self::workspace) of its own, as the leader of a process
/// group of its own, with the payload on its standard input, which is `/dev/null` where that is empty. What it writes to
/// its standard output is the output of the job. It inherits no other descriptor. Its exit ends the job; processes that
/// it leaves in its group are killed.
///
/// It sees these variables and no other one of the server's: `PATH=/usr/local/bin:/usr/bin:/bin`, `HOME` and `TMPDIR`
/// (its workspace, where it has one), then those of [`env`](Self::env), then `WATERWHEEL_JOB_ID`, `WATERWHEEL_KIND`,
/// `WATERWHEEL_REQUEST_ID`, `WATERWHEEL_DEADLINE_MS` (milliseconds left at its start), `WATERWHEEL_CONTENT_TYPE` and
/// `WATERWHEEL_TENANT` (empty when unspecified), `WATERWHEEL_ATTEMPT`, `WATERWHEEL_IDEMPOTENCY_KEY` and
/// `WATERWHEEL_TOKEN` (an [`AttemptToken`](crate::model::AttemptToken)), `WATERWHEEL_LABEL_<NAME>` for each label (upper-case letters and
/// digits, anything else becomes `_`; of labels that become the same the last in byte order stays), and in a traced job
/// `TRACEPARENT`, `TRACESTATE` and `BAGGAGE`.
///
/// Exit code 0 is success. Any other one becomes a [`FailureCode`]: by [`exit_codes`](Self::exit_codes), else by
/// `sysexits.h`, else [`FailureCode::Unknown`].
///
/// `Debug` shows the names of the variables, and not what they are set to.
#[derive(Clone, PartialEq, Eq)]
pub struct ExecCommand {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Its arguments, without the program's name.
    pub args: Vec<String>,
    /// Whether each job gets an empty directory of its own, which is removed afterwards. Default `false`.
    pub workspace: bool,
    /// Variables that it sees besides the fixed ones. `PATH`, `HOME` and `TMPDIR` may be set here.
    pub env: BTreeMap<String, String>,
    /// What its exit codes mean, where that differs from `sysexits.h`.
    pub exit_codes: BTreeMap<u8, FailureCode>,
    /// Media type of its output; empty when unspecified.
    pub content_type: String,
    /// Most bytes of its standard error that a failure quotes. Default 2 KiB, at most
    /// [`MAX_STDERR_TAIL`](Self::MAX_STDERR_TAIL).
    pub stderr_tail: usize,
    /// Time between SIGTERM and SIGKILL. Default 2 s; the kind's cancel grace cuts it short.
    pub kill_grace: Duration,
}

impl fmt::Debug for ExecCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, args, workspace, env, exit_codes, content_type, stderr_tail, kill_grace } = self;
        f.debug_struct("ExecCommand")
            .field("program", program)
            .field("args", args)
            .field("workspace", workspace)
            .field("env", &env.keys())
            .field("exit_codes", exit_codes)
            .field("content_type", content_type)
            .field("stderr_tail", stderr_tail)
            .field("kill_grace", kill_grace)
            .finish()
    }
}

/// What is wrong with an [`ExecCommand`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidExecCommand {
    /// The program is looked up nowhere.
    #[error("program `{}` is not an absolute path; write all of it, such as /usr/bin/convert", .0.display())]
    RelativeProgram(PathBuf),
    /// A variable that cannot be.
    #[error("variable name `{0}` is empty or holds `=`; choose another name")]
    VariableName(String),
    /// A variable that is set for each job.
    #[error("variable `{0}` begins with {RESERVED}, which is kept for what each job sets; choose another name")]
    ReservedVariable(String),
    /// Text that cannot be handed to a program.
    #[error("`{0}` holds a zero byte, which no argument or variable can hold; remove it")]
    ZeroByte(String),
    /// More standard error than a message can hold.
    #[error("stderr_tail is {0} bytes; at most {max} are allowed", max = ExecCommand::MAX_STDERR_TAIL)]
    StderrTail(usize),
}

impl ExecCommand {
    /// Most bytes of standard error that a failure can quote.
    pub const MAX_STDERR_TAIL: usize = child::MAX_TAIL;

    /// Prefix of the variables that are set for each job, so that none of [`env`](Self::env) may begin with it.
    pub const RESERVED: &str = RESERVED;

    /// `program` with `args` and defaults for the rest.
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

    /// Everything that is wrong; empty for a sound command.
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
            } else if name.starts_with(RESERVED) {
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
        // Two system calls for each worker, and after a crash: where the program is gone, jobs are told when to come back.
        Ok(Kind::try_new(name, move || {
            child::check(&command.program)?;
            Ok(Exec { command: Arc::clone(&command) })
        }))
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
