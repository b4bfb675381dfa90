#[expect(clippy::disallowed_types, reason = "its children are reaped by their leader, and watched by it alone")]
use std::process::Command;
use std::{
    collections::BTreeMap,
    io::{self, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{self, Stdio},
    sync::Arc,
};

use bytes::Bytes;
use rustix::fs::{Access, access};
use tempfile::TempDir;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};

use super::{
    ExecCommand,
    environment::environment,
    leader::{ExitWatch, Leader},
    workspace,
};
use crate::{
    handler::Context,
    model::{HandlerError, Job, JobId},
    task::{Tasks, off_thread},
};

/// A program that runs.
pub(super) struct Process {
    pub(super) leader: Leader,
    pub(super) exit: ExitWatch,
    /// What is not written yet of the payload, and where it goes.
    pub(super) input: Option<(ChildStdin, Bytes)>,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

/// Most bytes that an empty pipe takes at once, however little room the system has left for pipes.
const AT_ONCE: usize = 4096;

/// Starts the program of `command` for `job`.
///
/// The making of a process holds up its thread until the program is loaded, about a millisecond and more from a cold
/// disk, so that it is not done on a serving thread. It is shielded: where the future is dropped meanwhile, the process
/// dies with its [`Leader`] as soon as it is made, and the job's tasks do not end before.
pub(super) async fn start(command: &Arc<ExecCommand>, job: &Job, cx: &Context) -> Result<Process, HandlerError> {
    let variables = environment(command, job, cx);
    let (command, payload, tasks, id) = (Arc::clone(command), job.payload.clone(), cx.tasks().clone(), cx.job());
    let started = cx.shield(off_thread(move || spawn(&command, payload, variables, tasks, id))).await?;
    started.unwrap_or_else(|_| Err(unavailable("the server goes away; the program was not started".into())))
}

/// Whether there is a program that can be started, as far as its file tells.
pub(super) fn check(command: &ExecCommand) -> Result<(), HandlerError> {
    let program = &command.program;
    let found = std::fs::metadata(program).and_then(|file| match file.is_file() {
        true => Ok(access(program, Access::EXEC_OK)?),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    });
    found.map_err(|fault| unavailable(cannot_start(program, &fault)))
}

fn spawn(
    command: &ExecCommand,
    payload: Bytes,
    variables: BTreeMap<String, String>,
    tasks: Tasks,
    job: JobId,
) -> Result<Process, HandlerError> {
    let workspace = command.workspace.then(workspace::create).transpose().map_err(|fault| {
        // The fault itself names a directory that no second job asks for.
        let kind = fault.kind();
        unavailable(format!("cannot make a directory for the job: {kind}; make room there or point TMPDIR elsewhere"))
    })?;
    let own = workspace.as_ref().map(TempDir::path);
    // Nothing here needs code between fork and exec, so that the library spawns without a copy of the page tables.
    #[expect(clippy::disallowed_types, reason = "its children are reaped by their leader, and watched by it alone")]
    let child = Command::new(&command.program)
        .args(&command.args)
        .env_clear()
        .envs(own.iter().flat_map(|own| [("HOME", own), ("TMPDIR", own)]))
        .envs(variables)
        .current_dir(own.unwrap_or(Path::new("/")))
        .process_group(0)
        .stdin(if payload.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|fault| unavailable(cannot_start(&command.program, &fault)))?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let leader = Leader::new(child, workspace, tasks, job);
    watched(leader, payload, pipes)
        .map_err(|fault| crashed(format!("cannot watch the program: {fault}; raise the limit on open files")))
}

type Pipes = (Option<process::ChildStdin>, Option<process::ChildStdout>, Option<process::ChildStderr>);

/// Watches the ends of a process, with what the system does not take at once of its input still to be written.
fn watched(leader: Leader, payload: Bytes, pipes: Pipes) -> io::Result<Process> {
    let exit = ExitWatch::new(&leader)?;
    let (stdin, Some(stdout), Some(stderr)) = pipes else { unreachable!("both pipes were asked for") };
    let input = match stdin {
        Some(mut stdin) if payload.len() <= AT_ONCE => {
            note_unread(stdin.write_all(&payload));
            None
        }
        Some(stdin) => Some((ChildStdin::from_std(stdin)?, payload)),
        None => None,
    };
    let (stdout, stderr) = (ChildStdout::from_std(stdout)?, ChildStderr::from_std(stderr)?);
    Ok(Process { leader, exit, input, stdout, stderr })
}

/// A program may close its input before it read everything, or exit without a look at it: only its exit code tells
/// whether that was a failure.
pub(super) fn note_unread(written: io::Result<()>) {
    if let Err(fault) = written {
        tracing::debug!(%fault, "the program did not read all of its input");
    }
}

fn unavailable(message: String) -> HandlerError {
    HandlerError::Unavailable { message }
}

fn crashed(message: String) -> HandlerError {
    HandlerError::Crashed { message }
}

fn cannot_start(program: &Path, fault: &io::Error) -> String {
    let advice = match fault.kind() {
        io::ErrorKind::NotFound => "install it, or the interpreter that its first line names",
        io::ErrorKind::PermissionDenied => "make it executable for the server's user, on a mount without noexec",
        io::ErrorKind::ArgumentListTooLong => "give it fewer or shorter arguments and variables",
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => "raise the limit on processes, or lower the workers",
        _ => "run it by hand on the server to see why",
    };
    // A path is at most 4 KiB, more than a message can hold.
    let program: String = program.display().to_string().chars().take(256).collect();
    format!("cannot start {program}: {fault}; {advice}")
}
