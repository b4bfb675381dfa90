//! The processes of one program: how many there are, and which one has a place for a job.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{WorkerProgram, keeper::keep, place::Place, session::Session};
use crate::{handler::Context, model::HandlerError, task::Tasks};

/// The processes of one program in one pool. The handlers of all its kinds share them.
///
/// There are as many as the workers of the pool need, and never more. Dropping this kills them.
pub struct Processes {
    set: Arc<ProcessSet>,
    _kill: DropGuard,
}

/// How the processes of a program are.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramStats {
    /// Name of the program.
    pub name: Arc<str>,
    /// Its processes.
    pub processes: Vec<ProcessStats>,
    /// Processes that were started, from the begin.
    pub starts: u64,
    /// Processes that ended, and not because they were asked to leave.
    pub failures: u64,
    /// How the last of these ended; empty before the first.
    pub last_failure: String,
}

/// One process.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessStats {
    /// What it is doing.
    pub state: ProcessState,
    /// Its id; `None` where there is none.
    pub pid: Option<u32>,
    /// Jobs that it runs.
    pub running: usize,
    /// Jobs that it answered.
    pub jobs: u64,
    /// Its resident memory in bytes; 0 where that is not known.
    pub memory: u64,
}

/// What a process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessState {
    /// It is not ready yet.
    Starting,
    /// It has no job.
    Idle,
    /// It runs jobs.
    Busy,
    /// It takes no more jobs, and is to exit.
    Leaving,
    /// It failed, and is started again after a while.
    Failing,
}

impl ProcessState {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Starting, Self::Idle, Self::Busy, Self::Leaving, Self::Failing];

    /// Name in figures.
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

/// Time after a failure in which no process is started for a job that came late.
const LATE_PAUSE: Duration = Duration::from_secs(1);

/// The state that the handlers and the keepers of the processes share.
pub(super) struct ProcessSet {
    pub(super) name: Arc<str>,
    pub(super) program: WorkerProgram,
    state: Mutex<SetState>,
    /// Notified when a place may be free, and when a process failed.
    changed: Notify,
    /// Kills all processes at once.
    pub(super) kill: CancellationToken,
}

#[derive(Default)]
struct SetState {
    /// Processes that there should be.
    wanted: usize,
    slots: Vec<Slot>,
    next: u64,
    starts: u64,
    failures: u64,
    last_failure: String,
    failed_at: Option<Instant>,
    is_closing: bool,
}

/// One process after the other.
struct Slot {
    id: u64,
    stage: SlotStage,
    /// Whether its first process was ready, or failed.
    was_tried: bool,
    /// Whether it goes with its process.
    is_leaving: bool,
    wake: Arc<Notify>,
}

enum SlotStage {
    Starting,
    Ready(Arc<Session>),
    Failing,
}

/// How a search for a place went.
enum Found {
    Place(Place),
    /// None is free; one may become free.
    Later,
    /// All processes failed a short while ago.
    Failing(String),
}

impl Processes {
    /// None yet: the pool says how many there should be.
    #[must_use]
    pub fn new(program: WorkerProgram) -> Arc<Self> {
        let kill = CancellationToken::new();
        let (name, state, changed) = (program.name.as_str().into(), Mutex::default(), Notify::new());
        let set = Arc::new(ProcessSet { name, program, state, changed, kill: kill.clone() });
        Arc::new(Self { set, _kill: kill.drop_guard() })
    }

    /// What runs.
    #[must_use]
    pub fn program(&self) -> &WorkerProgram {
        &self.set.program
    }

    /// Has as many processes as `workers` need from now on, each in a task of `tasks`. With none, those that are there
    /// leave once they have finished what they run; a job that comes late still gets one.
    pub fn resize(&self, tasks: &Tasks, workers: usize) {
        let mut state = self.set.state.lock();
        if state.is_closing {
            return;
        }
        state.wanted = workers.div_ceil(self.set.program.jobs_per_process.max(1));
        let missing = state.wanted.saturating_sub(state.slots.len());
        let added: Vec<_> = (0..missing).map(|_| self.set.add(&mut state)).collect();
        state.wake_all();
        // Without a runtime a task is dropped at once, and gives its slot up: not under the lock.
        drop(state);
        added.into_iter().for_each(|slot| tasks.spawn(keep(slot, tasks.clone())));
    }

    /// Returns when each process was ready once, or failed. Cancel safe.
    pub async fn tried(&self) {
        self.set.when(|state| state.slots.iter().all(|slot| slot.was_tried)).await;
    }

    /// Lets all processes go, for good. Returns whether this was the first time.
    pub fn close(&self) -> bool {
        let mut state = self.set.state.lock();
        state.wanted = 0;
        state.wake_all();
        !std::mem::replace(&mut state.is_closing, true)
    }

    /// Returns when no process is left. Cancel safe.
    pub async fn gone(&self) {
        self.set.when(|state| state.slots.is_empty()).await;
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
            processes: state.slots.iter().map(Slot::stats).collect(),
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

    /// A place for a job, as soon as there is one.
    pub(super) async fn place(&self, cx: &Context) -> Result<Place, HandlerError> {
        loop {
            let changed = self.set.changed.notified();
            match self.set.find(cx.tasks()) {
                Found::Place(place) => return Ok(place),
                Found::Failing(last) => {
                    let message =
                        format!("program {} fails, and is started again after a while: {last}", self.set.name);
                    return Err(HandlerError::Unavailable { message });
                }
                Found::Later => {}
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
    fn add(self: &Arc<Self>, state: &mut SetState) -> KeptSlot {
        let id = state.next;
        state.next += 1;
        let wake = Arc::new(Notify::new());
        let kept = KeptSlot { set: Arc::clone(self), id, wake: Arc::clone(&wake) };
        state.slots.push(Slot { id, stage: SlotStage::Starting, was_tried: false, is_leaving: false, wake });
        kept
    }

    fn find(self: &Arc<Self>, tasks: &Tasks) -> Found {
        let mut state = self.state.lock();
        let sessions = state.slots.iter().filter_map(Slot::session);
        let free = sessions.filter(|session| session.has_place());
        if let Some(session) = free.min_by_key(|session| (session.taken(), !session.is_here())) {
            return Found::Place(Place::take(Arc::clone(self), Arc::clone(session)));
        }
        let has_just_failed = || state.failed_at.is_some_and(|at| at.elapsed() < LATE_PAUSE);
        let is_failing = match &state.slots[..] {
            [] => has_just_failed(),
            slots => slots.iter().all(|slot| matches!(slot.stage, SlotStage::Failing)),
        };
        if is_failing {
            return Found::Failing(state.last_failure.clone());
        }
        if state.slots.is_empty() {
            let slot = self.add(&mut state);
            drop(state);
            tasks.spawn(keep(slot, tasks.clone()));
        }
        Found::Later
    }

    /// A job gave its place back.
    pub(super) fn freed(&self, session: &Session) {
        // Under the lock: no job takes a place of a process that is found to be due.
        let state = self.state.lock();
        session.give_place(&self.program.recycle);
        if session.is_closed() || state.slots.len() > state.wanted {
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

/// A slot, as the task that keeps its process has it. Dropping it gives the slot up.
pub(super) struct KeptSlot {
    pub(super) set: Arc<ProcessSet>,
    /// Notified when the process may have to leave.
    pub(super) wake: Arc<Notify>,
    id: u64,
}

impl KeptSlot {
    pub(super) fn starts(&self) {
        self.change(|state, at| {
            state.starts += 1;
            state.slots[at].stage = SlotStage::Starting;
            state.slots[at].is_leaving = false;
        });
    }

    pub(super) fn is_ready(&self, session: &Arc<Session>) {
        self.change(|state, at| {
            state.slots[at].was_tried = true;
            state.slots[at].stage = SlotStage::Ready(Arc::clone(session));
        });
    }

    /// Its process ended as it was asked to; the next one is not there yet.
    pub(super) fn has_left(&self) {
        self.change(|state, at| state.slots[at].stage = SlotStage::Starting);
    }

    /// Its process failed; the next one starts after `wait`.
    pub(super) fn failed(&self, told: &str, wait: Duration) {
        self.change(|state, at| {
            state.failures += 1;
            state.failed_at = Some(Instant::now());
            told.clone_into(&mut state.last_failure);
            state.slots[at].was_tried = true;
            state.slots[at].stage = if wait.is_zero() { SlotStage::Starting } else { SlotStage::Failing };
        });
    }

    /// Whether there are more processes than are wanted, and this one is to go. A session that is to go takes no more
    /// jobs; one that has a job stays until it is asked again.
    pub(super) fn is_surplus(&self, session: Option<&Session>) -> bool {
        let mut state = self.set.state.lock();
        let stay = state.slots.iter().filter(|slot| slot.id != self.id && !slot.is_leaving).count();
        let is_surplus = stay >= state.wanted && session.is_none_or(|session| session.taken() == 0);
        if is_surplus {
            session.inspect(|session| session.close());
            state.slots.iter_mut().filter(|slot| slot.id == self.id).for_each(|slot| slot.is_leaving = true);
        }
        is_surplus
    }

    fn change(&self, change: impl FnOnce(&mut SetState, usize)) {
        let mut state = self.set.state.lock();
        if let Some(at) = state.slots.iter().position(|slot| slot.id == self.id) {
            change(&mut state, at);
        }
        drop(state);
        self.set.changed.notify_waiters();
    }
}

impl Drop for KeptSlot {
    fn drop(&mut self) {
        self.change(|state, at| drop(state.slots.remove(at)));
    }
}

impl SetState {
    fn wake_all(&self) {
        self.slots.iter().for_each(|slot| slot.wake.notify_one());
    }
}

impl Slot {
    fn session(&self) -> Option<&Arc<Session>> {
        match &self.stage {
            SlotStage::Ready(session) => Some(session),
            SlotStage::Starting | SlotStage::Failing => None,
        }
    }

    fn stats(&self) -> ProcessStats {
        let Some(session) = self.session() else {
            let state = match self.stage {
                SlotStage::Failing => ProcessState::Failing,
                SlotStage::Starting | SlotStage::Ready(_) => ProcessState::Starting,
            };
            return ProcessStats { state, pid: None, running: 0, jobs: 0, memory: 0 };
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

/// Resident memory of a process in bytes, where the system tells.
pub(super) fn memory(pid: u32) -> Option<u64> {
    let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = pages.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
