use rustc_hash::FxHashMap;
use slab::Slab;

use super::list::List;
use crate::model::Criticality;

/// The tenants that have jobs in the pool, or owe a lane for what they ran.
#[derive(Default)]
pub(super) struct Tenants {
    by_name: FxHashMap<Box<str>, usize>,
    slab: Slab<Tenant>,
    /// Tenants with a queued job.
    queueing: usize,
}

#[derive(Default)]
struct Tenant {
    name: Box<str>,
    /// Queued jobs, and these and their bytes by class.
    jobs: usize,
    queued: [(usize, usize); 4],
    /// Jobs that name this tenant: queued ones, and running ones that were queued.
    held: usize,
    /// Lanes of classes that it owes.
    debts: usize,
    /// By class.
    open: [Share; 4],
    /// Those of the further lanes that it has had jobs in, by slot.
    limited: FxHashMap<usize, Share>,
}

/// One tenant's part of one class of one lane.
#[derive(Default)]
pub(super) struct Share {
    /// Its ready jobs, in the order in which they came to be so.
    pub(super) ready: List,
    /// Queued jobs, and what they count in their lane.
    pub(super) jobs: usize,
    pub(super) load: f64,
    /// Those of them that an ordering key holds back, and what they count.
    pub(super) blocked: usize,
    pub(super) blocked_load: f64,
    /// Worker time that it had, on the clock of the lane.
    pub(super) tag: u64,
    /// When it got its place among those with the same tag.
    pub(super) since: u64,
}

impl Tenants {
    /// The tenant of that name, if it is known.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// `None` where it has had no job.
    pub(super) fn share(&self, tenant: usize, slot: usize) -> Option<&Share> {
        let tenant = &self.slab[tenant];
        if slot < 4 { Some(&tenant.open[slot]) } else { tenant.limited.get(&slot) }
    }

    pub(super) fn share_mut(&mut self, tenant: usize, slot: usize) -> &mut Share {
        let tenant = &mut self.slab[tenant];
        if slot < 4 { &mut tenant.open[slot] } else { tenant.limited.entry(slot).or_default() }
    }

    /// The tenant of that name queues one job more.
    pub(super) fn queue(&mut self, name: &str, class: Criticality, bytes: usize) -> usize {
        let tenant = match self.by_name.get(name) {
            Some(tenant) => *tenant,
            None => {
                let tenant = self.slab.insert(Tenant { name: name.into(), ..Tenant::default() });
                self.by_name.insert(name.into(), tenant);
                tenant
            }
        };
        let found = &mut self.slab[tenant];
        self.queueing += usize::from(found.jobs == 0);
        found.jobs += 1;
        let of_class = &mut found.queued[class.rank()];
        *of_class = (of_class.0 + 1, of_class.1 + bytes);
        found.held += 1;
        tenant
    }

    /// A job is out of the queue. Its tenant is held until it [parts](Self::part).
    pub(super) fn unqueue(&mut self, tenant: usize, class: Criticality, bytes: usize) {
        let found = &mut self.slab[tenant];
        found.jobs -= 1;
        let of_class = &mut found.queued[class.rank()];
        *of_class = (of_class.0 - 1, of_class.1 - bytes);
        self.queueing -= usize::from(found.jobs == 0);
    }

    /// A job that was queued is over. With the last one, what a share says is kept only where the tenant `owes` by it.
    pub(super) fn part(&mut self, tenant: usize, mut owes: impl FnMut(usize, &Share) -> bool) {
        let found = &mut self.slab[tenant];
        found.held -= 1;
        if found.held > 0 {
            return;
        }
        found.limited.retain(|slot, share| owes(*slot, share));
        let open = found.open.iter().enumerate().filter(|(slot, share)| owes(*slot, share)).count();
        found.debts = open + found.limited.len();
        self.forget(tenant);
    }

    /// The tenant owes one lane less.
    pub(super) fn forgive(&mut self, tenant: usize) {
        self.slab[tenant].debts -= 1;
        self.forget(tenant);
    }

    fn forget(&mut self, tenant: usize) {
        let found = &self.slab[tenant];
        if found.held == 0 && found.debts == 0 {
            let gone = self.slab.remove(tenant);
            self.by_name.remove(&gone.name);
        }
    }

    /// Queued jobs of a tenant that are at least as important as `class`, and their bytes.
    pub(super) fn queued_of(&self, tenant: usize, class: Criticality) -> (usize, usize) {
        let queued = &self.slab[tenant].queued[..=class.rank()];
        queued.iter().fold((0, 0), |(jobs, bytes), of_class| (jobs + of_class.0, bytes + of_class.1))
    }

    /// Tenants with a queued job.
    pub(super) fn queueing(&self) -> usize {
        self.queueing
    }

    /// Checks that a tenant is kept for its jobs and its debts alone, of which there are so many by tenant.
    #[cfg(test)]
    pub(super) fn assert_bounded(&self, held: &FxHashMap<usize, usize>, owed: &FxHashMap<usize, usize>) {
        assert_eq!(self.by_name.len(), self.slab.len(), "each tenant has one name");
        for (index, tenant) in &self.slab {
            let [held, owed] = [held, owed].map(|counts| counts.get(&index).copied().unwrap_or_default());
            assert_eq!(tenant.held, held, "jobs that hold a tenant");
            assert!(held > 0 || tenant.debts == owed && owed > 0, "no tenant without a job or a debt");
            assert!(held > 0 || tenant.limited.len() <= owed, "of one without a job, no more than it owes by");
        }
    }

    #[cfg(test)]
    pub(super) fn jobs_of(&self, name: &str) -> usize {
        self.find(name).map_or(0, |tenant| self.slab[tenant].jobs)
    }
}

impl Share {
    /// Queued jobs that no ordering key holds back.
    pub(super) fn free_jobs(&self) -> usize {
        self.jobs - self.blocked
    }

    /// What counts before one more, which stands behind its ordering key, or is free: then it passes those that do.
    pub(super) fn load_before(&self, is_blocked: bool) -> f64 {
        if is_blocked { self.load } else { self.free_load() }
    }

    /// What the free ones count in their lane.
    pub(super) fn free_load(&self) -> f64 {
        match (self.blocked, self.free_jobs()) {
            (0, _) => self.load,
            (_, 0) => 0.0,
            // Who has a job is counted, whichever way the sums are rounded.
            _ => (self.load - self.blocked_load).max(f64::MIN_POSITIVE),
        }
    }
}
