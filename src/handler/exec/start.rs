use std::{collections::BTreeMap, io, path::Path, process::Stdio, sync::Arc};

use rustix::fs::{Access, access};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};

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
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

/// Starts the program of `command` for `job`.
///
/// The making of a process holds up its thread until the program is loaded, about a millisecond and more from a cold
/// disk, so that it is not done on a serving thread. It is shielded: where the future is dropped meanwhile, the process
/// dies with its [`Leader`] as soon as it is made, and the job's tasks do not end before.
pub(super) async fn start(command: &Arc<ExecCommand>, job: &Job, cx: &Context) -> Result<Process, HandlerError> {
    let variables = environment(command, job, cx);
    let (command, tasks, id) = (Arc::clone(command), cx.tasks().clone(), cx.job());
    let started = cx.shield(off_thread(move || spawn(&command, variables, tasks, id))).await?;
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
    variables: BTreeMap<String, String>,
    tasks: Tasks,
    job: JobId,
) -> Result<Process, HandlerError> {
    let workspace = workspace::create().map_err(|fault| {
        unavailable(format!("cannot make a directory for the job: {fault}; make room there or point TMPDIR elsewhere"))
    })?;
    let directory = workspace.path();
    let child = Command::new(&command.program)
        .args(&command.args)
        .env_clear()
        .envs([("HOME", directory), ("TMPDIR", directory)])
        .envs(variables)
        .current_dir(directory)
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|fault| unavailable(cannot_start(&command.program, &fault)))?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let leader = Leader::new(child, workspace, tasks, job);
    let exit = ExitWatch::new(&leader)
        .map_err(|fault| crashed(format!("cannot watch the program: {fault}; raise the limit on open files")))?;
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { unreachable!("all three pipes were asked for") };
    Ok(Process { leader, exit, stdin, stdout, stderr })
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
