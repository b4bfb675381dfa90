//! The processes of one program: their number, and which one has a free slot.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{JobSlot, session::Session, supervise::supervise};
use crate::{
    handler::{Context, WorkerProgram},
    model::HandlerError,
    task::Tasks,
};

/// The processes of one program in one pool. The handlers of all its kinds share them.
///
/// Their number follows the workers of the pool, and never exceeds what these need. Dropping this kills them.
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

/// Time after a failure in which no extra process is started for a late job.
const LATE_PAUSE: Duration = Duration::from_secs(1);

/// The state that the handlers and the supervisors of the processes share.
pub(super) struct ProcessSet {
    pub(super) name: Arc<str>,
    pub(super) program: WorkerProgram,
    state: Mutex<SetState>,
    /// Notified when a slot may be free, and when a process has failed.
    changed: Notify,
    /// Kills all processes at once.
    pub(super) kill: CancellationToken,
}

#[derive(Default)]
struct SetState {
    /// Wanted number of processes.
    wanted: usize,
    supervised: Vec<Supervised>,
    next: u64,
    starts: u64,
    failures: u64,
    last_failure: String,
    failed_at: Option<Instant>,
    is_closing: bool,
}

/// A sequence of processes: each exit is followed by a new process.
struct Supervised {
    id: u64,
    /// The session of a ready process, or else its state.
    session: Result<Arc<Session>, ProcessState>,
    /// Whether its first process was ready or has failed.
    was_tried: bool,
    /// Whether the sequence ends with its process.
    is_leaving: bool,
    wake: Arc<Notify>,
}

impl Processes {
    /// A program without processes. The pool sets their number.
    #[must_use]
    pub fn new(program: WorkerProgram) -> Arc<Self> {
        let kill = CancellationToken::new();
        let (name, state, changed) = (program.name.as_str().into(), Mutex::default(), Notify::new());
        let set = Arc::new(ProcessSet { name, program, state, changed, kill: kill.clone() });
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
        let mut state = self.set.state.lock();
        if state.is_closing {
            return;
        }
        state.wanted = workers.div_ceil(self.set.program.jobs_per_process.max(1));
        let missing = state.wanted.saturating_sub(state.supervised.len());
        let added: Vec<_> = (0..missing).map(|_| self.set.add(&mut state)).collect();
        state.wake_all();
        // Without a runtime, a spawned task is dropped at once, and locks the state to remove its process. So the lock is
        // released first.
        drop(state);
        added.into_iter().for_each(|supervisor| tasks.spawn(supervise(supervisor, tasks.clone())));
    }

    /// Returns when each process was ready once, or has failed. Cancel safe.
    pub async fn tried(&self) {
        self.set.when(|state| state.supervised.iter().all(|process| process.was_tried)).await;
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
        self.set.when(|state| state.supervised.is_empty()).await;
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
        };
        drop(state);
        for process in &mut stats.processes {
            process.memory = process.pid.and_then(memory).unwrap_or(0);
        }
        stats
    }

    /// Waits for a free slot.
    pub(super) async fn slot(&self, cx: &Context) -> Result<JobSlot, HandlerError> {
        loop {
            let changed = self.set.changed.notified();
            if let Some(slot) = self.set.find(cx.tasks())? {
                return Ok(slot);
            }
            tokio::select! {
                biased;
                _ = cx.cancelled() => return Err(HandlerError::Stopped),
                () = changed => {}
            }
        }
    }
}

impl ProcessSet {
    fn add(self: &Arc<Self>, state: &mut SetState) -> Supervisor {
        let id = state.next;
        state.next += 1;
        let wake = Arc::new(Notify::new());
        let kept = Supervisor { set: Arc::clone(self), id, wake: Arc::clone(&wake) };
        state.supervised.push(Supervised {
            id,
            session: Err(ProcessState::Starting),
            was_tried: false,
            is_leaving: false,
            wake,
        });
        kept
    }

    /// A free slot; `None` if one may become free.
    fn find(self: &Arc<Self>, tasks: &Tasks) -> Result<Option<JobSlot>, HandlerError> {
        let mut state = self.state.lock();
        let sessions = state.supervised.iter().filter_map(|process| process.session.as_ref().ok());
        let free = sessions.filter(|session| session.has_place());
        if let Some(session) = free.min_by_key(|session| (session.taken(), !session.is_here())) {
            return Ok(Some(JobSlot::take(Arc::clone(self), Arc::clone(session))));
        }
        let has_just_failed = || state.failed_at.is_some_and(|at| at.elapsed() < LATE_PAUSE);
        let is_failing = match &state.supervised[..] {
            [] => has_just_failed(),
            others => others.iter().all(|process| matches!(process.session, Err(ProcessState::Failing))),
        };
        if is_failing {
            let last = &state.last_failure;
            let message = format!("program {} failed, and restarts after a back-off: {last}", self.name);
            return Err(HandlerError::Unavailable { message });
        }
        if state.supervised.is_empty() {
            let supervisor = self.add(&mut state);
            drop(state);
            tasks.spawn(supervise(supervisor, tasks.clone()));
        }
        Ok(None)
    }

    /// A job has given its slot back.
    pub(super) fn freed(&self, session: &Session) {
        // The lock keeps jobs from taking a slot in a process that is due for replacement.
        let state = self.state.lock();
        session.give_place(&self.program.recycle);
        if session.is_closed() || state.supervised.len() > state.wanted {
            state.wake_all();
        }
        drop(state);
        self.changed.notify_waiters();
    }

    async fn when(&self, holds: impl Fn(&SetState) -> bool) {
        loop {
            let changed = self.changed.notified();
            if holds(&self.state.lock()) {
                return;
            }
            changed.await;
        }
    }
}

/// Held by the task that supervises a sequence of processes. Dropping it ends the sequence.
pub(super) struct Supervisor {
    pub(super) set: Arc<ProcessSet>,
    /// Notified when the process may have to leave.
    pub(super) wake: Arc<Notify>,
    id: u64,
}

impl Supervisor {
    pub(super) fn starts(&self) {
        self.change(|state, at| {
            state.starts += 1;
            state.supervised[at].session = Err(ProcessState::Starting);
            state.supervised[at].is_leaving = false;
        });
    }

    pub(super) fn is_ready(&self, session: &Arc<Session>) {
        self.change(|state, at| {
            state.supervised[at].was_tried = true;
            state.supervised[at].session = Ok(Arc::clone(session));
        });
    }

    /// Its process failed; the next one starts after `wait`.
    pub(super) fn failed(&self, summary: &str, wait: Duration) {
        self.change(|state, at| {
            state.failures += 1;
            state.failed_at = Some(Instant::now());
            summary.clone_into(&mut state.last_failure);
            state.supervised[at].was_tried = true;
            let stage = if wait.is_zero() { ProcessState::Starting } else { ProcessState::Failing };
            state.supervised[at].session = Err(stage);
        });
    }

    /// Whether there are more processes than wanted, and this one must go. Its session then accepts no more jobs. A
    /// session with a job stays until a later call.
    pub(super) fn is_surplus(&self, session: Option<&Session>) -> bool {
        let mut state = self.set.state.lock();
        let stay = state.supervised.iter().filter(|process| process.id != self.id && !process.is_leaving).count();
        let is_surplus = stay >= state.wanted && session.is_none_or(|session| session.taken() == 0);
        if is_surplus {
            session.inspect(|session| session.close());
            state
                .supervised
                .iter_mut()
                .filter(|process| process.id == self.id)
                .for_each(|process| process.is_leaving = true);
        }
        is_surplus
    }

    fn change(&self, change: impl FnOnce(&mut SetState, usize)) {
        let mut state = self.set.state.lock();
        if let Some(at) = state.supervised.iter().position(|process| process.id == self.id) {
            change(&mut state, at);
        }
        drop(state);
        self.set.changed.notify_waiters();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.change(|state, at| drop(state.supervised.remove(at)));
    }
}

impl SetState {
    fn wake_all(&self) {
        self.supervised.iter().for_each(|process| process.wake.notify_one());
    }
}

impl Supervised {
    fn stats(&self) -> ProcessStats {
        let session = match &self.session {
            Ok(session) => session,
            Err(state) => return ProcessStats { state: *state, pid: None, running: 0, jobs: 0, memory: 0 },
        };
        let running = session.taken();
        let state = match running {
            _ if session.is_closed() => ProcessState::Leaving,
            0 => ProcessState::Idle,
            _ => ProcessState::Busy,
        };
        ProcessStats { state, pid: Some(session.pid), running, jobs: session.answered(), memory: 0 }
    }
}

/// Resident memory of a process in bytes, if known.
pub(super) fn memory(pid: u32) -> Option<u64> {
    let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = pages.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
