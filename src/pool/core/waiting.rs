use slab::Slab;

use super::{
    Host,
    entry::{Entry, LINE},
    list::List,
};
use crate::model::Criticality;

/// Callers without room: the more important classes first, in order of arrival within a class.
#[derive(Default)]
pub(super) struct Waiting {
    classes: [List; 4],
    /// Expected seconds of their jobs, by class.
    work: [f64; 4],
    bytes: usize,
    len: usize,
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
        self.classes.iter().filter_map(List::head)
    }

    /// The first callers of `class` and of those above it.
    pub(super) fn ahead_of(&self, class: Criticality) -> impl Iterator<Item = usize> {
        self.classes[..=class.rank()].iter().filter_map(List::head)
    }

    /// Expected seconds of the jobs of `class` and of those above it.
    pub(super) fn work_ahead_of(&self, class: Criticality) -> f64 {
        self.work[..=class.rank()].iter().sum()
    }

    pub(super) fn push<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let Entry { class, bytes, work, .. } = entries[index];
        self.len += 1;
        self.bytes += bytes;
        self.work[class.rank()] += work;
        self.classes[class.rank()].push_back(entries, LINE, index);
    }

    pub(super) fn remove<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let Entry { class, bytes, work, .. } = entries[index];
        let (list, sum) = (&mut self.classes[class.rank()], &mut self.work[class.rank()]);
        list.remove(entries, LINE, index);
        self.len -= 1;
        self.bytes -= bytes;
        // Rounding does not outlive the last one.
        *sum = if list.is_empty() { 0.0 } else { (*sum - work).max(0.0) };
    }

    /// A job is expected to take so many seconds.
    pub(super) fn revalue<H: Host>(&mut self, entry: &mut Entry<H>, work: f64) {
        let sum = &mut self.work[entry.class.rank()];
        *sum = (*sum + work - entry.work).max(0.0);
        entry.work = work;
    }

    /// All of them, in order.
    pub(super) fn iter<H: Host>(&self, entries: &Slab<Entry<H>>) -> impl Iterator<Item = usize> {
        self.classes.iter().flat_map(|list| list.iter(entries, LINE))
    }

    /// Those of one class, in order; as many as are looked at in one go.
    pub(super) fn of_class<H: Host>(&self, rank: usize, entries: &Slab<Entry<H>>) -> Vec<usize> {
        self.classes[rank].iter(entries, LINE).take(LOOKED_AT).collect()
    }
}

/// Callers of a class that are asked whether they may be queued, when something changed: those behind wait for the next
/// change, and no change costs more than so many looks.
const LOOKED_AT: usize = 32;
