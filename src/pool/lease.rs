//! A worker on loan to one job, its handlers, and the way on which a queued job gets it.

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use super::{
    blocking::{Message, Reports, Thread, report},
    inner::{PoolInner, Shared, Wiring},
};
use crate::{
    handler::{Contained, Context, Instance},
    model::{HandlerError, KindId, Limiter, Outcome, Output, RejectionReason},
    scheduler::{Grant, JobKey},
};

/// State of a worker between jobs: its handlers, one for each kind, and the thread for blocking ones.
pub(super) struct WorkerHandlers {
    /// By kind, up to the last one that the worker ran.
    instances: Vec<Option<Contained<Instance>>>,
    thread: Option<Thread>,
    /// Version of the served kinds at the last check of its handlers.
    checked: usize,
}

/// Handlers to be closed, each with its kind.
pub(super) type Gone = Vec<(KindId, Contained<Instance>)>;

/// A worker on loan to one job. Dropping the lease gives the worker back, even inside a message that is never read.
/// Without a worker, it only names the job.
#[must_use = "dropping a lease gives the worker back and counts the job as cancelled"]
pub(super) struct Lease {
    inner: Shared,
    key: JobKey,
    worker: u32,
    since: Instant,
    /// `None` once the worker is given back, and if its own thread has it.
    handlers: Option<Box<WorkerHandlers>>,
}

/// The outcome of a job, and the end of its run.
pub(super) struct End<'a> {
    pub(super) outcome: Outcome,
    pub(super) run: Duration,
    pub(super) at: Instant,
    /// The job, if a drain may have lost it.
    pub(super) lost: Option<&'a Context>,
    /// What its handler holds, and for how long.
    pub(super) hold: Option<(Limiter, Duration)>,
}

impl WorkerHandlers {
    pub(super) fn fresh() -> Box<Self> {
        Box::new(Self { instances: Vec::new(), thread: None, checked: 0 })
    }

    /// Removes the handlers whose kind was replaced or removed.
    pub(super) fn take_replaced(&mut self, inner: &PoolInner) -> Gone {
        let version = inner.kinds_version();
        if std::mem::replace(&mut self.checked, version) == version {
            return Vec::new();
        }
        self.take(|kind| !inner.is_served(kind))
    }

    pub(super) fn take(&mut self, which: impl Fn(KindId) -> bool) -> Gone {
        let all = self.instances.iter_mut().enumerate().map(|(index, handler)| (KindId(index), handler));
        all.filter(|(kind, _)| which(*kind)).filter_map(|(kind, handler)| Some((kind, handler.take()?))).collect()
    }
}

impl Lease {
    pub(super) fn new(inner: Shared, grant: Grant<Wiring>, since: Instant) -> Self {
        let Grant { key, worker, state } = grant;
        Self { inner, key, worker, since, handlers: Some(state) }
    }

    /// Names a job that has no worker, or whose worker's own thread has the lease.
    pub(super) fn naming(inner: Shared, key: JobKey) -> Self {
        Self { inner, key, worker: 0, since: Instant::now(), handlers: None }
    }

    /// Passes the worker on. What is left only names the job.
    pub(super) fn take(&mut self) -> Self {
        Self { inner: self.inner.clone(), handlers: self.handlers.take(), ..*self }
    }

    pub(super) fn inner(&self) -> &Shared {
        &self.inner
    }

    pub(super) fn key(&self) -> JobKey {
        self.key
    }

    pub(super) fn worker(&self) -> u32 {
        self.worker
    }

    /// When the job got the worker.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// The worker's handler of `kind`; `None` if it must be made. The lease does not own it again until
    /// [`put_back`](Self::put_back), so a handler that panics or is cut off is lost with its future.
    pub(super) fn take_handler(&mut self, kind: KindId) -> Option<Instance> {
        let handlers = self.handlers();
        let kept = handlers.instances.get_mut(kind.0).and_then(Option::take).map(Contained::into_inner);
        if kept.is_none() {
            // The kind of the new handler may have been replaced while the job was queued.
            handlers.checked = 0;
        }
        kept
    }

    /// Keeps a handler after a run. After a crash, the worker makes a new one, which shows whether the factory still
    /// works.
    pub(super) fn put_back(
        &mut self,
        kind: KindId,
        handler: Contained<Instance>,
        result: &Result<Output, HandlerError>,
    ) {
        if matches!(result, Err(HandlerError::Crashed { .. } | HandlerError::Unavailable { .. })) {
            return;
        }
        let instances = &mut self.handlers().instances;
        if instances.len() <= kind.0 {
            instances.resize_with(kind.0 + 1, || None);
        }
        instances[kind.0] = Some(handler);
    }

    /// The worker's thread, started on first use.
    pub(super) fn thread(&mut self) -> std::io::Result<Thread> {
        if let Some(thread) = &self.handlers().thread {
            return Ok(thread.clone());
        }
        let thread = Thread::start(&self.inner.name, self.worker, self.inner.reports.len())?;
        self.handlers().thread = Some(thread.clone());
        Ok(thread)
    }

    /// Gives the worker back, and decides the outcome of its job under the same lock; without an `end`, it counts as
    /// cancelled. Returns false if the outcome was decided before.
    pub(super) fn give_back(&mut self, end: Option<End<'_>>) -> bool {
        let (inner, key) = (&self.inner, self.key);
        let mut handlers = self.handlers.take().expect(GIVEN_ONCE);
        let now = end.as_ref().map_or_else(Instant::now, |end| end.at);
        let hold = end.as_ref().and_then(|end| end.hold);
        let (is_ours, replaced, leftover) = inner.drive(|core, effects| {
            let mut is_ours = false;
            if let Some((scope, time)) = hold {
                core.hold(key, scope, now + time);
            }
            if let Some(End { outcome, run, at: _, lost, hold: _ }) = end {
                is_ours = core.end(now, key, outcome, run);
                if let Some(cx) = lost.filter(|_| is_ours) {
                    inner.note_lost(cx);
                }
            }
            let replaced = handlers.take_replaced(inner);
            (is_ours, replaced, core.release(now, key, handlers, effects))
        });
        if hold.is_some() {
            inner.held.notify_waiters();
        }
        inner.close(replaced);
        inner.retire(leftover);
        is_ours
    }

    fn handlers(&mut self) -> &mut WorkerHandlers {
        self.handlers.as_mut().expect(GIVEN_ONCE)
    }
}

const GIVEN_ONCE: &str = "the worker is given back once, at the end";

impl Drop for Lease {
    fn drop(&mut self) {
        if self.handlers.is_some() {
            self.give_back(None);
        }
    }
}

/// The scheduler's way to reach a queued job.
pub(super) struct Waiter {
    pub(super) signal: oneshot::Sender<Signal>,
    /// For a job of a blocking kind. The worker's thread starts it directly, so that no serving thread is involved
    /// between two jobs of a worker.
    pub(super) blocking: Option<Arc<dyn StartOnThread>>,
}

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
