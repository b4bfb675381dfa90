//! Starts, feeds, reads, stops and reaps the programs of handlers: their command, environment, pipes and directory.
//!
//! A handler decides when a program starts and what its output means. `exec` starts one for each job, and `process`
//! reuses one for many jobs. [`process_group`] explains how a whole process group is stopped and reaped without
//! signalling an unrelated process.

#[expect(clippy::disallowed_types, reason = "its children are reaped by their leader, and watched by it alone")]
use std::process::Command;
use std::{
    collections::BTreeMap,
    io::{self, PipeReader, PipeWriter, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{self, ExitStatus, Stdio},
};

use bytes::Bytes;
use command_fds::{CommandFdExt, FdMapping};
use rustix::fs::{Access, access};
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe::{Receiver, Sender},
    process::{ChildStderr, ChildStdin, ChildStdout},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

#[cfg(feature = "server")]
pub(crate) use self::workspace::remove_left_workspaces;
use self::workspace::{Workspace, create_workspace};
pub(super) use self::{
    process_group::Process,
    reading::{LineLog, MAX_TAIL, Pipe, Tail, drain},
};
use super::Context;
use crate::{
    model::{HandlerError, Job, JobId, ProgramEnd, TraceContext},
    task::{Tasks, off_thread},
};

#[cfg(test)]
mod end_tests;
mod process_group;
mod reading;
mod workspace;

/// Upper bound of a message, in bytes.
const MAX_MESSAGE: usize = 3 << 10;
/// Longest path of a program in a message, in characters.
const MAX_PROGRAM: usize = 256;

/// Bytes that an empty pipe accepts without blocking, even if the user's pipe buffers are at their limit.
const AT_ONCE: usize = 4096;
/// The default variables of a program. Without a locale, Java and Ruby take text for ASCII, and damage the rest.
const VARIABLES: [(&str, &str); 2] = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8")];

/// A running program, and its pipes.
pub(super) struct Child {
    pub(super) process: Process,
    pub(super) input: Input,
    pub(super) stdout: Pipe<ChildStdout>,
    pub(super) stderr: Pipe<ChildStderr>,
    /// `None` if the program did not ask for them.
    pub(super) messages: Option<MessagePipes>,
}

/// The message pipes of a program: it reads from descriptor 3 and writes to descriptor 4.
pub(super) struct MessagePipes {
    pub(super) input: Sender,
    pub(super) output: Pipe<Receiver>,
}

/// The pipe to a program's standard input, and the bytes that are not written yet.
pub(super) struct Input(Option<(ChildStdin, Bytes)>);

impl Input {
    /// Writes the remaining bytes and closes the pipe. Gives up when the program has `ended`.
    pub(super) async fn feed(self, ended: &CancellationToken) {
        let Some((mut stdin, payload)) = self.0 else { return };
        tokio::select! {
            biased;
            () = ended.cancelled() => {}
            written = stdin.write_all(&payload) => note_unread(written),
        }
    }
}

/// Describes how a program ended.
pub(super) fn end(program: &Path, status: ExitStatus, tail: &Tail) -> ProgramEnd {
    let program = shown(program);
    let summary = match status.code() {
        Some(code) => format!("{program} exited with code {code}"),
        // `ExitStatus` displays as `signal: 9 (SIGKILL)`.
        None => format!("{program} was ended by {status}"),
    };
    ProgramEnd { summary, exit_code: status.code(), signal: status.signal(), stderr: tail.text() }
}

/// The path of a program, shortened for a message: it may be 4 KiB long, more than a message can hold.
pub(super) fn shown(program: &Path) -> String {
    program.display().to_string().chars().take(MAX_PROGRAM).collect()
}

/// `what`, followed by at most `max` bytes of the program's last output.
pub(super) fn quoting(what: String, tail: &Tail, max: usize) -> String {
    const SEPARATOR: &str = ": ";
    let room = max.min((MAX_MESSAGE - 1).saturating_sub(what.len() + SEPARATOR.len()));
    match tail.printable(room) {
        quote if quote.is_empty() => what,
        quote => what + SEPARATOR + &quote,
    }
}

/// A program, and everything that it gets. It inherits nothing else from the server.
pub(super) struct Program {
    /// Absolute path.
    pub(super) path: PathBuf,
    /// Arguments, without the program's name.
    pub(super) args: Vec<String>,
    /// All variables, except those that its working directory determines.
    pub(super) variables: BTreeMap<String, String>,
    /// Working directory; `/` without a directory or a workspace.
    pub(super) directory: Option<PathBuf>,
    /// Whether the program gets an empty directory of its own, which is removed after its exit.
    pub(super) workspace: bool,
    /// The whole standard input; if empty, the program reads `/dev/null`.
    pub(super) input: Bytes,
    /// Whether descriptors 3 and 4 are message pipes. The program has no other descriptors besides the standard ones.
    pub(super) messages: bool,
}

impl Program {
    /// Starts the program as the leader of a process group of its own.
    ///
    /// Spawning blocks its thread until the program is loaded: a millisecond, or more from a cold disk. So it does not
    /// run on a serving thread. The spawn is shielded: if this future is dropped meanwhile, the new process is killed
    /// at once, and `tasks` wait for that.
    pub(super) async fn start(self, tasks: &Tasks, job: Option<JobId>) -> Result<Child, HandlerError> {
        let own = tasks.clone();
        let started = tasks.shield(off_thread(move || self.spawn(own, job)).in_current_span()).await;
        let gone = || unavailable("the server is stopping; the program was not started".into());
        started.and_then(Result::ok).unwrap_or_else(|| Err(gone()))
    }

    fn spawn(self, tasks: Tasks, job: Option<JobId>) -> Result<Child, HandlerError> {
        let Self { path, args, variables, directory, workspace, input, messages } = self;
        let workspace = workspace.then(create_workspace).transpose().map_err(|fault| {
            // The full error names a temporary directory that is different for each job.
            let kind = fault.kind();
            unavailable(format!(
                "cannot make a directory for the job: {kind}; make room there or point TMPDIR elsewhere"
            ))
        })?;
        let own = workspace.as_ref().map(Workspace::path);
        // Without message pipes, no code must run between fork and exec. Then the standard library spawns without
        // copying the page tables.
        #[expect(clippy::disallowed_types, reason = "its children are reaped by their leader, and watched by it alone")]
        let mut command = Command::new(&path);
        command
            .args(args)
            .env_clear()
            .envs(own.iter().flat_map(|own| [("HOME", own), ("TMPDIR", own)]))
            .envs(variables)
            .current_dir(own.or(directory.as_deref()).unwrap_or(Path::new("/")))
            .process_group(0)
            .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let messages = messages.then(|| add_pipes(&mut command)).transpose();
        let spawned = messages.and_then(|messages| Ok((command.spawn()?, messages)));
        let (mut child, messages) = spawned.map_err(|fault| unavailable(cannot_start(&path, &fault)))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let process = Process::new(child, workspace, tasks, job);
        process.and_then(|process| watched(process, input, pipes, messages)).map_err(|fault| HandlerError::Crashed {
            message: format!("cannot watch the program: {fault}; raise the limit on open files"),
        })
    }
}

/// Checks that the program is a file that the server may execute.
pub(super) fn check(program: &Path) -> Result<(), HandlerError> {
    let found = std::fs::metadata(program).and_then(|file| match file.is_file() {
        true => Ok(access(program, Access::EXEC_OK)?),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    });
    found.map_err(|fault| unavailable(cannot_start(program, &fault)))
}

/// Gives the program pipes as its descriptors 3 and 4, and returns our ends. `command` owns the other ends.
#[expect(clippy::disallowed_types, reason = "its children are reaped by their leader, and watched by it alone")]
fn add_pipes(command: &mut Command) -> io::Result<(PipeWriter, PipeReader)> {
    let (theirs_in, ours_in) = io::pipe()?;
    let (ours_out, theirs_out) = io::pipe()?;
    let mappings = [(theirs_in.into(), 3), (theirs_out.into(), 4)];
    let mappings = mappings.map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd });
    command.fd_mappings(mappings.into()).expect("3 is not 4");
    Ok((ours_in, ours_out))
}

type Pipes = (Option<process::ChildStdin>, Option<process::ChildStdout>, Option<process::ChildStderr>);

/// Watches the exit of a process, and keeps the input that the pipe did not accept at once.
fn watched(
    process: Process,
    input: Bytes,
    pipes: Pipes,
    messages: Option<(PipeWriter, PipeReader)>,
) -> io::Result<Child> {
    let (stdin, Some(stdout), Some(stderr)) = pipes else { unreachable!("both pipes were asked for") };
    let input = match stdin {
        Some(mut stdin) if input.len() <= AT_ONCE => {
            note_unread(stdin.write_all(&input));
            None
        }
        Some(stdin) => Some((ChildStdin::from_std(stdin)?, input)),
        None => None,
    };
    let messages = messages.map(|(input, output)| {
        let (input, output) = (Sender::from_owned_fd(input.into())?, Receiver::from_owned_fd(output.into())?);
        io::Result::Ok(MessagePipes { input, output: Pipe::new(output) })
    });
    let (stdout, stderr) = (ChildStdout::from_std(stdout)?, ChildStderr::from_std(stderr)?);
    let (stdout, stderr, messages) = (Pipe::new(stdout), Pipe::new(stderr), messages.transpose()?);
    Ok(Child { process, input: Input(input), stdout, stderr, messages })
}

/// A program may exit or close its input before it has read everything. Only its exit code decides whether that was a
/// failure.
fn note_unread(written: io::Result<()>) {
    if let Err(fault) = written {
        tracing::debug!(%fault, "the program did not read all of its input");
    }
}

fn unavailable(message: String) -> HandlerError {
    HandlerError::Unavailable { message }
}

fn cannot_start(program: &Path, fault: &io::Error) -> String {
    let advice = match fault.kind() {
        io::ErrorKind::NotFound => "install it, or the interpreter that its first line names",
        io::ErrorKind::PermissionDenied => "make it executable for the server's user, on a mount without noexec",
        io::ErrorKind::ArgumentListTooLong => "give it fewer or shorter arguments and variables",
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => "raise the limit on processes, or lower the workers",
        _ => "run it by hand on the server to see why",
    };
    format!("cannot start {}: {fault}; {advice}", shown(program))
}

/// The variables that are the same for all jobs of a program, except those that its working directory determines.
pub(crate) fn for_program(own: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::from(VARIABLES.map(|(name, value)| (name.to_owned(), value.to_owned())));
    variables.extend(own.clone());
    variables
}

/// Adds the variables of a job. They are added last, so that no configured variable replaces them.
pub(super) fn for_job(variables: &mut BTreeMap<String, String>, job: &Job, cx: &Context) {
    for (key, value) in &job.labels {
        variables.insert(label_variable(key), value.clone());
    }
    let mut set = |name: &str, value: String| variables.insert(name.to_owned(), value);
    set("WATERWHEEL_JOB_ID", cx.job().to_string());
    set("WATERWHEEL_KIND", cx.kind().to_string());
    set("WATERWHEEL_REQUEST_ID", cx.request_id().to_string());
    set("WATERWHEEL_DEADLINE_MS", cx.budget().as_millis().to_string());
    set("WATERWHEEL_CONTENT_TYPE", job.content_type.clone());
    set("WATERWHEEL_TENANT", job.tenant.clone());
    let attempt = cx.attempt();
    set("WATERWHEEL_ATTEMPT", attempt.map_or(1, |attempt| attempt.number).to_string());
    set("WATERWHEEL_IDEMPOTENCY_KEY", attempt.map_or_else(String::new, |attempt| attempt.job.clone()));
    set("WATERWHEEL_TOKEN", attempt.map_or_else(String::new, ToString::to_string));
    if let Some(TraceContext { traceparent, tracestate, baggage }) = cx.outgoing_trace() {
        for (name, value) in [("TRACEPARENT", traceparent), ("TRACESTATE", tracestate), ("BAGGAGE", baggage)] {
            if !value.is_empty() {
                set(name, value);
            }
        }
    }
}

fn label_variable(key: &str) -> String {
    let portable = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("WATERWHEEL_LABEL_{}", key.chars().map(portable).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_become_portable_names() {
        assert_eq!(label_variable("a.b-c_1"), "WATERWHEEL_LABEL_A_B_C_1");
    }
}
