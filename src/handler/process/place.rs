//! One job in a process.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::mpsc, time::timeout};

use super::{
    processes::ProcessSet,
    protocol::{Cancel, Run, ToWorker, parts},
    session::{JobEvent, Session},
};
use crate::{
    handler::{Context, StopReason, child::quoting},
    model::{FailureCode, HandlerError, Job, Output, ProgramEnd},
};

/// What a job waits beyond its grace: the pool's stop ladder comes first, and tells its rung.
const SLACK: Duration = Duration::from_millis(500);

/// A place for one job in a process. Dropping it gives it back, and ends the process where its job is not answered.
pub(super) struct Place {
    set: Arc<ProcessSet>,
    session: Arc<Session>,
    /// The job, as long as it is not answered.
    job: Option<u64>,
}

impl Place {
    /// Takes a place of a process that has one.
    pub(super) fn take(set: Arc<ProcessSet>, session: Arc<Session>) -> Self {
        session.take_place();
        Self { set, session, job: None }
    }

    /// Sends the job, whose events come back. `None` where the process has ended.
    pub(super) fn begin(&mut self, job: &Job, cx: &Context) -> Option<mpsc::Receiver<JobEvent>> {
        let (id, events) = self.session.add(cx)?;
        self.job = Some(id);
        cx.note_program(self.session.pid);
        let run = Run::of(id, job, cx);
        self.session.send(parts(ToWorker::Run(run), job.payload.clone()));
        Some(events)
    }

    /// Hands the output on until the job is answered, or is to stop.
    pub(super) async fn follow(
        mut self,
        mut events: mpsc::Receiver<JobEvent>,
        cx: &Context,
    ) -> Result<Output, HandlerError> {
        loop {
            let event = tokio::select! {
                biased;
                reason = cx.cancelled() => {
                    self.stop(events, told(reason)).await;
                    return Err(HandlerError::Stopped);
                }
                event = events.recv() => event,
            };
            match event {
                Some(JobEvent::Piece(piece)) => {
                    if let Err(error) = cx.write(piece).await {
                        let reason = cx.cancel_token().reason().map_or("OUTPUT_TOO_LARGE", told);
                        self.stop(events, reason).await;
                        return Err(error);
                    }
                }
                Some(JobEvent::Progress { fraction, message }) => cx.progress(fraction, message),
                Some(JobEvent::Done { content_type, last }) => {
                    self.job = None;
                    return Ok(Output::typed(last, content_type));
                }
                Some(JobEvent::Failed { code, message }) => {
                    self.job = None;
                    return Err(self.refused(&code, message, cx));
                }
                None => return Err(self.crashed(cx)),
            }
        }
    }

    /// Asks the job to stop, and then the process; what is not answered then dies with the place.
    async fn stop(&mut self, mut events: mpsc::Receiver<JobEvent>, reason: &str) {
        let Some(id) = self.job else { return };
        let program = &self.set.program;
        let (ask, terminate) = (program.ask_grace(), program.terminate_grace());
        let cancel = Cancel { id: id.to_string(), reason: reason.to_owned(), grace_ms: millis(ask) };
        self.session.send(parts(ToWorker::Cancel(cancel), Bytes::new()));
        let mut answered = async || {
            loop {
                match events.recv().await {
                    Some(JobEvent::Done { .. } | JobEvent::Failed { .. }) => return true,
                    Some(JobEvent::Piece(_) | JobEvent::Progress { .. }) => {}
                    None => return false,
                }
            }
        };
        let is_answered = match timeout(ask, answered()).await {
            Ok(is_answered) => is_answered,
            Err(_) => {
                self.session.terminate();
                timeout(terminate + SLACK, answered()).await.unwrap_or(false)
            }
        };
        if is_answered {
            self.job = None;
        }
    }

    fn refused(&self, code: &str, message: String, cx: &Context) -> HandlerError {
        let known = serde_json::from_value(code.into()).unwrap_or(FailureCode::Unknown);
        let message =
            if message.is_empty() { format!("program {} failed with {code}", self.set.name) } else { message };
        let told = format!("process {} of program {} answered {code}", self.session.pid, self.set.name);
        let stderr = self.session.tail().text();
        cx.note_program_end(ProgramEnd { told, stderr, ..ProgramEnd::default() });
        HandlerError::new(known, message)
    }

    fn crashed(&self, cx: &Context) -> HandlerError {
        let Some(end) = self.session.end() else {
            return HandlerError::Crashed { message: format!("program {} ended with the server", self.set.name) };
        };
        cx.note_program_end(end.clone());
        let message = quoting(end.told.clone(), &self.session.tail(), self.set.program.stderr_tail);
        HandlerError::Crashed { message }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(id) = self.job {
            self.session.forget(id);
        }
        self.set.freed(&self.session);
    }
}

fn told(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Deadline => "DEADLINE",
        StopReason::Caller => "CALLER",
        StopReason::Drain => "DRAIN",
        StopReason::Operator => "OPERATOR",
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
