use std::time::Duration;

use tokio::time::Instant;

use super::{blocking::Thread, core::JobKey, home::Shared, shell::Shell};
use crate::{
    handler::{Context, Instance, unwind::Contained},
    model::Outcome,
};

/// What a worker keeps from job to job: its handlers, one for each kind, and the thread that blocking ones run on.
pub(super) struct WorkerHandlers {
    /// By kind, up to the last one that the worker ran.
    instances: Vec<Option<Contained<Instance>>>,
    thread: Option<Thread>,
    /// Version of the kinds that are served which its handlers were last held against.
    checked: usize,
}

/// Handlers that their worker keeps no longer, each with its kind.
pub(super) type Gone = Vec<(usize, Contained<Instance>)>;

/// A worker on loan to one job. Dropping it gives the worker back, wherever it is: in a message that nobody reads, too.
#[must_use = "dropping a lease gives the worker back and counts the job as cancelled"]
pub(super) struct Lease {
    shell: Shared,
    key: JobKey,
    worker: u32,
    state: Option<Box<WorkerHandlers>>,
}

/// The outcome of a job, and when its run ended.
pub(super) struct End<'a> {
    pub(super) outcome: Outcome,
    pub(super) run: Duration,
    pub(super) at: Instant,
    /// The job, where a drain may have lost it.
    pub(super) lost: Option<&'a Context>,
}

impl WorkerHandlers {
    pub(super) fn fresh() -> Box<Self> {
        Box::new(Self { instances: Vec::new(), thread: None, checked: 0 })
    }

    /// Takes the handlers out whose kind was replaced or removed.
    pub(super) fn take_replaced(&mut self, shell: &Shell) -> Gone {
        let version = shell.kinds_version();
        if std::mem::replace(&mut self.checked, version) == version {
            return Vec::new();
        }
        self.take(|kind| !shell.is_served(kind))
    }

    pub(super) fn take(&mut self, which: impl Fn(usize) -> bool) -> Gone {
        let all = self.instances.iter_mut().enumerate();
        all.filter(|(kind, _)| which(*kind)).filter_map(|(kind, handler)| Some((kind, handler.take()?))).collect()
    }
}

impl Lease {
    pub(super) fn new(shell: Shared, key: JobKey, worker: u32, state: Box<WorkerHandlers>) -> Self {
        Self { shell, key, worker, state: Some(state) }
    }

    pub(super) fn shell(&self) -> &Shared {
        &self.shell
    }

    pub(super) fn key(&self) -> JobKey {
        self.key
    }

    pub(super) fn worker(&self) -> u32 {
        self.worker
    }

    /// The worker's handler of `kind`; `None` where it has to be made. It is out of the lease until it is
    /// [put back](Self::put_back): a handler that panics or is cut off is lost with its future and made anew.
    pub(super) fn take_handler(&mut self, kind: usize) -> Option<Instance> {
        let state = self.state();
        let kept = state.instances.get_mut(kind).and_then(Option::take).map(Contained::into_inner);
        if kept.is_none() {
            // The kind of a new handler may be replaced already: its job was queued before.
            state.checked = 0;
        }
        kept
    }

    pub(super) fn put_back(&mut self, kind: usize, handler: Contained<Instance>) {
        let instances = &mut self.state().instances;
        if instances.len() <= kind {
            instances.resize_with(kind + 1, || None);
        }
        instances[kind] = Some(handler);
    }

    /// The worker's thread, started where there is none.
    pub(super) fn thread(&mut self) -> std::io::Result<Thread> {
        if let Some(thread) = &self.state().thread {
            return Ok(thread.clone());
        }
        let thread = Thread::start(&self.shell.name, self.worker, self.shell.reports.len())?;
        self.state().thread = Some(thread.clone());
        Ok(thread)
    }

    /// Gives the worker back with the outcome of its job, and with the job where a drain may have lost it. Returns whether
    /// that was open until then.
    pub(super) fn finish(mut self, outcome: Outcome, run: Duration, at: Instant, lost: Option<&Context>) -> bool {
        let state = self.state.take().expect("the state stays until the lease is dropped");
        self.shell.release(self.key, state, Some(End { outcome, run, at, lost }))
    }

    fn state(&mut self) -> &mut WorkerHandlers {
        self.state.as_mut().expect("the state stays until the lease is dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.shell.release(self.key, state, None);
        }
    }
}
