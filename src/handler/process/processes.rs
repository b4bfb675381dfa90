//! The processes of one program: their number, their start, their end and their state.

use std::sync::{Arc, OnceLock, atomic::Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    JobSlot,
    process_set::{ProcessSet, SetState, Supervised},
};
use crate::{
    handler::{Context, WorkerProgram},
    model::{HandlerError, Job},
    task::Tasks,
};

/// The processes of one program in one pool. The handlers of all its kinds share them.
///
/// Their number follows the workers of the pool, and is one more while one is replaced. Dropping this kills them.
pub struct Processes {
    set: Arc<ProcessSet>,
    _kill: DropGuard,
}

/// State of a program's processes.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramStats {
    /// Name of the program.
    pub name: Arc<str>,
    /// Its processes.
    pub processes: Vec<ProcessStats>,
    /// Started processes since the start of the server.
    pub starts: u64,
    /// Processes that ended without being asked to leave.
    pub failures: u64,
    /// How the last of these ended; empty if there is none.
    pub last_failure: String,
    /// Messages about jobs that were over, which were dropped.
    pub late_messages: u64,
}

/// One process.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessStats {
    /// State of the process.
    pub state: ProcessState,
    /// Process id; `None` while there is no process.
    pub pid: Option<u32>,
    /// Running jobs.
    pub running: usize,
    /// Answered jobs.
    pub jobs: u64,
    /// Resident memory in bytes; 0 if unknown.
    pub memory: u64,
}

/// State of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessState {
    /// Not ready yet.
    Starting,
    /// Ready, without a job.
    Idle,
    /// Runs jobs.
    Busy,
    /// Accepts no more jobs, and will exit.
    Leaving,
    /// Failed, and restarts after a back-off.
    Failing,
}

impl ProcessState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Starting, Self::Idle, Self::Busy, Self::Leaving, Self::Failing];

    /// Name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Leaving => "leaving",
            Self::Failing => "failing",
        }
    }
}

impl Processes {
    /// A program without processes. The pool sets their number.
    #[must_use]
    pub fn new(program: WorkerProgram) -> Arc<Self> {
        let kill = CancellationToken::new();
        let (name, state, changed) = (program.name.as_str().into(), Mutex::default(), Notify::new());
        let (tasks, restarts, late) = (OnceLock::new(), Semaphore::new(1), Arc::default());
        let set = Arc::new(ProcessSet { name, program, state, late, changed, kill: kill.clone(), tasks, restarts });
        Arc::new(Self { set, _kill: kill.drop_guard() })
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &WorkerProgram {
        &self.set.program
    }

    /// Sets the number of processes to what `workers` need, each in a task of `tasks`. With no workers, the processes
    /// finish their jobs and leave; a late job still gets one.
    pub fn resize(&self, tasks: &Tasks, workers: usize) {
        let _ = self.set.tasks.set(tasks.clone());
        let mut state = self.set.state.lock();
        if state.is_closing {
            return;
        }
        state.wanted = workers.div_ceil(self.set.program.jobs_per_process.max(1));
        let missing = state.wanted.saturating_sub(state.supervised.len());
        let added: Vec<_> = (0..missing).map(|_| self.set.add(&mut state)).collect();
        state.wake_all();
        drop(state);
        self.set.spawn(added);
    }

    /// Returns when each process was ready once, or has failed. If the program is required, one was ready. Cancel safe.
    pub async fn tried(&self) {
        let is_required = self.set.program.required;
        let is_tried = |state: &SetState| {
            let all = &state.supervised;
            all.iter().all(|process| process.was_tried) && !(is_required && all.iter().all(|it| it.cannot_start))
        };
        self.set.when(|state| is_tried(state).then_some(())).await;
    }

    /// Starts a process that shows whether the program can start. Returns when it is ready.
    ///
    /// # Errors
    /// How it failed.
    pub async fn try_start(&self, tasks: &Tasks) -> Result<(), String> {
        self.resize(tasks, 1);
        self.set.when(SetState::first_start).await
    }

    /// Replaces the processes one after the other. Each leaves when a new one is ready. Returns when the first new
    /// process is ready.
    ///
    /// # Errors
    /// How the first new process failed. Then the old ones stay.
    pub async fn restart(&self) -> Result<(), String> {
        let _turn = self.set.restarts.acquire().await;
        self.set.state.lock().supervised.iter_mut().for_each(|process| process.is_old = true);
        self.set.renew();
        let started = self.set.when(SetState::first_start).await;
        if started.is_err() {
            // The old processes stay, and the new one leaves.
            let mut state = self.set.state.lock();
            state.supervised.iter_mut().for_each(|process| process.is_old = !process.is_old);
            state.wake_all();
        }
        started
    }

    /// Whether no process is ready, because the last start failed.
    #[must_use]
    pub fn is_down(&self) -> bool {
        let state = self.set.state.lock();
        state.supervised.iter().any(|process| process.cannot_start)
            && !state.supervised.iter().any(Supervised::is_ready)
    }

    /// Asks all processes to leave, and starts no more. Returns whether this was the first call.
    pub fn close(&self) -> bool {
        let mut state = self.set.state.lock();
        state.wanted = 0;
        state.wake_all();
        !std::mem::replace(&mut state.is_closing, true)
    }

    /// Returns when no process is left. Cancel safe.
    pub async fn gone(&self) {
        self.set.when(|state| state.supervised.is_empty().then_some(())).await;
    }

    /// Kills all processes at once.
    pub fn kill(&self) {
        self.set.kill.cancel();
    }

    /// A snapshot.
    #[must_use]
    pub fn stats(&self) -> ProgramStats {
        let state = self.set.state.lock();
        let mut stats = ProgramStats {
            name: Arc::clone(&self.set.name),
            processes: state.supervised.iter().map(Supervised::stats).collect(),
            starts: state.starts,
            failures: state.failures,
            last_failure: state.last_failure.clone(),
            late_messages: self.set.late.load(Ordering::Relaxed),
        };
        drop(state);
        for process in &mut stats.processes {
            process.memory = process.pid.and_then(memory).unwrap_or(0);
        }
        stats
    }

    /// Waits for a free slot. A suspect first takes all places of a process, and then waits until the other jobs there
    /// have ended.
    pub(super) async fn slot(&self, job: &Job, cx: &Context) -> Result<JobSlot, HandlerError> {
        let mut found = None;
        loop {
            let changed = self.set.changed.notified();
            found = found.map_or_else(|| self.set.find(cx), |slot| Ok(Some(slot)))?;
            if let Some(slot) = found.take_if(|slot| slot.is_free()) {
                if cx.waited().is_none() {
                    cx.goes_on();
                }
                return Ok(slot);
            }
            cx.waits(job.queue_timeout);
            tokio::select! {
                biased;
                _ = cx.cancelled() => return Err(HandlerError::Stopped),
                () = changed => {}
            }
        }
    }
}

/// Resident memory of a process in bytes, if known.
pub(super) fn memory(pid: u32) -> Option<u64> {
    let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = pages.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
