//! One job in a process.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::timeout;

use super::{
    processes::ProcessSet,
    protocol::{Cancel, Failed, ToWorker},
    session::{Events, JobEvent, Session},
};
use crate::{
    handler::{Context, Runner, StopReason, child::quoting},
    model::{HandlerError, Job, Output, ProgramEnd},
};

/// What a job waits beyond its grace: the pool's stop ladder comes first, and tells its rung.
const SLACK: Duration = Duration::from_millis(500);

/// A place for one job in a process. Dropping it gives it back, and ends the process where its job is not answered.
pub(super) struct Place {
    set: Arc<ProcessSet>,
    session: Arc<Session>,
    /// The job and its events, as long as it is not answered.
    job: Option<(u64, Events)>,
}

impl Place {
    /// Takes a place of a process that has one.
    pub(super) fn take(set: Arc<ProcessSet>, session: Arc<Session>) -> Self {
        session.take_place();
        Self { set, session, job: None }
    }

    /// Sends the job. `None` where the process takes none any more.
    pub(super) fn begin(&mut self, job: &Job, cx: &Context) -> Option<()> {
        self.job = Some(self.session.run(job, cx)?);
        cx.note_runner(Runner::Process(self.session.pid));
        Some(())
    }

    /// Hands the output on until the job is answered, or is to stop.
    pub(super) async fn follow(mut self, cx: &Context) -> Result<Output, HandlerError> {
        loop {
            let event = tokio::select! {
                biased;
                reason = cx.cancelled() => {
                    self.stop(reason.name()).await;
                    return Err(HandlerError::Stopped);
                }
                event = self.next() => event,
            };
            match event {
                Some(JobEvent::Piece(piece)) => {
                    if let Err(error) = cx.write(piece).await {
                        self.stop(cx.cancel_token().reason().map_or("OUTPUT_TOO_LARGE", StopReason::name)).await;
                        return Err(error);
                    }
                }
                Some(JobEvent::Progress { fraction, message }) => cx.progress(fraction, message),
                Some(JobEvent::Done { content_type, last }) => return Ok(Output::typed(last, content_type)),
                Some(JobEvent::Failed(failed)) => return Err(self.refused(failed, cx)),
                None => return Err(self.crashed(cx)),
            }
        }
    }

    /// The next event; `None` where the job is answered, or the process has ended. Cancel safe.
    async fn next(&mut self) -> Option<JobEvent> {
        let (id, events) = self.job.as_mut()?;
        let event = self.session.next(*id, events).await?;
        if event.is_answer() {
            self.job = None;
        }
        Some(event)
    }

    /// Asks the job to stop, and then the process; what is not answered then dies with the place.
    async fn stop(&mut self, reason: &str) {
        let Some((id, _)) = &self.job else { return };
        let program = &self.set.program;
        let (ask, terminate) = (program.ask_grace(), program.terminate_grace());
        let cancel = Cancel { id: id.to_string(), reason: reason.to_owned(), grace_ms: millis(ask) };
        self.session.send(ToWorker::Cancel(cancel), Bytes::new());
        if timeout(ask, self.end()).await.is_err() {
            self.session.terminate();
            let _ = timeout(terminate + SLACK, self.end()).await;
        }
    }

    async fn end(&mut self) {
        while self.next().await.is_some() {}
    }

    fn refused(&self, failed: Failed, cx: &Context) -> HandlerError {
        let told = format!("process {} of program {} answered {}", self.session.pid, self.set.name, failed.code);
        let stderr = self.session.tail().text();
        cx.note_program_end(ProgramEnd { told, stderr, ..ProgramEnd::default() });
        failed.error(format_args!("program {}", self.set.name))
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
        match self.job {
            Some((id, _)) => self.session.forget(id),
            None => drop(self.session.is_silent()),
        }
        self.set.freed(&self.session);
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
