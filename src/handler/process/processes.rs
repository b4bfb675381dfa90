//! The processes of one program: their number, their start, their end and their state.

use std::sync::{Arc, OnceLock, atomic::Ordering};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    JobSlot,
    process_set::{ProcessSet, SetState, Supervised},
};
use crate::{
    handler::{
        Context, WorkerProgram,
        external::{External, ExternalStats, Outage, ProgramStats},
    },
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

impl Processes {
    /// A program without processes. The pool sets their number.
    pub fn new(program: WorkerProgram) -> Arc<Self> {
        let kill = CancellationToken::new();
        let (name, state, changed) = (program.name.as_str().into(), Mutex::default(), Notify::new());
        let (tasks, restarts, late) = (OnceLock::new(), Semaphore::new(1), Arc::default());
        let set = Arc::new(ProcessSet { name, program, state, late, changed, kill: kill.clone(), tasks, restarts });
        Arc::new(Self { set, _kill: kill.drop_guard() })
    }

    /// The program.
    pub fn program(&self) -> &WorkerProgram {
        &self.set.program
    }

    /// Sets the number of processes to what `workers` need, each in a task of `tasks`. With no workers, the processes
    /// finish their jobs and leave; a late job still gets one.
    fn resize(&self, tasks: &Tasks, workers: usize) {
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
    pub async fn first_starts_settled(&self) {
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

    /// Waits for a free slot. A suspect first takes all places of a process, and then waits until the other jobs there
    /// have ended.
    pub(super) async fn slot(&self, job: &Job, cx: &Context) -> Result<JobSlot, HandlerError> {
        let mut found: Option<JobSlot> = None;
        let find = || {
            if found.is_none() {
                found = self.set.find(cx)?;
            }
            Ok(found.take_if(|slot| slot.is_free()))
        };
        cx.wait_for(&self.set.changed, job.queue_timeout, find).await
    }
}

impl External for Processes {
    fn fit(&self, tasks: &Tasks, workers: Option<usize>) {
        self.resize(tasks, workers.unwrap_or(0));
    }

    fn outage(&self) -> Option<Outage> {
        let state = self.set.state.lock();
        let is_down = state.supervised.iter().any(|process| process.cannot_start)
            && !state.supervised.iter().any(Supervised::is_ready);
        let next_start = state.supervised.iter().map(|process| process.starts_at).min().filter(|_| is_down)?;
        Some(Outage { cause: state.last_failure.clone(), next_start })
    }

    /// Asks all processes to leave, and starts no more.
    fn close(self: Arc<Self>) -> Option<BoxFuture<'static, ()>> {
        let mut state = self.set.state.lock();
        state.wanted = 0;
        state.wake_all();
        if std::mem::replace(&mut state.is_closing, true) {
            return None;
        }
        drop(state);
        Some(Box::pin(async move { self.set.when(|state| state.supervised.is_empty().then_some(())).await }))
    }

    fn kill(&self) {
        self.set.kill.cancel();
    }

    fn stats(&self) -> ExternalStats {
        let state = self.set.state.lock();
        let mut stats = ProgramStats {
            name: Arc::clone(&self.set.name),
            processes: state.supervised.iter().map(Supervised::stats).collect(),
            starts: state.starts,
            failures: state.failures,
            last_failure: state.last_failure.clone(),
            failed_at: state.failed_at,
            late_messages: self.set.late.load(Ordering::Relaxed),
        };
        drop(state);
        for process in &mut stats.processes {
            process.memory = process.pid.and_then(memory).unwrap_or(0);
        }
        ExternalStats::Program(stats)
    }
}

/// Resident memory of a process in bytes, if known.
pub(super) fn memory(pid: u32) -> Option<u64> {
    let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = pages.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
