use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};
use tracing::Span;

use super::{
    attached::Attached,
    attempt::Attempt,
    blocking::{Done, Work},
    conclude::{Told, conclude_queued, note_queued, refuse_waiting},
    core::{JobKey, Withdrawal, Withdrawn},
    home::Shared,
    lease::Lease,
    reports::Reports,
    submission::{Granted, run_timeout},
    trace::queue_span,
};
use crate::{
    handler::Context,
    model::{Job, JobError, Outcome, RejectionReason},
};

/// What the machine tells a queued job.
pub(super) enum Signal {
    Start(Lease),
    /// It runs on its worker's own thread.
    Began,
    /// With when to come back.
    Ended(Outcome, Option<Duration>),
    /// It never got room.
    Refused(RejectionReason),
}

/// Reaches a queued job.
pub(super) struct Waiter {
    pub(super) signal: oneshot::Sender<Signal>,
    /// Of a job of a blocking kind.
    pub(super) parcel: Option<Arc<Parcel>>,
}

/// A queued job of a blocking kind: the thread that gives it a worker begins it, so that no serving thread stands between two
/// jobs of a worker.
pub(super) struct Parcel {
    kind: usize,
    /// Empty until the job has its permit, and once it is taken out: to run, or to be dropped.
    packed: Mutex<Option<(Packed, Done)>>,
    cx: Context,
}

struct Packed {
    job: Box<Job>,
    /// Of the wait in the queue, which it ends when it is dropped.
    span: Span,
}

/// A queued job, and the room that it takes. Dropping it gives the room back at once.
#[must_use = "dropping a permit takes the job out of the queue"]
pub(super) struct Permit {
    shell: Shared,
    key: JobKey,
    kind: usize,
    place: Claim,
    load: Load,
    start_by: Instant,
    pub(super) cx: Context,
}

/// The job's own side of its [`Waiter`].
pub(super) struct Claim {
    signal: oneshot::Receiver<Signal>,
    parcel: Option<Arc<Parcel>>,
}

/// The job of a permit.
enum Load {
    Job(Packed),
    Parcel(Arc<Parcel>, oneshot::Receiver<Told>),
    /// It was handed on.
    Gone,
}

impl Waiter {
    /// The two sides of a job's wait.
    pub(super) fn new(kind: usize, is_blocking: bool, cx: &Context) -> (Self, Claim) {
        let (sender, signal) = oneshot::channel();
        let parcel = is_blocking.then(|| Arc::new(Parcel { kind, packed: Mutex::new(None), cx: cx.clone() }));
        (Self { signal: sender, parcel: parcel.clone() }, Claim { signal, parcel })
    }
}

impl Parcel {
    /// Begins to run the job on the thread of its worker. Returns the way to those who are to hear of it.
    ///
    /// # Errors
    /// The worker, where the job's own task has to see to it: it is not packed yet, too late, to stop, or gone.
    pub(super) fn begin(&self, mut lease: Lease) -> Result<Reports, Lease> {
        let (cx, now) = (&self.cx, Instant::now());
        if cx.is_cancelled() || now >= cx.deadline().reply_by() {
            return Err(lease);
        }
        let Ok(thread) = lease.thread() else { return Err(lease) };
        let Some((Packed { job, span }, done)) = self.packed.lock().take() else { return Err(lease) };
        drop(span);
        cx.begin(lease.worker(), now, run_timeout(lease.shell(), self.kind, &job));
        let reports = done.reports().clone();
        thread.run(Work::new(lease, job, self.kind, cx.clone(), done));
        Ok(reports)
    }
}

/// The room that a job waits for.
#[derive(Clone)]
pub struct Room {
    shell: Shared,
    key: JobKey,
}

impl Room {
    /// Whether the job still waits for room.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.shell.read(|core| core.is_waiting(self.key))
    }

    /// Returns when the job has room, or has ended. Cancel safe.
    pub async fn wait(&self) {
        let mut told = std::pin::pin!(self.shell.room.notified());
        loop {
            // Registered before the look, so that a change in between is not missed.
            told.as_mut().enable();
            if !self.is_awaited() {
                return;
            }
            told.as_mut().await;
            told.set(self.shell.room.notified());
        }
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Permit {
    pub(super) fn new(
        shell: Shared,
        key: JobKey,
        kind: usize,
        place: Claim,
        start_by: Instant,
        job: Box<Job>,
        cx: Context,
    ) -> Self {
        let packed = Packed { job, span: queue_span(&cx) };
        let load = match &place.parcel {
            Some(parcel) => {
                let (done, told) = Done::new(&shell);
                *parcel.packed.lock() = Some((packed, done));
                Load::Parcel(Arc::clone(parcel), told)
            }
            None => Load::Job(packed),
        };
        Self { shell, key, kind, place, load, start_by, cx }
    }

    /// The room that the job may have to wait for.
    pub(super) fn room(&self) -> Room {
        Room { shell: self.shell.clone(), key: self.key }
    }

    /// Waits for a worker, until it is too late to start, and begins to run. Dropping the future takes the job out of the
    /// queue.
    pub(super) async fn begin(mut self) -> Result<Attached, JobError> {
        self.shell.keep_time();
        let signal = tokio::select! {
            biased;
            signal = &mut self.place.signal => signal,
            () = tokio::time::sleep_until(self.start_by) => {
                match self.shell.withdraw(self.key, Withdrawal::Expired) {
                    Withdrawn::Queued => Ok(Signal::Ended(Outcome::ExpiredInQueue, None)),
                    Withdrawn::Waiting => Ok(Signal::Refused(RejectionReason::NoRoomInTime)),
                    // The machine was faster: its signal is on the way.
                    Withdrawn::Gone => (&mut self.place.signal).await,
                }
            }
        };
        let load = std::mem::replace(&mut self.load, Load::Gone);
        let (lease, job) = match (signal, load) {
            (Ok(Signal::Ended(outcome, retry_after)), _) => {
                return Err(conclude_queued(&self.shell, &self.cx, outcome, retry_after));
            }
            (Ok(Signal::Refused(reason)), _) => return Err(refuse_waiting(&self.shell, &self.cx, reason)),
            (Ok(Signal::Began), Load::Parcel(parcel, told)) => {
                return Ok(Attached::new(self.attempt(&parcel, told)));
            }
            (Ok(Signal::Start(lease)), Load::Job(packed)) => (lease, packed.job),
            (Ok(Signal::Start(lease)), Load::Parcel(parcel, _)) => {
                let (packed, _) = parcel.packed.lock().take().expect("a parcel without its worker is not opened");
                (lease, packed.job)
            }
            _ => unreachable!("the machine tells every waiter once, before it lets go of it"),
        };
        Granted { kind: self.kind, job, lease, cx: self.cx.clone() }.start(Instant::now())
    }

    fn attempt(&self, parcel: &Parcel, told: oneshot::Receiver<Told>) -> Attempt {
        Attempt::elsewhere(self.shell.clone(), self.key, parcel.kind, self.cx.clone(), told)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // A lease that was sent in the meantime is dropped with the channel, and gives its worker back.
        let load = std::mem::replace(&mut self.load, Load::Gone);
        if matches!(load, Load::Gone) {
            return;
        }
        let withdrawn = self.shell.withdraw(self.key, Withdrawal::Cancelled);
        if let Load::Parcel(parcel, told) = load
            && withdrawn == Withdrawn::Gone
            && parcel.packed.lock().take().is_none()
        {
            // It runs, and has lost its caller.
            return drop(Attached::new(self.attempt(&parcel, told)));
        }
        let outcome = match (withdrawn, self.place.signal.try_recv()) {
            (Withdrawn::Waiting, _) | (Withdrawn::Gone, Ok(Signal::Refused(_))) => return,
            (Withdrawn::Gone, Ok(Signal::Ended(outcome, _))) => outcome,
            (Withdrawn::Queued | Withdrawn::Gone, _) => Outcome::Cancelled,
        };
        note_queued(&self.shell, &self.cx, outcome, Instant::now());
    }
}
