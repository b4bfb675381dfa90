//! Lists the jobs of the scheduler. `src/pool/listing.rs` adds the ended ones.

use tokio::time::Instant;

use super::{
    Core, Host, TenantRate,
    entry::Place,
    workers::{Duty, Workers},
};
use crate::model::JobStage;

/// Stage of a job in the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holding {
    /// Its caller waits for capacity.
    Waiting,
    /// It is queued.
    Queued,
    /// It runs. `ended`: its outcome is decided, and its handler is still stopping.
    Running { worker: u32, ended: bool, stuck: bool },
}

impl Holding {
    pub(crate) fn stage(self) -> JobStage {
        match self {
            Self::Waiting => JobStage::Waiting,
            Self::Queued => JobStage::Queued,
            Self::Running { .. } => JobStage::Running,
        }
    }
}

/// The items with the smallest keys, in that order, and the number of all.
pub(crate) type Least<K, T> = (Vec<(K, T)>, usize);

impl<H: Host> Core<H> {
    /// The jobs for which `key` returns a value: up to `most` with the smallest keys, in that order, and their number.
    /// It scans every job.
    pub(crate) fn list<K: Ord>(
        &self,
        most: usize,
        key: impl Fn(&H::Job, Holding) -> Option<K>,
    ) -> Least<K, (H::Job, Holding)> {
        let keyed = self.entries.iter().filter_map(|(_, entry)| {
            let holding = holding(&self.workers, entry.place);
            Some((key(&entry.job, holding)?, (&entry.job, holding)))
        });
        let (least, all) = least(keyed, most);
        (least.into_iter().map(|(key, (job, holding))| (key, (job.clone(), holding))).collect(), all)
    }

    /// The tenants that ask most often, highest rate first.
    pub(crate) fn tenant_rates(&self, now: Instant) -> Vec<TenantRate> {
        self.admission.demand.rates(self.admission.window_at(now))
    }
}

pub(super) fn holding<S>(workers: &Workers<S>, place: Place) -> Holding {
    match place {
        Place::Waiting => Holding::Waiting,
        Place::Ready | Place::Blocked | Place::Throttled => Holding::Queued,
        Place::Running { slot, ended } => {
            let (worker, duty) = workers.duty(slot);
            Holding::Running { worker, ended, stuck: matches!(duty, Duty::Stuck { .. }) }
        }
    }
}

/// Up to `most` items with the smallest keys, in that order, and the number of all.
pub(crate) fn least<K: Ord, T>(items: impl Iterator<Item = (K, T)>, most: usize) -> Least<K, T> {
    let mut items: Vec<_> = items.collect();
    let all = items.len();
    if all > most {
        items.select_nth_unstable_by(most, |(a, _), (b, _)| a.cmp(b));
        items.truncate(most);
    }
    items.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    (items, all)
}
