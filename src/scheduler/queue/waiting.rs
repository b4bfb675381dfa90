//! Callers that wait for capacity.

#[cfg(test)]
#[path = "../tests/invariants/waiting.rs"]
mod invariants;

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use slab::Slab;

use super::{
    super::{
        Host,
        entry::Entry,
        list::{Link, List},
    },
    backlogs::Backlogs,
};
use crate::model::Criticality;

/// Waiting callers, by class. Within a class, each tenant's callers are in order of arrival, and tenants are in the
/// order of their first callers.
#[derive(Default)]
pub(crate) struct Waiting {
    classes: [WaitingClass; 4],
    by_name: FxHashMap<Box<str>, usize>,
    tenants: Slab<WaitingTenant>,
    bytes: usize,
    len: usize,
}

#[derive(Default)]
struct WaitingClass {
    /// All of its callers, in order of arrival.
    order: List,
    /// Expected seconds of their jobs.
    work: f64,
    backlogs: Backlogs,
    /// The first callers of its tenants, as number of arrival and index, in order of arrival.
    first_callers: BTreeSet<(u64, usize)>,
}

/// The callers of one tenant.
struct WaitingTenant {
    name: Box<str>,
    callers: usize,
    /// By class.
    lines: [List; 4],
    work: [f64; 4],
}

impl Waiting {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Payload bytes of their jobs.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first caller of all.
    pub(crate) fn first(&self) -> Option<usize> {
        self.heads().next()
    }

    /// The first caller of each class that has one.
    pub(crate) fn heads(&self) -> impl Iterator<Item = usize> {
        self.classes.iter().filter_map(|class| class.order.head())
    }

    /// The first callers of `class` and of the classes above.
    pub(crate) fn ahead_of(&self, class: Criticality) -> impl Iterator<Item = usize> {
        self.classes[..=class.rank()].iter().filter_map(|class| class.order.head())
    }

    /// The first callers of the tenants of a class, in order of arrival.
    pub(crate) fn first_callers(&self, class: Criticality) -> impl Iterator<Item = usize> {
        self.classes[class.rank()].first_callers.iter().map(|(_, index)| *index)
    }

    /// Expected seconds of the jobs of `class` and of the classes above.
    pub(crate) fn work_ahead_of(&self, class: Criticality) -> f64 {
        self.classes[..=class.rank()].iter().map(|class| class.work).sum()
    }

    /// Expected seconds of the jobs of one tenant: in the classes above, and in `class`.
    pub(crate) fn work_of(&self, tenant: &str, class: Criticality) -> (f64, f64) {
        self.by_name.get(tenant).map_or((0.0, 0.0), |tenant| {
            let work = &self.tenants[*tenant].work;
            (work[..class.rank()].iter().sum(), work[class.rank()])
        })
    }

    /// Expected seconds of the jobs in the classes above, and in `class` at most `own` of each tenant.
    pub(crate) fn fair_work_ahead_of(&self, class: Criticality, own: f64) -> f64 {
        let above: f64 = self.classes[..class.rank()].iter().map(|class| class.work).sum();
        above + self.classes[class.rank()].backlogs.up_to(own)
    }

    pub(crate) fn push<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let Entry { sequence, class, bytes, work, .. } = entries[index];
        let (tenant, rank) = (self.find_or_make(entries[index].names().tenant), class.rank());
        let (tenant, class) = (&mut self.tenants[tenant], &mut self.classes[rank]);
        if tenant.lines[rank].is_empty() {
            class.first_callers.insert((sequence, index));
        }
        class.order.push_back(entries, Link::Class, index);
        tenant.lines[rank].push_back(entries, Link::Line, index);
        tenant.callers += 1;
        tenant.set(class, rank, tenant.work[rank] + work);
        self.len += 1;
        self.bytes += bytes;
    }

    pub(crate) fn remove<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let Entry { sequence, class, bytes, work, .. } = entries[index];
        let (at, rank) = (self.by_name[entries[index].names().tenant], class.rank());
        let (tenant, class) = (&mut self.tenants[at], &mut self.classes[rank]);
        let was_first = tenant.lines[rank].head() == Some(index);
        class.order.remove(entries, Link::Class, index);
        tenant.lines[rank].remove(entries, Link::Line, index);
        tenant.callers -= 1;
        let next = tenant.lines[rank].head();
        if was_first {
            class.first_callers.remove(&(sequence, index));
            class.first_callers.extend(next.map(|next| (entries[next].sequence, next)));
        }
        // Removes rounding errors with the last caller.
        let left = next.map_or(0.0, |_| (tenant.work[rank] - work).max(f64::MIN_POSITIVE));
        tenant.set(class, rank, left);
        if class.order.is_empty() {
            class.work = 0.0;
        }
        if tenant.callers == 0 {
            let gone = self.tenants.remove(at);
            self.by_name.remove(&gone.name);
        }
        self.len -= 1;
        self.bytes -= bytes;
    }

    fn find_or_make(&mut self, name: &str) -> usize {
        if let Some(tenant) = self.by_name.get(name) {
            return *tenant;
        }
        let fresh = WaitingTenant { name: name.into(), callers: 0, lines: Default::default(), work: [0.0; 4] };
        let tenant = self.tenants.insert(fresh);
        self.by_name.insert(name.into(), tenant);
        tenant
    }

    /// All callers, more important classes first, in order of arrival within a class.
    pub(crate) fn iter<H: Host>(&self, entries: &Slab<Entry<H>>) -> impl Iterator<Item = usize> {
        self.classes.iter().flat_map(|class| class.order.iter(entries, Link::Class))
    }

    /// The first caller of a class.
    pub(crate) fn head(&self, class: Criticality) -> Option<usize> {
        self.classes[class.rank()].order.head()
    }
}

impl WaitingTenant {
    /// Sets the expected seconds of its jobs in a class.
    fn set(&mut self, class: &mut WaitingClass, rank: usize, work: f64) {
        let before = std::mem::replace(&mut self.work[rank], work);
        class.backlogs.change(before, work);
        class.work = (class.work + work - before).max(0.0);
    }
}
