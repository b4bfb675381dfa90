//! One process for each job: payload on its standard input, output from its standard output.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{process::ChildStdout, sync::SetOnce};
use tokio_util::sync::CancellationToken;

use super::{
    Context, ExecCommand, Handler, Runner,
    child::{self, Child, Pipe, Process, Program, Tail, quoting, shown},
};
use crate::model::{FailureCode, HandlerError, Job, Output, ProgramEnd};

/// Runs the operator's program once for each job.
pub(super) struct Exec {
    pub(super) command: Arc<ExecCommand>,
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
            let failure = u8::try_from(code).ok().map_or(FailureCode::Unknown, |code| failure_code(command, code));
            Err(HandlerError::new(failure, quoting(summary, tail, command.stderr_tail)))
        }
        None => {
            let hint = if signal == Some(9) { ", which the kernel sends when memory runs out" } else { "" };
            Err(HandlerError::Crashed { message: quoting(summary + hint, tail, command.stderr_tail) })
        }
    }
}

fn failure_code(command: &ExecCommand, code: u8) -> FailureCode {
    command.exit_codes.get(&code).copied().unwrap_or(match code {
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
