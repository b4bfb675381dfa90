//! The set of a program's processes: which one has a free slot, which one leaves, and which one replaces it.

use std::{
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{JobSlot, session::Session, supervise::supervise};
use crate::{
    handler::{Context, ProcessState, ProcessStats, WorkerProgram},
    model::HandlerError,
    task::Tasks,
};

/// Time after a failure in which no extra process is started for a late job.
const LATE_PAUSE: Duration = Duration::from_secs(1);

/// The state that the handlers and the supervisors of the processes share.
pub(super) struct ProcessSet {
    pub(super) name: Arc<str>,
    pub(super) program: WorkerProgram,
    pub(super) state: Mutex<SetState>,
    /// Messages about jobs that were over, which were dropped.
    pub(super) late: Arc<AtomicU64>,
    /// Notified when a slot may be free, and when a process has failed.
    pub(super) changed: Notify,
    /// Kills all processes at once.
    pub(super) kill: CancellationToken,
    /// Runs the supervisors; set with the first process.
    pub(super) tasks: OnceLock<Tasks>,
    /// Its permit is held by a restart until its first new process is ready or has failed.
    pub(super) restarts: Semaphore,
}

/// The processes, under the lock of their set.
#[derive(Default)]
pub(super) struct SetState {
    /// Wanted number of processes.
    pub(super) wanted: usize,
    pub(super) supervised: Vec<Supervised>,
    next: u64,
    pub(super) starts: u64,
    pub(super) failures: u64,
    pub(super) last_failure: String,
    pub(super) failed_at: Option<Instant>,
    pub(super) is_closing: bool,
}

/// A sequence of processes: each exit is followed by a new process.
pub(super) struct Supervised {
    id: u64,
    /// The session of a ready process, or else its state.
    session: Result<Arc<Session>, ProcessState>,
    /// Whether its first process was ready or has failed.
    pub(super) was_tried: bool,
    /// Whether its last start failed.
    pub(super) cannot_start: bool,
    /// When its process has started, or will.
    pub(super) starts_at: Instant,
    /// Whether it leaves once enough other processes are ready.
    pub(super) is_old: bool,
    /// Whether the sequence ends with its process.
    is_leaving: bool,
    wake: Arc<Notify>,
}

impl ProcessSet {
    pub(super) fn add(self: &Arc<Self>, state: &mut SetState) -> Supervisor {
        let id = state.next;
        state.next += 1;
        let wake = Arc::new(Notify::new());
        let kept = Supervisor { set: Arc::clone(self), id, wake: Arc::clone(&wake) };
        state.supervised.push(Supervised {
            id,
            session: Err(ProcessState::Starting),
            was_tried: false,
            cannot_start: false,
            starts_at: Instant::now(),
            is_old: false,
            is_leaving: false,
            wake,
        });
        kept
    }

    /// A free slot; `None` if one may become free.
    pub(super) fn find(self: &Arc<Self>, cx: &Context) -> Result<Option<JobSlot>, HandlerError> {
        let mut state = self.state.lock();
        let sessions = state.supervised.iter().filter_map(|process| process.session.as_ref().ok());
        let free = sessions.filter(|session| session.has_place());
        if let Some(session) = free.min_by_key(|session| (session.taken(), !session.is_here())) {
            let places = if cx.crashes() > 0 { session.places } else { 1 };
            return Ok(Some(JobSlot::take(Arc::clone(self), Arc::clone(session), places)));
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
            let _ = self.tasks.set(cx.tasks().clone());
            let supervisor = self.add(&mut state);
            drop(state);
            self.spawn([supervisor]);
        }
        Ok(None)
    }

    /// A job has given its places back.
    pub(super) fn freed(self: &Arc<Self>, session: &Session, places: usize) {
        let state = self.state.lock();
        session.give_places(places);
        if session.is_closed() || state.supervised.len() > state.wanted {
            state.wake_all();
        }
        drop(state);
        if session.is_due() {
            self.renew();
        }
        self.changed.notify_waiters();
    }

    /// Starts the successor of one process that is old, or due for replacement. No further one is replaced before the
    /// old process has left, so that at most one more than wanted runs.
    pub(super) fn renew(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let is_due = |process: &Supervised| process.is_ready() && process.session.as_ref().is_ok_and(|it| it.is_due());
        if !state.supervised.iter().any(|process| process.is_old)
            && let Some(due) = state.supervised.iter_mut().find(|process| is_due(process))
        {
            due.is_old = true;
        }
        let (old, new): (Vec<_>, Vec<_>) = state.supervised.iter().partition(|process| process.is_old);
        let has_room = state.supervised.len() <= state.wanted && !state.is_closing;
        let is_next = !old.is_empty() && has_room && new.into_iter().all(Supervised::is_ready);
        let added = is_next.then(|| self.add(&mut state));
        drop(state);
        self.spawn(added);
    }

    /// Lets supervisors run. Call it without the lock: without a runtime, a spawned task is dropped at once, and locks
    /// the state to remove its process.
    pub(super) fn spawn(&self, supervisors: impl IntoIterator<Item = Supervisor>) {
        let Some(tasks) = self.tasks.get() else { return };
        supervisors.into_iter().for_each(|supervisor| tasks.spawn(supervise(supervisor, tasks.clone())));
    }

    pub(super) async fn when<T>(&self, look: impl Fn(&SetState) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            if let Some(seen) = look(&self.state.lock()) {
                return seen;
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
            let process = &mut state.supervised[at];
            process.session = Err(ProcessState::Starting);
            (process.is_old, process.is_leaving) = (false, false);
        });
    }

    pub(super) fn is_ready(&self, session: &Arc<Session>) {
        self.change(|state, at| {
            let process = &mut state.supervised[at];
            (process.was_tried, process.cannot_start) = (true, false);
            process.session = Ok(Arc::clone(session));
        });
        self.set.renew();
    }

    /// Its process failed, perhaps before it had started well; the next one starts after `wait`.
    pub(super) fn failed(&self, summary: &str, has_started: bool, wait: Duration) {
        self.change(|state, at| {
            let now = Instant::now();
            state.failures += 1;
            state.failed_at = Some(now);
            summary.clone_into(&mut state.last_failure);
            let stage = if wait.is_zero() { ProcessState::Starting } else { ProcessState::Failing };
            let process = &mut state.supervised[at];
            (process.was_tried, process.cannot_start) = (true, !has_started);
            (process.session, process.starts_at) = (Err(stage), now + wait);
        });
    }

    /// Whether there are enough other processes, and this one must go: an old process if as many others as wanted are
    /// ready, any other if as many stay. Its session then accepts no more jobs. A session with a job stays until a
    /// later call.
    pub(super) fn is_surplus(&self, session: Option<&Session>) -> bool {
        let mut state = self.set.state.lock();
        let wanted = state.wanted;
        let Some(at) = state.position(self.id) else { return true };
        let is_old = state.supervised[at].is_old;
        let others = state.supervised.iter().filter(|process| process.id != self.id && !process.is_leaving);
        let enough = others.filter(|other| if is_old { other.is_ready() } else { !other.is_old }).count() >= wanted;
        let is_surplus = enough && session.is_none_or(|session| session.taken() == 0);
        if is_surplus || (enough && is_old) {
            session.inspect(|session| session.close());
            state.supervised[at].is_leaving = true;
        }
        is_surplus
    }

    fn change(&self, change: impl FnOnce(&mut SetState, usize)) {
        let mut state = self.set.state.lock();
        if let Some(at) = state.position(self.id) {
            change(&mut state, at);
        }
        // An old process may leave now.
        state.wake_all();
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
    fn position(&self, id: u64) -> Option<usize> {
        self.supervised.iter().position(|process| process.id == id)
    }

    /// Whether the first process that is not old is ready, or how it failed; `None` before.
    pub(super) fn first_start(&self) -> Option<Result<(), String>> {
        let mut new = self.supervised.iter().filter(|process| !process.is_old);
        if self.is_closing || self.supervised.is_empty() || new.clone().any(Supervised::is_ready) {
            return Some(Ok(()));
        }
        new.any(|process| process.cannot_start).then(|| Err(self.last_failure.clone()))
    }

    pub(super) fn wake_all(&self) {
        self.supervised.iter().for_each(|process| process.wake.notify_one());
    }
}

impl Supervised {
    /// Whether its process accepts jobs.
    pub(super) fn is_ready(&self) -> bool {
        self.session.as_ref().is_ok_and(|session| !session.is_closed())
    }

    pub(super) fn stats(&self) -> ProcessStats {
        let session = match &self.session {
            Ok(session) => session,
            Err(state) => return ProcessStats { state: *state, pid: None, running: 0, jobs: 0, memory: 0 },
        };
        let running = session.running();
        let state = match session.taken() {
            _ if session.is_closed() => ProcessState::Leaving,
            0 => ProcessState::Idle,
            _ => ProcessState::Busy,
        };
        ProcessStats { state, pid: Some(session.pid), running, jobs: session.answered(), memory: 0 }
    }
}
