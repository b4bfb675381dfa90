//! Handlers of programs that keep running: one process runs many jobs, in any language.
//!
//! [`WorkerProgram`] describes the program. The handlers of all its kinds in one pool share its
//! [`Processes`], each with slots for one or more jobs. One task (`supervise`) starts each process, and restarts it
//! after its exit; a [`session`] is one life of it. They speak the [`protocol`](super::protocol). A handler takes a
//! [`JobSlot`]. It writes its job to the pipe of the process and reads the answer, both on its own thread: no message
//! crosses threads.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::time::timeout;

use self::{
    process_set::ProcessSet,
    session::{Events, Session, SessionEnd},
};
use super::{
    Context, ExecCommand, Handler, InvalidExecCommand, Kind, Runner,
    child::{self, Program, quoting},
    protocol::{Failed, ToWorker},
    worker_job::{JobEvent, WorkerJob, follow},
};
use crate::model::{HandlerError, Job, Output, ProgramEnd};

mod pipes;
mod process_set;
mod processes;
mod session;
mod supervise;

pub use processes::Processes;

/// Time that a job waits beyond its grace, so that the pool's stop ladder acts first and reports its rung.
const SLACK: Duration = Duration::from_millis(500);

/// A program that keeps running and runs many jobs. It speaks the protocol of `docs/workers.md`.
///
/// The program starts without a shell, as the leader of its own process group. Standard input is `/dev/null`; standard
/// output and standard error go to the log. It reads messages from descriptor 3 and writes messages to descriptor 4. It
/// inherits no other descriptors. Its variables are `PATH=/usr/local/bin:/usr/bin:/bin`, `LANG=C.UTF-8` and those of
/// [`env`](Self::env), and no others.
///
/// `Debug` shows the names of the variables, not their values.
#[derive(Clone, PartialEq, Eq)]
pub struct WorkerProgram {
    /// Name in logs and metrics.
    pub name: String,
    /// Absolute path of the program.
    pub path: PathBuf,
    /// Its arguments, without the program's name.
    pub args: Vec<String>,
    /// Working directory. Default `/`.
    pub directory: Option<PathBuf>,
    /// Additional variables.
    pub env: BTreeMap<String, String>,
    /// Kinds that the program must run. A process that does not announce all of them when it is ready is not used.
    pub kinds: BTreeSet<String>,
    /// Jobs that one process runs at the same time. Default 1.
    pub jobs_per_process: usize,
    /// Time limit from the start of a process until it is ready. Default 10 s.
    pub start_timeout: Duration,
    /// Whether the server is ready only once a process of it was ready. Default false: also if all have failed.
    pub required: bool,
    /// When a process is replaced by a new one. Default never.
    pub recycle: Recycle,
    /// Maximum bytes of its output that a failure quotes. Default 2 KiB, at most 3 KiB.
    pub stderr_tail: usize,
    /// Time between asking a job to stop and killing its process, and for a process to leave. Default 1 s.
    pub cancel_grace: Duration,
}

/// Limits after which a process is replaced. It runs jobs until its successor is ready, and processes are replaced one
/// after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
pub struct Recycle {
    /// Largest number of jobs.
    pub jobs: Option<u64>,
    /// Longest time since its start.
    pub age: Option<Duration>,
    /// Largest resident memory of the process itself, in bytes. It is read after each job.
    pub memory: Option<u64>,
}

impl Recycle {
    /// The limits of one process: `percent` of the configured ones, so that processes of the same age are not all due
    /// at once. The memory of processes differs by itself.
    fn spread(&self, percent: u32) -> Self {
        let jobs = self.jobs.map(|jobs| jobs.saturating_mul(percent.into()).div_ceil(100));
        let age = self.age.map(|age| age.mul_f64(f64::from(percent) / 100.0));
        Self { jobs, age, memory: self.memory }
    }
}

impl WorkerProgram {
    /// A program at `path` with `args` for `kinds`, and defaults for the rest.
    pub fn new(
        name: impl Into<String>,
        path: impl Into<PathBuf>,
        args: impl IntoIterator<Item = String>,
        kinds: impl IntoIterator<Item = String>,
    ) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            args: args.into_iter().collect(),
            directory: None,
            env: BTreeMap::new(),
            kinds: kinds.into_iter().collect(),
            jobs_per_process: 1,
            start_timeout: Duration::from_secs(10),
            required: false,
            recycle: Recycle::default(),
            stderr_tail: 2 << 10,
            cancel_grace: Duration::from_secs(1),
        }
    }

    /// All faults of the command; empty for a valid one.
    pub fn faults(&self) -> Vec<InvalidExecCommand> {
        let (env, stderr_tail) = (self.env.clone(), self.stderr_tail);
        ExecCommand { env, stderr_tail, ..ExecCommand::new(&self.path, self.args.clone()) }.faults()
    }

    /// The program to start.
    fn command(&self) -> Program {
        Program {
            path: self.path.clone(),
            args: self.args.clone(),
            variables: child::for_program(&self.env),
            directory: self.directory.clone(),
            workspace: false,
            input: Bytes::new(),
            messages: true,
        }
    }

    /// The last part of the grace, between SIGTERM to the process group and SIGKILL.
    fn terminate_grace(&self) -> Duration {
        (self.cancel_grace / 4).min(Duration::from_millis(500))
    }

    /// The first part of the grace, in which a worker may comply by itself.
    fn ask_grace(&self) -> Duration {
        self.cancel_grace - self.terminate_grace()
    }
}

impl fmt::Debug for WorkerProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, path, args, env, .. } = self;
        let mut shown = f.debug_struct("WorkerProgram");
        shown.field("name", name).field("path", path).field("args", args).field("env", &env.keys());
        shown.finish_non_exhaustive()
    }
}

/// Sends each job to a process with a free slot.
struct WorkerHandler {
    processes: Arc<Processes>,
}

impl Handler for WorkerHandler {
    async fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        loop {
            let mut slot = self.processes.slot(&job, &cx).await?;
            // A process that has just ended accepts no job.
            if slot.begin(&job, &cx) {
                drop(job);
                return follow(slot, &cx).await;
            }
        }
    }
}

impl Processes {
    /// A kind called `name` whose jobs these processes run.
    pub fn kind(self: &Arc<Self>, name: &str) -> Kind {
        let processes = Arc::clone(self);
        let mut kind = Kind::new(name, move || WorkerHandler { processes: Arc::clone(&processes) });
        kind.options.cancel_grace = Some(self.program().cancel_grace);
        kind.run_by(Arc::clone(self))
    }
}

/// A place for one job in a process. Dropping it frees the place, and ends the process if the job has no answer yet.
struct JobSlot {
    set: Arc<ProcessSet>,
    session: Arc<Session>,
    /// Occupied places: one, or all of a process for a job that must run alone.
    places: usize,
    /// The job and its events; `None` once the job is answered.
    job: Option<(u64, Events)>,
}

impl JobSlot {
    /// Takes `places` of a process; no other job may take more of them meanwhile if these are all.
    fn take(set: Arc<ProcessSet>, session: Arc<Session>, places: usize) -> Self {
        session.take_places(places);
        Self { set, session, places, job: None }
    }

    /// Whether the job may begin: if it must run alone, no other job is left.
    fn is_free(&self) -> bool {
        self.places == 1 || self.session.taken() == self.places || self.session.is_closed()
    }

    /// Sends the job. Returns `false` if the process accepts no more jobs.
    fn begin(&mut self, job: &Job, cx: &Context) -> bool {
        self.job = self.session.run(job, cx);
        if self.job.is_some() {
            cx.note_runner(Runner::Process(self.session.pid));
        }
        self.job.is_some()
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
    async fn stop(&mut self, reason: &str, cx: &Context) {
        let Some((id, _)) = &self.job else { return };
        // Until it has stopped, no other job begins in a process that may be killed with it.
        self.session.take_places(self.session.places);
        self.places += self.session.places;
        let program = &self.set.program;
        let (ask, terminate) = (program.ask_grace(), program.terminate_grace());
        self.session.send(ToWorker::cancel(*id, reason, ask), Bytes::new());
        if timeout(ask, self.end()).await.is_err() {
            if let Some(blocked) = self.session.blocked() {
                let summary = format!("process {} of program {}: {blocked}", self.session.pid, self.set.name);
                cx.note_program_end(ProgramEnd { summary, ..ProgramEnd::default() });
            }
            self.session.terminate();
            let _ = timeout(terminate + SLACK, self.end()).await;
        }
    }

    /// Nothing to send: the full pipe already slows the process down.
    fn passed_on(&self) {}

    fn failed(&self, failed: Failed, cx: &Context) -> HandlerError {
        let (pid, name, code) = (self.session.pid, &self.set.name, failed.code_name());
        let error = failed.error(format_args!("program {name}")).bounded();
        // With several slots, the lines may be about other jobs.
        let stderr =
            if self.set.program.jobs_per_process == 1 { self.session.tail.lock().text() } else { String::new() };
        let summary = format!("process {pid} of program {name} answered {code}: {error}");
        cx.note_program_end(ProgramEnd { summary, stderr, ..ProgramEnd::default() });
        error
    }

    fn lost(&self, cx: &Context) -> HandlerError {
        let Some(SessionEnd { program, was_shared }) = self.session.end.get() else {
            return HandlerError::Crashed { message: format!("program {} ended with the server", self.set.name) };
        };
        cx.note_program_end(program.clone());
        if *was_shared {
            cx.note_shared_crash();
        }
        let message = quoting(program.summary.clone(), &self.session.tail.lock(), self.set.program.stderr_tail);
        HandlerError::Crashed { message }
    }
}

impl Drop for JobSlot {
    fn drop(&mut self) {
        match self.job {
            Some((id, _)) => self.session.forget(id),
            // What the process sends without a job ends it.
            None => drop(self.session.is_silent()),
        }
        self.set.freed(&self.session, self.places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_due_a_little_earlier_than_others() {
        let age = Duration::from_secs(100);
        let recycle = Recycle { jobs: Some(1000), age: Some(age), memory: Some(7) };
        assert_eq!(recycle.spread(100), recycle);
        let early = Recycle { jobs: Some(800), age: Some(age.mul_f64(0.8)), memory: Some(7) };
        assert_eq!(recycle.spread(80), early);
        assert_eq!(Recycle { jobs: Some(1), ..Recycle::default() }.spread(80).jobs, Some(1));
    }
}
