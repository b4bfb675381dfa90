//! Lists of the jobs of the scheduler. `src/pool/listing.rs` adds ended jobs.

use tokio::time::Instant;

use super::{
    Core, Host, TenantRate,
    entry::EntryStage,
    workers::{WorkerState, Workers},
};
use crate::model::JobStage;

/// The stage of a job, and its worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) stage: JobStage,
    /// Worker of a running job.
    pub(crate) worker: u32,
    /// Whether the job ignores the request to stop.
    pub(crate) is_stuck: bool,
    /// Whether the outcome is decided; the handler is still stopping.
    pub(crate) is_ended: bool,
}

/// The items with the smallest keys, in that order, and the number of all.
pub(crate) type Smallest<K, T> = (Vec<(K, T)>, usize);

impl<H: Host> Core<H> {
    /// The jobs for which `key` returns a value: the first `limit` by key, and the number of all.
    /// It scans every job.
    pub(crate) fn list<K: Ord>(
        &self,
        limit: usize,
        key: impl Fn(&H::Job, Held) -> Option<K>,
    ) -> Smallest<K, (H::Job, Held)> {
        let keyed = self.entries.iter().filter_map(|(_, entry)| {
            let held = held(&self.workers, entry.stage);
            Some((key(&entry.job, held)?, (&entry.job, held)))
        });
        let (smallest, all) = smallest(keyed, limit);
        (smallest.into_iter().map(|(key, (job, held))| (key, (job.clone(), held))).collect(), all)
    }

    /// The tenants with the highest request rates, highest first.
    pub(crate) fn tenant_rates(&self, now: Instant) -> Vec<TenantRate> {
        self.admission.demand.rates(self.admission.window_at(now))
    }
}

pub(super) fn held<S>(workers: &Workers<S>, stage: EntryStage) -> Held {
    let (worker, is_ended) = match stage {
        EntryStage::Running { worker, ended } => (Some(workers.state(worker)), ended),
        EntryStage::Waiting | EntryStage::Ready | EntryStage::Blocked | EntryStage::Throttled => (None, false),
    };
    Held {
        stage: stage.stage(),
        worker: worker.map_or(0, |(id, _)| id),
        is_stuck: matches!(worker, Some((_, WorkerState::Stuck(_)))),
        is_ended,
    }
}

/// The first `limit` items by key, and the number of all.
pub(crate) fn smallest<K: Ord, T>(items: impl Iterator<Item = (K, T)>, limit: usize) -> Smallest<K, T> {
    let mut items: Vec<_> = items.collect();
    let all = items.len();
    if all > limit {
        items.select_nth_unstable_by(limit, |(a, _), (b, _)| a.cmp(b));
        items.truncate(limit);
    }
    items.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    (items, all)
}
