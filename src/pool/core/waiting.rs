use rustc_hash::FxHashMap;
use slab::Slab;

use super::{
    Host,
    backlogs::Backlogs,
    entry::{CLASS, Entry, LINE},
    list::List,
    look::{Fronts, Look},
};
use crate::model::Criticality;

/// Callers without room: the more important classes first. Within a class, each tenant's stand in order of arrival, and
/// those tenants come first whose first caller has been there for the longest time.
#[derive(Default)]
pub(super) struct Waiting {
    classes: [Class; 4],
    by_name: FxHashMap<Box<str>, usize>,
    parties: Slab<Party>,
    bytes: usize,
    len: usize,
}

#[derive(Default)]
struct Class {
    /// All of its callers, in order of arrival.
    order: List,
    /// Expected seconds of their jobs.
    work: f64,
    backlogs: Backlogs,
    fronts: Fronts,
}

/// The callers of one tenant.
struct Party {
    name: Box<str>,
    callers: usize,
    /// By class.
    lines: [List; 4],
    work: [f64; 4],
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Payload bytes of their jobs.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first caller of all.
    pub(super) fn first(&self) -> Option<usize> {
        self.heads().next()
    }

    /// The first caller of each class that has one.
    pub(super) fn heads(&self) -> impl Iterator<Item = usize> {
        self.classes.iter().filter_map(|class| class.order.head())
    }

    /// The first callers of `class` and of those above it.
    pub(super) fn ahead_of(&self, class: Criticality) -> impl Iterator<Item = usize> {
        self.classes[..=class.rank()].iter().filter_map(|class| class.order.head())
    }

    /// The first callers of tenants, class by class: of as many as are asked in one go.
    pub(super) fn firsts(&self) -> impl Iterator<Item = usize> {
        self.classes.iter().flat_map(|class| class.fronts.iter())
    }

    /// Expected seconds of the jobs of `class` and of those above it.
    pub(super) fn work_ahead_of(&self, class: Criticality) -> f64 {
        self.classes[..=class.rank()].iter().map(|class| class.work).sum()
    }

    /// The same of one tenant: in the classes above, and in `class`.
    pub(super) fn work_of(&self, tenant: &str, class: Criticality) -> (f64, f64) {
        self.by_name.get(tenant).map_or((0.0, 0.0), |party| {
            let work = &self.parties[*party].work;
            (work[..class.rank()].iter().sum(), work[class.rank()])
        })
    }

    /// Expected seconds of the jobs in the classes above, and in `class` of each tenant at most `own`.
    pub(super) fn fair_work_ahead_of(&self, class: Criticality, own: f64) -> f64 {
        let above: f64 = self.classes[..class.rank()].iter().map(|class| class.work).sum();
        above + self.classes[class.rank()].backlogs.up_to(own)
    }

    pub(super) fn push<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let Entry { sequence, class, bytes, work, .. } = entries[index];
        let (party, rank) = (self.find_or_make(entries[index].names().tenant), class.rank());
        let (party, class) = (&mut self.parties[party], &mut self.classes[rank]);
        if party.lines[rank].is_empty() {
            class.fronts.insert(sequence, index);
        }
        class.order.push_back(entries, CLASS, index);
        party.lines[rank].push_back(entries, LINE, index);
        party.callers += 1;
        party.set(class, rank, party.work[rank] + work);
        self.len += 1;
        self.bytes += bytes;
    }

    pub(super) fn remove<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let Entry { sequence, class, bytes, work, .. } = entries[index];
        let (at, rank) = (self.by_name[entries[index].names().tenant], class.rank());
        let (party, class) = (&mut self.parties[at], &mut self.classes[rank]);
        let was_first = party.lines[rank].head() == Some(index);
        class.order.remove(entries, CLASS, index);
        party.lines[rank].remove(entries, LINE, index);
        party.callers -= 1;
        let next = party.lines[rank].head();
        if was_first {
            class.fronts.remove(sequence, index);
            next.into_iter().for_each(|next| class.fronts.insert(entries[next].sequence, next));
        }
        // Rounding does not outlive the last one.
        let left = next.map_or(0.0, |_| (party.work[rank] - work).max(f64::MIN_POSITIVE));
        party.set(class, rank, left);
        if class.order.is_empty() {
            class.work = 0.0;
        }
        if party.callers == 0 {
            let gone = self.parties.remove(at);
            self.by_name.remove(&gone.name);
        }
        self.len -= 1;
        self.bytes -= bytes;
    }

    fn find_or_make(&mut self, tenant: &str) -> usize {
        if let Some(party) = self.by_name.get(tenant) {
            return *party;
        }
        let fresh = Party { name: tenant.into(), callers: 0, lines: Default::default(), work: [0.0; 4] };
        let party = self.parties.insert(fresh);
        self.by_name.insert(tenant.into(), party);
        party
    }

    /// A job is expected to take so many seconds.
    pub(super) fn revalue<H: Host>(&mut self, entry: &mut Entry<H>, work: f64) {
        let (party, rank) = (self.by_name[entry.names().tenant], entry.class.rank());
        let party = &mut self.parties[party];
        let all = (party.work[rank] + work - entry.work).max(f64::MIN_POSITIVE);
        party.set(&mut self.classes[rank], rank, all);
        entry.work = work;
    }

    /// All of them, the more important classes first, in order of arrival within a class.
    pub(super) fn iter<H: Host>(&self, entries: &Slab<Entry<H>>) -> impl Iterator<Item = usize> {
        self.classes.iter().flat_map(|class| class.order.iter(entries, CLASS))
    }

    /// The callers of a class that are asked next.
    pub(super) fn look(&self, class: Criticality) -> Look {
        self.classes[class.rank()].fronts.look()
    }

    /// The first caller of a class.
    pub(super) fn head(&self, class: Criticality) -> Option<usize> {
        self.classes[class.rank()].order.head()
    }

    /// Arrival and index of the next caller of the same tenant and class.
    pub(super) fn next<H: Host>(entries: &Slab<Entry<H>>, index: usize) -> Option<(u64, usize)> {
        List::next(entries, LINE, index).map(|next| (entries[next].sequence, next))
    }

    /// All that a look asked stay where they are.
    pub(super) fn pass(&mut self, class: Criticality, look: &Look) {
        self.classes[class.rank()].fronts.pass(look);
    }

    /// Each caller, sum and tenant, counted anew.
    #[cfg(test)]
    pub(super) fn assert_whole<H: Host>(&self, entries: &Slab<Entry<H>>) {
        let near = |left: f64, right: f64| (left - right).abs() < 1e-9;
        let work = |index: usize| entries[index].work;
        for (rank, class) in self.classes.iter().enumerate() {
            let order: Vec<usize> = class.order.iter(entries, CLASS).collect();
            assert!(order.is_sorted_by_key(|index| entries[*index].sequence), "callers stand in order of arrival");
            assert!(near(class.work, order.iter().copied().map(work).sum()), "work of the callers of a class");
            let lines = self.parties.iter().filter(|(_, party)| !party.lines[rank].is_empty());
            let mut in_lines = 0;
            let mut fronts = Vec::new();
            for (_, party) in lines {
                let line: Vec<usize> = party.lines[rank].iter(entries, LINE).collect();
                assert!(line.iter().all(|index| *entries[*index].names().tenant == *party.name), "each in its line");
                assert!(line.is_sorted_by_key(|index| entries[*index].sequence), "a line is in order of arrival");
                assert!(near(party.work[rank], line.iter().copied().map(work).sum()), "work of a tenant's callers");
                in_lines += line.len();
                fronts.push((entries[line[0]].sequence, line[0]));
            }
            fronts.sort_unstable();
            assert_eq!(in_lines, order.len(), "each caller is in its tenant's line");
            assert_eq!(class.fronts.all(), fronts, "each tenant is at the front once, by its first caller");
            assert!(class.backlogs.tenants() <= fronts.len(), "no backlog without a caller");
        }
        assert!(self.parties.iter().all(|(_, party)| party.callers > 0), "no tenant without a caller");
        let callers: usize = self.parties.iter().map(|(_, party)| party.callers).sum();
        assert_eq!((callers, self.by_name.len()), (self.len, self.parties.len()), "callers and tenants");
    }
}

impl Party {
    /// Its jobs in a class are expected to take so many seconds.
    fn set(&mut self, class: &mut Class, rank: usize, work: f64) {
        let before = std::mem::replace(&mut self.work[rank], work);
        class.backlogs.change(before, work);
        class.work = (class.work + work - before).max(0.0);
    }
}
