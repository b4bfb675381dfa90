//! One process for each job: its settings, and one run. The payload is its standard input, and its standard output is
//! the output of the job.

use std::{collections::BTreeMap, fmt, io, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{process::ChildStdout, sync::SetOnce};
use tokio_util::sync::CancellationToken;

use super::{
    Context, Handler, Kind, Runner,
    child::{self, Child, Pipe, Process, Program, Tail, quoting, shown},
};
use crate::model::{FailureCode, HandlerError, Job, Limiter, Output, ProgramEnd};

/// A program that runs once for each job. A caller names the kind, never the program.
///
/// The program starts without a shell, in `/` or in its own [`workspace`](Self::workspace), as the leader of its own
/// process group. Standard input is the payload, or `/dev/null` if the payload is empty. Standard output is the output
/// of the job. The program inherits no other descriptors. Its exit ends the job; processes that it leaves in its group
/// are killed.
///
/// The program gets only these variables: `PATH=/usr/local/bin:/usr/bin:/bin`; `LANG=C.UTF-8`; `HOME` and `TMPDIR` (its
/// workspace, if it has one); those of [`env`](Self::env); `WATERWHEEL_JOB_ID`, `WATERWHEEL_KIND`,
/// `WATERWHEEL_REQUEST_ID`, `WATERWHEEL_DEADLINE_MS` (milliseconds left at its start), `WATERWHEEL_CONTENT_TYPE` and
/// `WATERWHEEL_TENANT` (empty when unspecified), `WATERWHEEL_ATTEMPT`, `WATERWHEEL_IDEMPOTENCY_KEY` and
/// `WATERWHEEL_TOKEN` (an [`AttemptToken`](crate::model::AttemptToken)). Each label becomes `WATERWHEEL_LABEL_<NAME>`,
/// in upper-case letters and digits; any other character becomes `_`. If two labels get the same name, the last one in
/// byte order wins. A traced job also has `TRACEPARENT`, `TRACESTATE` and `BAGGAGE`.
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
    /// Additional variables. They may override `PATH`, `LANG`, `HOME` and `TMPDIR`.
    pub env: BTreeMap<String, String>,
    /// Failure codes of exit codes, where they differ from `sysexits.h`.
    pub exit_codes: BTreeMap<u8, FailureCode>,
    /// Exit codes by which the program says that the job must wait: for how long, and what waits with it, as in
    /// [`HandlerError::holding`]. The attempt does not count.
    pub later: BTreeMap<u8, (Duration, Option<Limiter>)>,
    /// Media type of the output; empty when unspecified.
    pub content_type: String,
    /// Maximum bytes of standard error that a failure quotes. Default 2 KiB, at most
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
    /// Maximum bytes of standard error that a failure can quote.
    pub const MAX_STDERR_TAIL: usize = child::MAX_TAIL;

    /// Prefix of the variables of each job. No variable of [`env`](Self::env) may begin with it.
    pub const RESERVED: &str = "WATERWHEEL_";

    /// `program` with `args`, and defaults for the rest.
    pub fn new<A: Into<String>>(program: impl Into<PathBuf>, args: impl IntoIterator<Item = A>) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            workspace: false,
            env: BTreeMap::new(),
            exit_codes: BTreeMap::new(),
            later: BTreeMap::new(),
            content_type: String::new(),
            stderr_tail: 2 << 10,
            kill_grace: Duration::from_secs(2),
        }
    }

    /// All faults; empty for a valid command.
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

/// Runs the operator's program once for each job.
struct Exec {
    command: Arc<ExecCommand>,
}

impl Handler for Exec {
    async fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        if cx.is_cancelled() {
            return Err(HandlerError::Stopped);
        }
        let ExecCommand { program, args, workspace, env, .. } = &*self.command;
        let mut variables = child::for_program(env);
        child::for_job(&mut variables, &job, &cx);
        let (path, args, input) = (program.clone(), args.clone(), job.payload);
        let workspace = *workspace;
        let program = Program { path, args, variables, directory: None, workspace, input, messages: false };
        let child = program.start(cx.tasks(), Some(cx.job())).await?;
        run(&self.command, child, &cx).await
    }
}

/// Feeds, reads and watches the process until it exits, which ends the job. The rest of its group is not waited for,
/// even if it still runs or holds pipes open.
async fn run(command: &ExecCommand, child: Child, cx: &Context) -> Result<Output, HandlerError> {
    let Child { mut process, input, stdout, stderr, messages: _ } = child;
    cx.note_runner(Runner::Process(process.pid()));
    let ended = CancellationToken::new();
    let unsent = SetOnce::new();
    let watch = async {
        let stopped = watch(&mut process, cx, &unsent, command.kill_grace).await;
        ended.cancel();
        stopped
    };
    let (stopped, (), tail, ()) = tokio::join!(
        watch,
        send_output(stdout, cx, &ended, &unsent),
        child::drain(stderr, command.stderr_tail, &ended),
        input.feed(&ended),
    );
    let status = process.reap().map(|status| child::end(&command.program, status, &tail));
    if let Ok(end) = &status {
        cx.note_program_end(end.clone());
    }
    if let Some(error) = unsent.into_inner().or(stopped) {
        return Err(error);
    }
    judge(command, status, &tail)?;
    Ok(Output::typed(Bytes::new(), command.content_type.clone()))
}

/// Waits until the process has exited, and kills the rest of its group. Returns an error if the process was stopped.
async fn watch(
    process: &mut Process,
    cx: &Context,
    unsent: &SetOnce<HandlerError>,
    grace: Duration,
) -> Option<HandlerError> {
    let stopped = tokio::select! {
        biased;
        () = process.exited() => None,
        _ = cx.cancelled() => Some(HandlerError::Stopped),
        error = unsent.wait() => Some(error.clone()),
    };
    match stopped {
        Some(HandlerError::Stopped) => process.stop(grace).await,
        _ => process.kill().await,
    }
    stopped
}

/// Passes on the output until it ends. If the output cannot be passed on, returns the error, and discards the rest: a
/// full pipe would block a program that is asked to stop.
async fn send_output(
    mut stdout: Pipe<ChildStdout>,
    cx: &Context,
    ended: &CancellationToken,
    unsent: &SetOnce<HandlerError>,
) {
    while let Some(chunk) = stdout.next(ended).await {
        if unsent.initialized() {
            continue;
        }
        // Bytes that are written after the request to stop are not output.
        let sent = if cx.is_cancelled() { Err(HandlerError::Stopped) } else { cx.write(chunk).await };
        if let Err(error) = sent {
            let _ = unsent.set(error);
        }
    }
}

/// The result of a program that ended by itself.
pub(super) fn judge(command: &ExecCommand, end: io::Result<ProgramEnd>, tail: &Tail) -> Result<(), HandlerError> {
    let ProgramEnd { summary, exit_code, signal, stderr: _ } = end.map_err(|fault| {
        let program = shown(&command.program);
        let message = format!("the exit code of {program} is lost: {fault}; start the server without ignoring SIGCHLD");
        HandlerError::Crashed { message }
    })?;
    match exit_code {
        Some(0) => Ok(()),
        Some(code) => {
            let code = u8::try_from(code).ok();
            let failure = code.map_or(FailureCode::Unknown, |code| failure_code(command, code));
            let error = HandlerError::new(failure, quoting(summary, tail, command.stderr_tail));
            Err(match code.and_then(|code| command.later.get(&code)) {
                Some((delay, Some(scope))) => error.retry_after(*delay).uncounted().holding(*scope),
                Some((delay, None)) => error.retry_after(*delay).uncounted(),
                None => error,
            })
        }
        None => {
            let hint = if signal == Some(9) { ", which the kernel sends when memory runs out" } else { "" };
            Err(HandlerError::Crashed { message: quoting(summary + hint, tail, command.stderr_tail) })
        }
    }
}

fn failure_code(command: &ExecCommand, code: u8) -> FailureCode {
    command.exit_codes.get(&code).copied().unwrap_or(match code {
        code if command.later.contains_key(&code) => FailureCode::Unavailable,
        // EX_USAGE, EX_DATAERR
        64 | 65 => FailureCode::InvalidArgument,
        // EX_NOINPUT
        66 => FailureCode::NotFound,
        // EX_UNAVAILABLE, EX_TEMPFAIL
        69 | 75 => FailureCode::Unavailable,
        // EX_CANTCREAT
        73 => FailureCode::AlreadyExists,
        // EX_NOPERM
        77 => FailureCode::PermissionDenied,
        // EX_CONFIG
        78 => FailureCode::FailedPrecondition,
        _ => FailureCode::Unknown,
    })
}

#[cfg(test)]
mod tests;
