//! Programs that handlers run: how one is started, fed, read, stopped and reaped.
//!
//! A handler decides when a program starts and what its output means: `exec` starts one for each job, and `process` one
//! for many. [`leader`] says how
//! a process and all that it started are stopped and reaped without ever signalling a stranger.

use std::{io, process::ExitStatus, time::Duration};

use bytes::Bytes;
use rustix::process::Signal;
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe::{Receiver, Sender},
    process::{ChildStderr, ChildStdin, ChildStdout},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use self::leader::{ExitWatch, Leader};
pub(super) use self::{
    end::{end, quoting, shown},
    environment::{for_job, for_program},
    pipe::Pipe,
    start::{Program, check},
    stderr::{LineLog, MAX_TAIL, Tail, drain},
};

mod end;
mod environment;
mod leader;
mod pipe;
mod start;
mod stderr;
#[cfg(test)]
mod tests;
mod workspace;

/// A program that runs, and its pipes.
pub(super) struct Child {
    pub(super) process: Process,
    pub(super) input: Input,
    pub(super) stdout: Pipe<ChildStdout>,
    pub(super) stderr: Pipe<ChildStderr>,
    /// Where it was asked for.
    pub(super) messages: Option<MessagePipes>,
}

/// The pipes of a program that takes messages from its descriptor 3 and sends them to 4.
pub(super) struct MessagePipes {
    pub(super) input: Sender,
    pub(super) output: Pipe<Receiver>,
}

/// The process of a program. Dropping it kills and reaps the process and its whole group.
#[derive(Debug)]
pub(super) struct Process {
    leader: Leader,
    exit: ExitWatch,
}

/// What is not written yet of a program's standard input, and where it goes.
pub(super) struct Input(Option<(ChildStdin, Bytes)>);

impl Process {
    fn new(leader: Leader) -> io::Result<Self> {
        Ok(Self { exit: ExitWatch::new(&leader)?, leader })
    }

    pub(super) fn pid(&self) -> u32 {
        self.leader.pid()
    }

    /// Returns when the process has exited, which leaves it to be reaped. Cancel safe.
    pub(super) async fn exited(&mut self) {
        self.exit.wait(&self.leader).await;
    }

    /// Asks the group to end.
    pub(super) fn ask(&self) {
        self.leader.signal_group(Signal::TERM);
    }

    /// The stop ladder: asks the group to end, waits for `grace`, and kills what is left.
    pub(super) async fn stop(&mut self, grace: Duration) {
        self.ask();
        // The group is killed below, whether the grace sufficed or not.
        let _ = timeout(grace, self.exited()).await;
        self.kill().await;
    }

    /// Kills the group, and waits for the exit of the process.
    pub(super) async fn kill(&mut self) {
        self.leader.signal_group(Signal::KILL);
        self.exited().await;
    }

    /// Reaps the process, which must have exited.
    pub(super) fn reap(self) -> io::Result<ExitStatus> {
        self.leader.reap()
    }
}

impl Input {
    /// Writes the rest, and closes the pipe; gives up when the program has `ended`.
    pub(super) async fn feed(self, ended: &CancellationToken) {
        let Some((mut stdin, payload)) = self.0 else { return };
        tokio::select! {
            biased;
            () = ended.cancelled() => {}
            written = stdin.write_all(&payload) => start::note_unread(written),
        }
    }
}
