use std::sync::Arc;

use tokio::{sync::oneshot, time::Instant};

use super::{
    core::{JobKey, QueueEnd, Withdrawal, Withdrawn},
    lease::Lease,
    shell::Shell,
};

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
    shell: Arc<Shell>,
    key: JobKey,
    signal: oneshot::Receiver<TurnSignal>,
    start_by: Instant,
    settled: bool,
}

impl Turn {
    pub(super) fn now(lease: Lease) -> Self {
        Self::Now(lease)
    }

    pub(super) fn later(
        shell: Arc<Shell>,
        key: JobKey,
        signal: oneshot::Receiver<TurnSignal>,
        start_by: Instant,
    ) -> Self {
        Self::Later(Permit { shell, key, signal, start_by, settled: false })
    }
}

impl Permit {
    /// Waits for a worker, until it is too late to start. Dropping the future takes the job out of the queue.
    pub(super) async fn turn(mut self) -> Result<Lease, QueueEnd> {
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
        if !self.settled {
            self.shell.withdraw(self.key, Withdrawal::Cancelled);
        }
    }
}
