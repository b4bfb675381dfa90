//! One process for each job: payload on its standard input, output from its standard output.
//!
//! [`leader`] says how a process and all that it started are stopped and reaped without ever signalling a stranger.

use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use rustix::process::Signal;
use tokio::{
    io::AsyncWriteExt,
    process::{ChildStdin, ChildStdout},
    sync::oneshot,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use self::{
    leader::{ExitWatch, Leader},
    pipe::Pipe,
    start::Process,
};
use super::{Context, Handler};
use crate::model::{HandlerError, Job, Output};

mod command;
mod ending;
mod environment;
mod leader;
mod pipe;
mod start;
mod stderr;
#[cfg(test)]
mod tests;
mod workspace;

pub use command::{ExecCommand, InvalidExecCommand};

/// Runs the operator's program once for each job.
struct Exec {
    command: Arc<ExecCommand>,
}

impl Handler for Exec {
    async fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        if cx.is_cancelled() {
            return Err(HandlerError::Stopped);
        }
        let process = start::start(&self.command, &job, &cx).await?;
        run(&self.command, process, &cx).await
    }
}

/// Feeds, reads and watches the process until its leader has exited. The exit of the leader ends the job: what the
/// rest of its group holds open, or still does, is not waited for.
async fn run(command: &ExecCommand, process: Process, cx: &Context) -> Result<Output, HandlerError> {
    let Process { leader, mut exit, input, stdout, stderr } = process;
    cx.note_program(leader.pid());
    let ended = CancellationToken::new();
    let (alarm, alarmed) = oneshot::channel();
    let watch = async {
        let stopped = watch(&leader, &mut exit, cx, alarmed, command.kill_grace).await;
        ended.cancel();
        stopped
    };
    let (stopped, sent, tail, ()) = tokio::join!(
        watch,
        send_output(Pipe::new(stdout), cx, &ended, alarm),
        stderr::drain(Pipe::new(stderr), command.stderr_tail, &ended),
        feed(input, &ended),
    );
    let status = leader.reap().map(|status| ending::end(command, status, &tail));
    if let Ok(end) = &status {
        cx.note_program_end(end.clone());
    }
    sent?;
    stopped.map_or(Ok(()), Err)?;
    ending::judge(command, status, &tail)?;
    Ok(Output::typed(Bytes::new(), command.content_type.clone()))
}

/// Returns when the leader has exited and everything in its group has been told to die; with an error where it was
/// made to exit.
async fn watch(
    leader: &Leader,
    exit: &mut ExitWatch,
    cx: &Context,
    alarm: oneshot::Receiver<HandlerError>,
    grace: Duration,
) -> Option<HandlerError> {
    let alarm = async {
        match alarm.await {
            Ok(error) => error,
            // The output ended well.
            Err(_) => pending().await,
        }
    };
    let stopped = tokio::select! {
        biased;
        () = exit.wait(leader) => None,
        _ = cx.cancelled() => Some(HandlerError::Stopped),
        error = alarm => Some(error),
    };
    if stopped == Some(HandlerError::Stopped) {
        leader.signal_group(Signal::TERM);
        // The group is killed below, whether the grace sufficed or not.
        let _ = timeout(grace, exit.wait(leader)).await;
    }
    leader.signal_group(Signal::KILL);
    exit.wait(leader).await;
    stopped
}

/// Hands the output on until it ends. Where it cannot go on it raises the alarm, and empties the pipe so that a program
/// that is asked to stop is not stuck in a write.
async fn send_output(
    mut stdout: Pipe<ChildStdout>,
    cx: &Context,
    ended: &CancellationToken,
    alarm: oneshot::Sender<HandlerError>,
) -> Result<(), HandlerError> {
    while let Some(chunk) = stdout.next(ended).await {
        let sent = tokio::select! {
            biased;
            _ = cx.cancelled() => Err(HandlerError::Stopped),
            sent = cx.write(chunk) => sent,
        };
        if let Err(error) = sent {
            // A leader that has exited is not watched any more.
            let _ = alarm.send(error.clone());
            while stdout.next(ended).await.is_some() {}
            return Err(error);
        }
    }
    Ok(())
}

/// Writes the rest of the input, and closes it.
async fn feed(input: Option<(ChildStdin, Bytes)>, ended: &CancellationToken) {
    let Some((mut stdin, payload)) = input else { return };
    tokio::select! {
        biased;
        () = ended.cancelled() => {}
        written = stdin.write_all(&payload) => start::note_unread(written),
    }
}
