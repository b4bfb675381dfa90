//! Closes handlers whose worker is removed, or whose kind was replaced.

use std::panic::AssertUnwindSafe;

use futures_util::{FutureExt, future::join_all};
use tokio::time::sleep;
use tracing::warn;

use super::{
    home::Shared,
    lease::{Gone, WorkerHandlers},
    shell::Shell,
    stop::forced,
};
use crate::handler::{
    Instance,
    unwind::{Contained, message},
};

impl Shared {
    /// Removes workers, and [closes](Self::close) their handlers.
    pub(super) fn retire(&self, workers: impl IntoIterator<Item = Box<WorkerHandlers>>) {
        self.close(workers.into_iter().flat_map(|mut state| state.take(|_| true)).collect());
    }

    /// Closes handlers in a task that a drain waits for.
    pub(super) fn close(&self, gone: Gone) {
        if gone.is_empty() {
            return;
        }
        let shell = self.clone();
        self.tasks.spawn(async move {
            join_all(gone.into_iter().map(|(kind, handler)| close(&shell, kind, handler))).await;
        });
    }
}

/// Closes one handler, within the grace of its kind and the end of a stop.
async fn close(shell: &Shell, kind: usize, handler: Contained<Instance>) {
    let grace = shell.grace(kind);
    let closing = AssertUnwindSafe(async { Contained::new(handler.into_inner().close(grace)).get_mut().await });
    let fault = tokio::select! {
        biased;
        closed = closing.catch_unwind() => match closed {
            Ok(()) => return,
            Err(panic) => format!("it panicked: {}", message(panic)),
        },
        () = sleep(grace) => format!("it took longer than its grace of {} ms", grace.as_millis()),
        () = forced(shell) => "the drain is over".to_owned(),
    };
    warn!(pool = %shell.name, kind = %shell.kinds[kind].name(), cause = fault, "a handler was not closed in time");
}
