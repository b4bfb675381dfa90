//! What runs jobs outside of the pool's threads. Processes follow the number of the pool's workers; this number
//! follows the slots of attached workers. Both end with the pool.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    inner::{PoolInner, Shared},
    lease::WorkerHandlers,
    stop_ladder::forced,
};
use crate::{
    handler::External,
    scheduler::{Bounds, Core},
};

impl PoolInner {
    /// What runs jobs of the served kinds outside of the pool's threads.
    pub(super) fn served_externals(&self) -> impl Iterator<Item = &Arc<dyn External>> {
        self.externals().into_iter().filter_map(|(external, is_served)| is_served.then_some(external))
    }

    /// What runs jobs outside of the pool's threads, and whether it still serves a kind.
    fn externals(&self) -> Vec<(&Arc<dyn External>, bool)> {
        let mut all: Vec<(&Arc<dyn External>, bool)> = Vec::new();
        for (id, kind) in self.all_kinds() {
            let (Some(external), is_served) = (kind.external(), self.is_served(id)) else { continue };
            match all.iter_mut().find(|(other, _)| Arc::ptr_eq(other, external)) {
                Some((_, any)) => *any |= is_served,
                None => all.push((external, is_served)),
            }
        }
        all
    }

    /// The slots of attached workers, if these run the jobs.
    fn slots(&self) -> Option<usize> {
        self.served().find_map(|(_, kind)| kind.external()?.slots())
    }

    /// Whether attached workers run the jobs.
    pub(super) fn is_remote(&self) -> bool {
        self.slots().is_some()
    }

    /// Whether none of its kinds has anything that can run its jobs.
    pub(super) fn is_down(&self) -> bool {
        let mut kinds = self.served().peekable();
        kinds.peek().is_some()
            && kinds.all(|(_, kind)| kind.external().is_some_and(|external| external.outage().is_some()))
    }

    /// Adjusts processes to the number of workers. Those that serve no kind leave.
    pub(super) fn fit_externals(&self) {
        let workers = self.read(Core::configured_workers);
        for (external, is_served) in self.externals() {
            external.fit(&self.tasks, is_served.then_some(workers));
        }
    }
}

impl Shared {
    /// The same, and adjusts the number of workers to the slots of attached workers, from here on after each change.
    pub(super) fn follow_externals(&self) {
        self.fit_externals();
        for external in self.served_externals() {
            let pool = self.downgrade();
            external.on_resize(Box::new(move || {
                if let Some(inner) = pool.upgrade() {
                    Self::from(inner).fit_to_slots();
                }
            }));
        }
        self.fit_to_slots();
    }

    fn fit_to_slots(&self) {
        if !self.is_remote() {
            return;
        }
        let now = Instant::now();
        let gone = self.drive(|core, effects| {
            // Read under the lock, so that the last of two concurrent changes wins.
            let slots = self.slots().unwrap_or(0);
            core.resize(now, Bounds { min: slots, max: slots }, WorkerHandlers::fresh, effects)
        });
        self.retire(gone);
    }

    /// Ends them after the last job, in tasks that a drain waits for. The end of a stop kills what is left.
    pub(super) fn close_externals(&self) {
        for (external, _) in self.externals() {
            let Some(gone) = Arc::clone(external).close() else { continue };
            let (inner, external) = (self.clone(), Arc::clone(external));
            self.tasks.spawn(async move {
                tokio::select! {
                    biased;
                    () = gone => {}
                    () = forced(&inner) => external.kill(),
                }
            });
        }
    }
}
