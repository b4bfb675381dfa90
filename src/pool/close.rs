//! Closes handlers whose worker is removed, or whose kind was replaced, and fits processes to the workers.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::{FutureExt, future::join_all};
use tokio::time::sleep;
use tracing::warn;

use super::{
    inner::PoolInner,
    lease::{Gone, WorkerHandlers},
    shard::Shared,
    stop::forced,
};
use crate::handler::{
    Instance, Processes, ProgramStats,
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
        let inner = self.clone();
        self.tasks.spawn(async move {
            join_all(gone.into_iter().map(|(kind, handler)| close(&inner, kind, handler))).await;
        });
    }
}

/// Closes one handler, within the grace of its kind and the end of a stop.
async fn close(inner: &PoolInner, kind: usize, handler: Contained<Instance>) {
    let grace = inner.grace(kind);
    let closing = AssertUnwindSafe(async { Contained::new(handler.into_inner().close(grace)).get_mut().await });
    let fault = tokio::select! {
        biased;
        closed = closing.catch_unwind() => match closed {
            Ok(()) => return,
            Err(panic) => format!("it panicked: {}", message(panic)),
        },
        () = sleep(grace) => format!("it took longer than its grace of {} ms", grace.as_millis()),
        () = forced(inner) => "the drain is over".to_owned(),
    };
    warn!(pool = %inner.name, kind = %inner.kinds[kind].name(), cause = fault, "a handler was not closed in time");
}

impl PoolInner {
    /// Has programs run as many processes as the workers need; those that serve no kind any more, none.
    pub(super) fn fit_processes(&self) {
        let workers = self.read(crate::scheduler::Core::configured_workers);
        for (processes, is_served) in self.programs() {
            processes.resize(&self.tasks, if is_served { workers } else { 0 });
        }
    }

    /// How the programs of the served kinds are.
    pub(super) fn program_stats(&self) -> Vec<ProgramStats> {
        self.programs()
            .into_iter()
            .filter(|(_, is_served)| *is_served)
            .map(|(processes, _)| processes.stats())
            .collect()
    }

    /// The processes that kinds share, and whether one of these is served.
    pub(super) fn programs(&self) -> Vec<(&Arc<Processes>, bool)> {
        let mut programs: Vec<(&Arc<Processes>, bool)> = Vec::new();
        for (index, kind) in &self.kinds {
            let (Some(processes), is_served) = (kind.processes(), self.is_served(index)) else { continue };
            match programs.iter_mut().find(|(other, _)| Arc::ptr_eq(other, processes)) {
                Some((_, any)) => *any |= is_served,
                None => programs.push((processes, is_served)),
            }
        }
        programs
    }
}

impl Shared {
    /// Lets all processes go, in tasks that a drain waits for. What is there at the end of a stop is killed.
    pub(super) fn close_processes(&self) {
        for processes in self.programs().into_iter().map(|(processes, _)| processes).filter(|it| it.close()) {
            let (inner, processes) = (self.clone(), Arc::clone(processes));
            self.tasks.spawn(async move {
                tokio::select! {
                    biased;
                    () = processes.gone() => {}
                    () = forced(&inner) => processes.kill(),
                }
            });
        }
    }
}
