//! The invariants of the waiting callers.

use slab::Slab;

use super::{
    super::super::{Host, entry::Entry, list::Link},
    Waiting,
};

impl Waiting {
    /// Checks each caller, sum and tenant by counting again.
    pub(in super::super::super) fn assert_whole<H: Host>(&self, entries: &Slab<Entry<H>>) {
        let near = |left: f64, right: f64| (left - right).abs() < 1e-9;
        let work = |index: usize| entries[index].work;
        for (rank, class) in self.classes.iter().enumerate() {
            let order: Vec<usize> = class.order.iter(entries, Link::Class).collect();
            assert!(order.is_sorted_by_key(|index| entries[*index].sequence), "callers are in order of arrival");
            assert!(near(class.work, order.iter().copied().map(work).sum()), "work of the callers of a class");
            let lines = self.tenants.iter().filter(|(_, tenant)| !tenant.lines[rank].is_empty());
            let mut in_lines = 0;
            let mut first_callers = Vec::new();
            for (_, tenant) in lines {
                let line: Vec<usize> = tenant.lines[rank].iter(entries, Link::Line).collect();
                assert!(
                    line.iter().all(|index| *entries[*index].names().tenant == *tenant.name),
                    "each caller is in the list of its tenant"
                );
                assert!(
                    line.is_sorted_by_key(|index| entries[*index].sequence),
                    "the callers of a tenant are in order of arrival"
                );
                assert!(near(tenant.work[rank], line.iter().copied().map(work).sum()), "work of a tenant's callers");
                in_lines += line.len();
                first_callers.push((entries[line[0]].sequence, line[0]));
            }
            first_callers.sort_unstable();
            assert_eq!(in_lines, order.len(), "each caller is in one list");
            assert_eq!(
                class.first_callers.iter().copied().collect::<Vec<_>>(),
                first_callers,
                "each tenant is at the front once, by its first caller"
            );
            assert!(class.backlogs.tenants() <= first_callers.len(), "no backlog without a caller");
        }
        assert!(self.tenants.iter().all(|(_, tenant)| tenant.callers > 0), "no tenant without a caller");
        let callers: usize = self.tenants.iter().map(|(_, tenant)| tenant.callers).sum();
        assert_eq!((callers, self.by_name.len()), (self.len, self.tenants.len()), "callers and tenants");
    }
}
