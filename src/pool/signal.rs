//! The scheduler's way to a queued job.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    blocking::{Message, Reports, report},
    lease::Lease,
};
use crate::model::{Outcome, RejectionReason};

/// The scheduler's signal to a queued job.
pub(super) enum Signal {
    Start(Lease),
    /// The job runs on its worker's own thread.
    Began,
    /// The job ended. Includes the retry time.
    Ended(Outcome, Option<Duration>),
    /// The job never got capacity.
    Refused(RejectionReason),
}

/// The scheduler's way to reach a queued job.
pub(super) struct Waiter {
    pub(super) signal: oneshot::Sender<Signal>,
    /// For a job of a blocking kind. The worker's thread starts it directly, so that no serving thread is involved
    /// between two jobs of a worker.
    pub(super) blocking: Option<Arc<dyn StartOnThread>>,
}

/// A queued job of a blocking kind.
pub(super) trait StartOnThread: Send + Sync {
    /// Starts the job on the thread of its worker. Returns the way to the task that waits.
    ///
    /// # Errors
    /// Returns the worker if the job's own task must handle it: the job is not queued yet, too late, stopped, or gone.
    fn start(&self, lease: Lease) -> Result<Option<Reports>, Lease>;
}

impl Waiter {
    /// Hands the worker to the job. If its task is gone, the lease is dropped, which gives the worker back.
    pub(super) fn start(self, lease: Lease) {
        let Self { signal, blocking } = self;
        let begun = match blocking {
            Some(blocking) => blocking.start(lease),
            None => Err(lease),
        };
        match begun {
            Ok(reports) => report(reports.as_ref(), Message::Began(signal)),
            Err(lease) => drop(signal.send(Signal::Start(lease))),
        }
    }
}
