//! Starts a program: its command, pipes, directory and process group.

#[expect(clippy::disallowed_types, reason = "its children are reaped by their leader, and watched by it alone")]
use std::process::Command;
use std::{
    collections::BTreeMap,
    io::{self, PipeReader, PipeWriter, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{self, Stdio},
};

use bytes::Bytes;
use command_fds::{CommandFdExt, FdMapping};
use rustix::fs::{Access, access};
use tempfile::TempDir;
use tokio::{
    net::unix::pipe,
    process::{ChildStderr, ChildStdin, ChildStdout},
};
use tracing::Instrument;

use super::{Child, Input, Leader, MessagePipes, Pipe, Process, shown, workspace};
use crate::{
    model::{HandlerError, JobId},
    task::{Tasks, off_thread},
};

/// Most bytes that an empty pipe takes at once, however little room the system has left for pipes.
const AT_ONCE: usize = 4096;

/// A program, and what it gets. It inherits nothing else of the server's.
pub(in crate::handler) struct Program {
    /// Absolute path.
    pub(in crate::handler) path: PathBuf,
    /// Arguments, without the program's name.
    pub(in crate::handler) args: Vec<String>,
    /// All its variables, but for those that its directory decides.
    pub(in crate::handler) variables: BTreeMap<String, String>,
    /// Where it runs. Without a directory or a workspace, in `/`.
    pub(in crate::handler) directory: Option<PathBuf>,
    /// Whether it gets an empty directory of its own, which is removed after its end.
    pub(in crate::handler) workspace: bool,
    /// Its whole standard input, which is `/dev/null` where this is empty.
    pub(in crate::handler) input: Bytes,
    /// Whether its descriptors 3 and 4 are for messages. It has no others beside the standard ones.
    pub(in crate::handler) messages: bool,
}

impl Program {
    /// Starts the program as the leader of a process group of its own.
    ///
    /// The making of a process holds up its thread until the program is loaded, about a millisecond and more from a cold
    /// disk, so that it is not done on a serving thread. It is shielded: where the future is dropped meanwhile, the
    /// process dies with its [`Leader`] as soon as it is made, and `tasks` do not end before.
    pub(in crate::handler) async fn start(self, tasks: &Tasks, job: Option<JobId>) -> Result<Child, HandlerError> {
        let own = tasks.clone();
        let started = tasks.shield(off_thread(move || self.spawn(own, job)).in_current_span()).await;
        let gone = || unavailable("the server goes away; the program was not started".into());
        started.and_then(Result::ok).unwrap_or_else(|| Err(gone()))
    }

    fn spawn(self, tasks: Tasks, job: Option<JobId>) -> Result<Child, HandlerError> {
        let Self { path, args, variables, directory, workspace, input, messages } = self;
        let workspace = workspace.then(workspace::create).transpose().map_err(|fault| {
            // The fault itself names a directory that no second job asks for.
            let kind = fault.kind();
            unavailable(format!(
                "cannot make a directory for the job: {kind}; make room there or point TMPDIR elsewhere"
            ))
        })?;
        let own = workspace.as_ref().map(TempDir::path);
        // Without messages nothing needs code between fork and exec, so that the library spawns without a copy of the page
        // tables.
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
        let leader = Leader::new(child, workspace, tasks, job);
        watched(leader, input, pipes, messages).map_err(|fault| HandlerError::Crashed {
            message: format!("cannot watch the program: {fault}; raise the limit on open files"),
        })
    }
}

/// Whether there is a program that can be started, as far as its file tells.
pub(in crate::handler) fn check(program: &Path) -> Result<(), HandlerError> {
    let found = std::fs::metadata(program).and_then(|file| match file.is_file() {
        true => Ok(access(program, Access::EXEC_OK)?),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    });
    found.map_err(|fault| unavailable(cannot_start(program, &fault)))
}

/// Gives the program pipes as its descriptors 3 and 4; returns our ends. The other ones go with `command`.
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

/// Watches the ends of a process, with what the system does not take at once of its input still to be written.
fn watched(
    leader: Leader,
    input: Bytes,
    pipes: Pipes,
    messages: Option<(PipeWriter, PipeReader)>,
) -> io::Result<Child> {
    let process = Process::new(leader)?;
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
        let (input, output) =
            (pipe::Sender::from_owned_fd(input.into())?, pipe::Receiver::from_owned_fd(output.into())?);
        io::Result::Ok(MessagePipes { input, output: Pipe::new(output) })
    });
    let (stdout, stderr) = (ChildStdout::from_std(stdout)?, ChildStderr::from_std(stderr)?);
    let (stdout, stderr, messages) = (Pipe::new(stdout), Pipe::new(stderr), messages.transpose()?);
    Ok(Child { process, input: Input(input), stdout, stderr, messages })
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
