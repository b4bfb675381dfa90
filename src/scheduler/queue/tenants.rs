//! The tags, the order and the sums of tenants. The fair sharing itself is in `fair_share.rs`.

use std::collections::BTreeSet;

use super::super::{
    entry::{Amount, TenantId},
    list::List,
};
use crate::model::Criticality;
use rustc_hash::FxHashMap;
use slab::Slab;

/// The tenants that have jobs in the pool, or are ahead in a kind queue.
#[derive(Default)]
pub(crate) struct Tenants {
    by_name: FxHashMap<Box<str>, TenantId>,
    slab: Slab<Tenant>,
    /// Tenants with a queued job.
    queueing: usize,
}

#[derive(Default)]
struct Tenant {
    name: Box<str>,
    /// Queued jobs.
    jobs: usize,
    /// The same by class.
    queued: [Amount; 4],
    /// Jobs of this tenant: queued ones, and running ones that were queued.
    held: usize,
    /// Number of kind queues of classes in which it is ahead.
    ahead: usize,
    /// By class.
    open: [Flow; 4],
    /// Flows in the other kind queues in which it had jobs, by slot.
    limited: FxHashMap<usize, Flow>,
}

/// One tenant's part of one class of one kind queue.
#[derive(Default)]
pub(crate) struct Flow {
    /// Its ready jobs, in the order in which they became ready.
    pub(crate) ready: List,
    /// Their load in the kind queue.
    pub(crate) ready_load: f64,
    /// Queued jobs, and their load.
    pub(crate) jobs: usize,
    pub(crate) load: f64,
    /// Worker time that it has had, in virtual time of the kind queue.
    pub(crate) tag: u64,
    /// Position number among tenants with the same tag.
    pub(crate) since: u64,
}

impl Tenants {
    /// The tenant of that name, if it is known.
    pub(crate) fn find(&self, name: &str) -> Option<TenantId> {
        self.by_name.get(name).copied()
    }

    /// The flow of a tenant; `None` if the tenant has had no job there.
    pub(crate) fn flow(&self, tenant: TenantId, slot: usize) -> Option<&Flow> {
        let tenant = &self.slab[tenant.0];
        if slot < 4 { Some(&tenant.open[slot]) } else { tenant.limited.get(&slot) }
    }

    pub(crate) fn flow_mut(&mut self, tenant: TenantId, slot: usize) -> &mut Flow {
        let tenant = &mut self.slab[tenant.0];
        if slot < 4 { &mut tenant.open[slot] } else { tenant.limited.entry(slot).or_default() }
    }

    pub(crate) fn name(&self, tenant: TenantId) -> &str {
        &self.slab[tenant.0].name
    }

    /// All flows, with slot and tenant.
    pub(crate) fn flows(&self) -> impl Iterator<Item = (usize, TenantId, &Flow)> {
        self.slab.iter().flat_map(|(index, tenant)| {
            let limited = tenant.limited.iter().map(|(slot, flow)| (*slot, flow));
            tenant.open.iter().enumerate().chain(limited).map(move |(slot, flow)| (slot, TenantId(index), flow))
        })
    }

    /// The tenant of that name queues one more job.
    pub(crate) fn queue(&mut self, name: &str, class: Criticality, bytes: usize) -> TenantId {
        let tenant = match self.by_name.get(name) {
            Some(tenant) => *tenant,
            None => {
                let tenant = TenantId(self.slab.insert(Tenant { name: name.into(), ..Tenant::default() }));
                self.by_name.insert(name.into(), tenant);
                tenant
            }
        };
        let found = &mut self.slab[tenant.0];
        self.queueing += usize::from(found.jobs == 0);
        found.jobs += 1;
        let of_class = &mut found.queued[class.rank()];
        of_class.jobs += 1;
        of_class.bytes += bytes;
        found.held += 1;
        tenant
    }

    /// A job left the queue. Its tenant is kept until it [parts](Self::part).
    pub(crate) fn unqueue(&mut self, tenant: TenantId, class: Criticality, bytes: usize) {
        let found = &mut self.slab[tenant.0];
        found.jobs -= 1;
        let of_class = &mut found.queued[class.rank()];
        of_class.jobs -= 1;
        of_class.bytes -= bytes;
        self.queueing -= usize::from(found.jobs == 0);
    }

    /// A queued job is over. After a tenant's last job, only flows for which `is_ahead` returns true are kept.
    pub(crate) fn part(&mut self, tenant: TenantId, mut is_ahead: impl FnMut(usize, &Flow) -> bool) {
        let found = &mut self.slab[tenant.0];
        found.held -= 1;
        if found.held > 0 {
            return;
        }
        found.limited.retain(|slot, flow| is_ahead(*slot, flow));
        let open = found.open.iter().enumerate().filter(|(slot, flow)| is_ahead(*slot, flow)).count();
        found.ahead = open + found.limited.len();
        self.forget(tenant);
    }

    /// The tenant is no longer ahead in one kind queue.
    pub(crate) fn release(&mut self, tenant: TenantId) {
        self.slab[tenant.0].ahead -= 1;
        self.forget(tenant);
    }

    fn forget(&mut self, tenant: TenantId) {
        let found = &self.slab[tenant.0];
        if found.held == 0 && found.ahead == 0 {
            let gone = self.slab.remove(tenant.0);
            self.by_name.remove(&gone.name);
        }
    }

    /// A tenant's queued jobs that are at least as important as `class`.
    pub(crate) fn queued_of(&self, tenant: TenantId, class: Criticality) -> Amount {
        let queued = &self.slab[tenant.0].queued[..=class.rank()];
        let jobs = queued.iter().map(|of_class| of_class.jobs).sum();
        Amount { jobs, bytes: queued.iter().map(|of_class| of_class.bytes).sum() }
    }

    /// Tenants with a queued job.
    pub(crate) fn queueing(&self) -> usize {
        self.queueing
    }

    /// Checks that a tenant is kept only for its jobs and for kind queues in which it is ahead.
    #[cfg(test)]
    pub(crate) fn assert_bounded(&self, held: &FxHashMap<TenantId, usize>, was_ahead: &FxHashMap<TenantId, usize>) {
        assert_eq!(self.by_name.len(), self.slab.len(), "each tenant has one name");
        for (index, tenant) in &self.slab {
            let [held, was_ahead] =
                [held, was_ahead].map(|counts| counts.get(&TenantId(index)).copied().unwrap_or_default());
            assert_eq!(tenant.held, held, "jobs of a tenant");
            assert!(
                held > 0 || tenant.ahead == was_ahead && was_ahead > 0,
                "each tenant has a job or is ahead in a kind queue"
            );
            assert!(
                held > 0 || tenant.limited.len() <= was_ahead,
                "an idle tenant keeps only kind queues in which it is ahead"
            );
        }
    }

    #[cfg(test)]
    pub(crate) fn jobs_of(&self, name: &str) -> usize {
        self.find(name).map_or(0, |tenant| self.slab[tenant.0].jobs)
    }
}

/// A tenant's position in the order: its tag, when it got the position, and its id.
pub(crate) type Position = (u64, u64, TenantId);

/// The tenants of a kind queue with a ready job, in order. The first is kept separately: every start reads it, and a
/// single tenant needs no search.
#[derive(Default)]
pub(crate) struct FlowOrder {
    first: Option<Position>,
    /// All tenants behind the first.
    rest: BTreeSet<Position>,
}

impl FlowOrder {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    pub(crate) fn first(&self) -> Option<Position> {
        self.first
    }

    pub(crate) fn insert(&mut self, position: Position) {
        match self.first {
            Some(first) if first < position => {
                self.rest.insert(position);
            }
            displaced => {
                self.first = Some(position);
                self.rest.extend(displaced);
            }
        }
    }

    /// Returns whether it was present.
    pub(crate) fn remove(&mut self, position: Position) -> bool {
        if self.first == Some(position) {
            self.first = self.rest.pop_first();
            return true;
        }
        self.rest.remove(&position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_in_order_for_any_way_of_removal() {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let (mut order, mut all) = (FlowOrder::default(), BTreeSet::new());
        for place in 0..2_000 {
            if next(5) < 3 {
                let position = (next(20), place, TenantId(0));
                order.insert(position);
                all.insert(position);
            } else {
                let at = usize::try_from(next(9)).unwrap_or_default();
                let position = all.iter().nth(at).copied().unwrap_or((99, place, TenantId(0)));
                assert_eq!(order.remove(position), all.remove(&position));
            }
            assert_eq!((order.first(), order.len()), (all.first().copied(), all.len()));
            assert_eq!(order.is_empty(), all.is_empty());
        }
    }
}
