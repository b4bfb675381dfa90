//! Handlers of programs that keep running: one process runs many jobs, in any language.
//!
//! [`WorkerProgram`](super::WorkerProgram) describes the program. The handlers of all its kinds in one pool share its
//! [`Processes`], each with slots for one or more jobs. One task (`supervise`) starts each process, and restarts it after
//! its exit; a [`session`] is one life of it. They speak the [`protocol`](super::protocol). A handler takes a
//! [`JobSlot`]. It writes its job to the pipe of the process and reads the answer, both on its own thread: no message
//! crosses threads.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::timeout;

use self::{
    processes::ProcessSet,
    session::{Events, Session},
};
use super::{
    Context, Handler, Kind, Runner,
    child::quoting,
    protocol::{Failed, ToWorker},
    worker_job::{JobEvent, WorkerJob, follow},
};
use crate::model::{HandlerError, Job, Output, ProgramEnd};

mod pipes;
mod processes;
mod session;
mod supervise;

pub use processes::{ProcessState, ProcessStats, Processes, ProgramStats};

/// Time that a job waits beyond its grace, so that the pool's stop ladder acts first and reports its rung.
const SLACK: Duration = Duration::from_millis(500);

/// Sends each job to a process with a free slot.
struct WorkerHandler {
    processes: Arc<Processes>,
}

impl Handler for WorkerHandler {
    async fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        loop {
            let mut slot = self.processes.slot(&cx).await?;
            // A process that has just ended accepts no job.
            if slot.begin(&job, &cx).is_some() {
                drop(job);
                return follow(slot, &cx).await;
            }
        }
    }
}

impl Processes {
    /// A kind called `name` whose jobs these processes run.
    #[must_use]
    pub fn kind(self: &Arc<Self>, name: &str) -> Kind {
        let processes = Arc::clone(self);
        Kind::new(name, move || WorkerHandler { processes: Arc::clone(&processes) }).run_by(Arc::clone(self))
    }
}

/// A slot for one job in a process. Dropping it frees the slot, and ends the process if the job has no answer yet.
struct JobSlot {
    set: Arc<ProcessSet>,
    session: Arc<Session>,
    /// The job and its events; `None` once the job is answered.
    job: Option<(u64, Events)>,
}

impl JobSlot {
    /// Takes a free slot of a process.
    fn take(set: Arc<ProcessSet>, session: Arc<Session>) -> Self {
        session.take_slot();
        Self { set, session, job: None }
    }

    /// Sends the job. `None` if the process accepts no more jobs.
    fn begin(&mut self, job: &Job, cx: &Context) -> Option<()> {
        self.job = Some(self.session.run(job, cx)?);
        cx.note_runner(Runner::Process(self.session.pid));
        Some(())
    }

    async fn end(&mut self) {
        while self.next().await.is_some() {}
    }
}

impl WorkerJob for JobSlot {
    async fn next(&mut self) -> Option<JobEvent> {
        let (id, events) = self.job.as_mut()?;
        let event = self.session.next(*id, events).await?;
        if event.is_answer() {
            self.job = None;
        }
        Some(event)
    }

    /// Asks the job to stop, then the process. Dropping the slot afterwards ends a job that is still not answered.
    async fn stop(&mut self, reason: &str, _cx: &Context) {
        let Some((id, _)) = &self.job else { return };
        let program = &self.set.program;
        let (ask, terminate) = (program.ask_grace(), program.terminate_grace());
        self.session.send(ToWorker::cancel(*id, reason, ask), Bytes::new());
        if timeout(ask, self.end()).await.is_err() {
            self.session.terminate();
            let _ = timeout(terminate + SLACK, self.end()).await;
        }
    }

    /// Nothing to send: the full pipe already slows the process down.
    fn passed_on(&self) {}

    fn failed(&self, failed: Failed, cx: &Context) -> HandlerError {
        let summary = format!("process {} of program {} answered {}", self.session.pid, self.set.name, failed.code);
        let stderr = self.session.tail().text();
        cx.note_program_end(ProgramEnd { summary, stderr, ..ProgramEnd::default() });
        failed.error(format_args!("program {}", self.set.name))
    }

    fn lost(&self, cx: &Context) -> HandlerError {
        let Some(end) = self.session.end.get() else {
            return HandlerError::Crashed { message: format!("program {} ended with the server", self.set.name) };
        };
        cx.note_program_end(end.clone());
        let message = quoting(end.summary.clone(), &self.session.tail(), self.set.program.stderr_tail);
        HandlerError::Crashed { message }
    }
}

impl Drop for JobSlot {
    fn drop(&mut self) {
        match self.job {
            Some((id, _)) => self.session.forget(id),
            None => drop(self.session.is_silent()),
        }
        self.set.freed(&self.session);
    }
}
