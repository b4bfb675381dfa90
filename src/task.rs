//! Spawns tasks and threads. No other module spawns, so that every task has an owner.

use std::{io, thread};

use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::{JoinError, spawn_blocking},
};
use tokio_util::task::TaskTracker;

/// The tasks of one owner, which can wait for all of them.
#[derive(Debug, Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    fallback: Option<Handle>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

impl Tasks {
    /// An empty set. Tasks run on the runtime that spawns them, or if there is none, on the runtime of this call.
    #[must_use]
    pub fn new() -> Self {
        let tracker = TaskTracker::new();
        tracker.close();
        Self { tracker, fallback: Handle::try_current().ok() }
    }

    /// Runs `future` on the current runtime, so that the work stays on its core.
    ///
    /// Without any runtime, the future is dropped, and its guards release their resources.
    #[expect(clippy::disallowed_methods, reason = "this is the tracked helper that the ban points to")]
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let future = self.tracker.track_future(future);
        if Handle::try_current().is_ok() {
            tokio::spawn(future);
        } else if let Some(handle) = &self.fallback {
            handle.spawn(future);
        }
    }

    /// Runs `future` on another runtime, which may outlive the current one.
    #[expect(clippy::disallowed_methods, reason = "this is a tracked helper, too")]
    pub fn spawn_on(&self, future: impl Future<Output = ()> + Send + 'static, runtime: &Handle) {
        runtime.spawn(self.tracker.track_future(future));
    }

    /// Runs `work` to its end, even if this future is dropped. `None` if it panicked, or the runtime shut down.
    pub async fn shield<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (done, result) = oneshot::channel();
        self.spawn(async move {
            // The receiver may have been dropped.
            let _ = done.send(work.await);
        });
        result.await.ok()
    }

    /// Returns when no task of the set is left. Cancel safe.
    pub async fn wait(&self) {
        self.tracker.wait().await;
    }

    /// Whether no task is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tracker.is_empty()
    }
}

/// Runs short blocking work, such as a directory walk, on a blocking thread of the runtime.
///
/// The work runs to its end even if the future is dropped; then the result is dropped.
///
/// # Errors
/// If the work panicked, or the runtime ended before it began.
#[expect(clippy::disallowed_methods, reason = "short work that a drain need not wait for; jobs do not run here")]
pub async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    spawn_blocking(work).await
}

/// Starts a named thread.
///
/// # Errors
/// If the system has no free thread.
#[expect(clippy::disallowed_methods, reason = "this is the named thread that the ban points to")]
pub fn spawn_thread(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(body)
}
