//! The one place that spawns tasks and threads, so that none is an orphan.

use std::{io, thread};

use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::{JoinError, spawn_blocking},
};
use tokio_util::task::TaskTracker;

/// Tracks the tasks of one owner, so that it can wait for all of them.
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
    /// An empty set. Tasks run on the runtime that spawns them, else on the one that this call was made from.
    #[must_use]
    pub fn new() -> Self {
        let tracker = TaskTracker::new();
        tracker.close();
        Self { tracker, fallback: Handle::try_current().ok() }
    }

    /// Runs `future` on the current runtime, so that work stays on the core that it began on.
    ///
    /// Outside of any runtime, and without one when the set was made, the future is dropped: its guards then give back
    /// what it holds.
    #[expect(clippy::disallowed_methods, reason = "this is the tracked helper that the ban points to")]
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let future = self.tracker.track_future(future);
        if Handle::try_current().is_ok() {
            tokio::spawn(future);
        } else if let Some(handle) = &self.fallback {
            handle.spawn(future);
        }
    }

    /// Runs `work` to its end, even where this future is dropped. `None` where it panicked, or the runtime went away.
    pub async fn shield<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (done, result) = oneshot::channel();
        self.spawn(async move {
            // A future that was dropped does not look at the result.
            let _ = done.send(work.await);
        });
        result.await.ok()
    }

    /// Returns when no task of the set is left. Cancel safe.
    pub async fn wait(&self) {
        self.tracker.wait().await;
    }

    /// Number of tasks in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tracker.len()
    }

    /// Whether no task is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tracker.is_empty()
    }
}

/// Runs a short piece of `work` that blocks, such as a walk over a directory, on a thread of the runtime's own.
///
/// It runs to its end even when the future is dropped; its result is dropped then.
///
/// # Errors
/// Where the work panicked, or the runtime went away before it began.
#[expect(clippy::disallowed_methods, reason = "short work that a drain need not wait for; jobs do not run here")]
pub async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    spawn_blocking(work).await
}

/// Starts a named thread.
///
/// # Errors
/// Where the system has no thread left.
#[expect(clippy::disallowed_methods, reason = "this is the named thread that the ban points to")]
pub fn spawn_thread(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(body)
}
