use std::fmt;

use tokio::{sync::oneshot, time::Instant};

use super::{
    conclude::note_queued,
    core::{JobKey, QueueEnd, Withdrawal, Withdrawn},
    ended::JobEnd,
    home::Shared,
    lease::Lease,
};
use crate::handler::Context;

/// A job's claim on a worker: the worker itself, or a place in the queue.
pub(super) enum Turn {
    Now(Lease),
    Later(Permit),
}

/// What the machine tells a queued job.
pub(super) enum TurnSignal {
    Start(Lease),
    Ended(QueueEnd),
}

/// The room that a queued job takes. Dropping it gives the room back at once.
#[must_use = "dropping a permit takes the job out of the queue"]
pub(super) struct Permit {
    shell: Shared,
    key: JobKey,
    signal: oneshot::Receiver<TurnSignal>,
    start_by: Instant,
    settled: bool,
    cx: Context,
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

impl Turn {
    /// The room that the job may have to wait for; `None` where it runs.
    pub(super) fn room(&self) -> Option<Room> {
        match self {
            Self::Now(_) => None,
            Self::Later(permit) => Some(Room { shell: permit.shell.clone(), key: permit.key }),
        }
    }

    pub(super) fn now(lease: Lease) -> Self {
        Self::Now(lease)
    }

    pub(super) fn later(
        shell: Shared,
        key: JobKey,
        signal: oneshot::Receiver<TurnSignal>,
        start_by: Instant,
        cx: Context,
    ) -> Self {
        Self::Later(Permit { shell, key, signal, start_by, settled: false, cx })
    }
}

impl Permit {
    pub(super) fn shell(&self) -> &Shared {
        &self.shell
    }

    /// Waits for a worker, until it is too late to start. Dropping the future takes the job out of the queue.
    pub(super) async fn turn(mut self) -> Result<Lease, QueueEnd> {
        self.shell.keep_time();
        let signal = tokio::select! {
            biased;
            signal = &mut self.signal => signal,
            () = tokio::time::sleep_until(self.start_by) => {
                match self.shell.withdraw(self.key, Withdrawal::Expired) {
                    Withdrawn::Queued => return Err(self.settle(QueueEnd::Expired)),
                    Withdrawn::Waiting => return Err(self.settle(QueueEnd::NoRoom)),
                    // The machine was faster: its signal is on the way.
                    Withdrawn::Gone => (&mut self.signal).await,
                }
            }
        };
        self.settled = true;
        match signal {
            Ok(TurnSignal::Start(lease)) => Ok(lease),
            Ok(TurnSignal::Ended(why)) => Err(why),
            Err(_) => unreachable!("the machine tells every waiter before it lets go of it"),
        }
    }

    fn settle(&mut self, end: QueueEnd) -> QueueEnd {
        self.settled = true;
        end
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // A lease that was sent in the meantime is dropped with the channel, and gives its worker back.
        if self.settled {
            return;
        }
        let end = match (self.shell.withdraw(self.key, Withdrawal::Cancelled), self.signal.try_recv()) {
            (Withdrawn::Waiting, _) => None,
            (Withdrawn::Gone, Ok(TurnSignal::Ended(why))) => JobEnd::of_queue_end(why),
            (Withdrawn::Queued | Withdrawn::Gone, _) => Some(JobEnd::Cancelled),
        };
        note_queued(&self.shell, &self.cx, end, Instant::now());
    }
}
