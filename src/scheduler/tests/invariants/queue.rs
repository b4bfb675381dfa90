//! The invariants of the queue.

use rustc_hash::{FxHashMap, FxHashSet};
use slab::Slab;

use super::{
    super::{
        Host,
        entry::TenantId,
        entry::{CLASS, Entry, EntryStage},
    },
    Queue,
};

impl Queue {
    pub(in super::super) fn ready<H: Host>(&self, entries: &Slab<Entry<H>>) -> Vec<usize> {
        let queued = self.classes.iter().flat_map(|class| class.queued.iter(entries, CLASS));
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
        for (slot, kind_queue) in self.kind_queues.iter().enumerate() {
            let tenants = |is: fn(EntryStage) -> bool| -> FxHashSet<TenantId> {
                let of_kind_queue = entries.iter().map(|(_, entry)| entry).filter(|entry| entry.slot() == slot);
                of_kind_queue.filter(|entry| is(entry.stage)).filter_map(|entry| entry.tenant).collect()
            };
            let queued =
                tenants(|stage| matches!(stage, EntryStage::Ready | EntryStage::Blocked | EntryStage::Throttled)).len();
            let ready = tenants(|stage| stage == EntryStage::Ready).len();
            assert!(kind_queue.backlogs.tenants() <= queued, "no backlog without a job");
            assert_eq!(kind_queue.order.len(), ready, "each tenant with a ready job has a position");
            let of_kind_queue = entries.iter().map(|(_, entry)| entry).filter(|entry| entry.slot() == slot);
            let load: f64 = of_kind_queue.filter(|entry| entry.stage == EntryStage::Ready).map(Entry::load).sum();
            assert!((kind_queue.ready - load).abs() < 1e-6, "the load of the ready jobs");
            assert!(
                kind_queue.ahead.is_empty() || !kind_queue.order.is_empty(),
                "no idle tenant is remembered without a competing one"
            );
            for (tag, tenant) in &kind_queue.ahead {
                assert!(*tag > kind_queue.clock, "idle tenants are forgotten when the clock has reached their tag");
                *was_ahead.entry(*tenant).or_default() += 1;
            }
        }
        self.tenants.assert_bounded(&held, &was_ahead);
    }
}
