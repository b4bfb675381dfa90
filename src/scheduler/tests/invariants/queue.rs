//! The invariants of the queue.

use rustc_hash::{FxHashMap, FxHashSet};
use slab::Slab;

use super::{
    super::{
        Host,
        entry::TenantId,
        entry::{Entry, EntryStage},
        list::Link,
    },
    Queue,
};

impl Queue {
    pub(in super::super) fn ready<H: Host>(&self, entries: &Slab<Entry<H>>) -> Vec<usize> {
        let queued = self.classes.iter().flat_map(|class| class.queued.iter(entries, Link::Class));
        queued.filter(|index| entries[*index].stage == EntryStage::Ready).collect()
    }

    /// Checks that state is kept only for current jobs, and for idle tenants that are ahead of competing ones.
    pub(in super::super) fn assert_bounded<H: Host>(&self, entries: &Slab<Entry<H>>) {
        let (mut held, mut was_ahead) = (FxHashMap::default(), FxHashMap::default());
        for (_, entry) in entries {
            if let Some(tenant) = entry.tenant {
                *held.entry(tenant).or_default() += 1;
            }
        }
        for (slot, queue) in self.slots.iter().enumerate() {
            let tenants = |is: fn(EntryStage) -> bool| -> FxHashSet<TenantId> {
                let of_slot = entries.iter().map(|(_, entry)| entry).filter(|entry| entry.slot() == slot);
                of_slot.filter(|entry| is(entry.stage)).filter_map(|entry| entry.tenant).collect()
            };
            let queued =
                tenants(|stage| matches!(stage, EntryStage::Ready | EntryStage::Blocked | EntryStage::Throttled)).len();
            let ready = tenants(|stage| stage == EntryStage::Ready).len();
            assert!(queue.backlogs.tenants() <= queued, "no backlog without a job");
            assert_eq!(queue.order.len(), ready, "each tenant with a ready job has a position");
            let of_slot = entries.iter().map(|(_, entry)| entry).filter(|entry| entry.slot() == slot);
            let load: f64 = of_slot.filter(|entry| entry.stage == EntryStage::Ready).map(Entry::load).sum();
            assert!((queue.ready - load).abs() < 1e-6, "the load of the ready jobs");
            assert!(
                queue.ahead.is_empty() || !queue.order.is_empty(),
                "no idle tenant is remembered without a competing one"
            );
            for (tag, tenant) in &queue.ahead {
                assert!(*tag > queue.clock, "idle tenants are forgotten when the clock has reached their tag");
                *was_ahead.entry(*tenant).or_default() += 1;
            }
        }
        self.tenants.assert_bounded(&held, &was_ahead);
    }
}
