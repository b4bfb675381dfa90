//! One process for each job: payload on its standard input, output from its standard output.

use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{process::ChildStdout, sync::oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    Context, Handler, Runner,
    child::{self, Child, Pipe, Process, Program},
};
use crate::model::{HandlerError, Job, Output};

mod command;
mod judge;
#[cfg(test)]
mod tests;

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

/// Feeds, reads and watches the process until its leader has exited. The exit of the leader ends the job: what the
/// rest of its group holds open, or still does, is not waited for.
async fn run(command: &ExecCommand, child: Child, cx: &Context) -> Result<Output, HandlerError> {
    let Child { mut process, input, stdout, stderr, messages: _ } = child;
    cx.note_runner(Runner::Process(process.pid()));
    let ended = CancellationToken::new();
    let (alarm, alarmed) = oneshot::channel();
    let watch = async {
        let stopped = watch(&mut process, cx, alarmed, command.kill_grace).await;
        ended.cancel();
        stopped
    };
    let (stopped, sent, tail, ()) = tokio::join!(
        watch,
        send_output(stdout, cx, &ended, alarm),
        child::drain(stderr, command.stderr_tail, &ended),
        input.feed(&ended),
    );
    let status = process.reap().map(|status| child::end(&command.program, status, &tail));
    if let Ok(end) = &status {
        cx.note_program_end(end.clone());
    }
    sent?;
    stopped.map_or(Ok(()), Err)?;
    judge::judge(command, status, &tail)?;
    Ok(Output::typed(Bytes::new(), command.content_type.clone()))
}

/// Returns when the leader has exited and everything in its group has been told to die; with an error where it was
/// made to exit.
async fn watch(
    process: &mut Process,
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
        () = process.exited() => None,
        _ = cx.cancelled() => Some(HandlerError::Stopped),
        error = alarm => Some(error),
    };
    match stopped {
        Some(HandlerError::Stopped) => process.stop(grace).await,
        _ => process.kill().await,
    }
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
