//! Starts, feeds, reads, stops and reaps the programs of handlers.
//!
//! A handler decides when a program starts and what its output means. `exec` starts one for each job, and `process`
//! reuses one for many jobs. [`process_group`] explains how a whole process group is stopped and reaped without
//! signalling an unrelated process.

use std::{os::unix::process::ExitStatusExt, path::Path, process::ExitStatus};

use bytes::Bytes;
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe::{Receiver, Sender},
    process::{ChildStderr, ChildStdin, ChildStdout},
};
use tokio_util::sync::CancellationToken;

pub(super) use self::{
    process_group::Process,
    reading::{LineLog, MAX_TAIL, Pipe, Tail, drain},
    start::{Program, check, for_job, for_program},
};
use crate::model::ProgramEnd;

mod process_group;
mod reading;
mod start;
mod workspace;

/// Upper bound of a message, in bytes.
const MAX_MESSAGE: usize = 3 << 10;
/// Longest path of a program in a message, in characters.
const MAX_PROGRAM: usize = 256;

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
            written = stdin.write_all(&payload) => start::note_unread(written),
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
