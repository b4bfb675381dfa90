use rustc_hash::{FxHashMap, FxHashSet};
use slab::Slab;

use super::{
    super::{
        Host,
        entry::{CLASS, Entry, Place},
    },
    Queues,
};

impl Queues {
    pub(in super::super) fn ready<H: Host>(&self, entries: &Slab<Entry<H>>) -> Vec<usize> {
        self.classes.iter().flat_map(|class| class.order.iter(entries, CLASS)).collect()
    }

    /// Checks that nothing is kept but for jobs that are there, and for tenants that owe where others compete.
    pub(in super::super) fn assert_bounded<H: Host>(&self, entries: &Slab<Entry<H>>) {
        let (mut held, mut owed) = (FxHashMap::default(), FxHashMap::default());
        for (_, entry) in entries {
            if let Some(tenant) = entry.tenant {
                *held.entry(tenant).or_default() += 1;
            }
        }
        for (slot, lane) in self.lanes.iter().enumerate() {
            let tenants = |is: fn(Place) -> bool| -> FxHashSet<usize> {
                let of_lane = entries.iter().map(|(_, entry)| entry).filter(|entry| entry.slot() == slot);
                of_lane.filter(|entry| is(entry.place)).filter_map(|entry| entry.tenant).collect()
            };
            let queued = tenants(|place| matches!(place, Place::Ready | Place::Blocked | Place::Held)).len();
            let blocked = tenants(|place| place == Place::Blocked).len();
            assert!(lane.backlogs.tenants() <= queued, "no backlog without a job");
            assert!(lane.mixed.tenants() <= 2 * blocked, "no mix without a blocked job");
            assert_eq!(
                lane.turns.len(),
                tenants(|place| place == Place::Ready).len(),
                "each tenant with a ready job has a turn"
            );
            assert!(lane.debtors.is_empty() || !lane.turns.is_empty(), "nothing is owed where none competes");
            for (tag, tenant) in &lane.debtors {
                assert!(*tag > lane.clock, "a debt that does not count any more is forgiven");
                *owed.entry(*tenant).or_default() += 1;
            }
        }
        self.tenants.assert_bounded(&held, &owed);
    }
}
