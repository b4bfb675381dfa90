use slab::Slab;

use super::{
    Host,
    entry::{Entry, LINE},
    list::List,
};
use crate::model::Criticality;

/// The ready jobs: strict order among the classes, first in first out within a class.
///
/// Fair sharing among the tenants of a class belongs behind [`push`](Self::push) and [`head`](Self::head): a class then
/// holds one list for each tenant, and nothing outside this file changes.
#[derive(Default)]
pub(super) struct Queues {
    classes: [Class; 4],
}

#[derive(Default)]
struct Class {
    ready: List,
    bytes: usize,
}

impl Queues {
    pub(super) fn push<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let class = &mut self.classes[entries[index].class.rank()];
        class.bytes += entries[index].bytes;
        class.ready.push_back(entries, LINE, index);
    }

    /// The job to start next.
    pub(super) fn head(&self) -> Option<usize> {
        self.classes.iter().find_map(|class| class.ready.head())
    }

    pub(super) fn remove<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let class = &mut self.classes[entries[index].class.rank()];
        class.bytes -= entries[index].bytes;
        class.ready.remove(entries, LINE, index);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.classes.iter().all(|class| class.ready.is_empty())
    }

    /// The job that gives way to one of `class`: the newest of the lowest class below it.
    pub(super) fn victim(&self, class: Criticality) -> Option<usize> {
        self.classes[class.rank() + 1..].iter().rev().find_map(|lower| lower.ready.tail())
    }

    /// Bytes and number of the jobs that would give way to one of `class`.
    pub(super) fn evictable(&self, class: Criticality) -> (usize, usize) {
        let lower = &self.classes[class.rank() + 1..];
        lower.iter().fold((0, 0), |(bytes, jobs), class| (bytes + class.bytes, jobs + class.ready.len()))
    }

    #[cfg(test)]
    pub(super) fn ready<H: Host>(&self, entries: &Slab<Entry<H>>) -> Vec<usize> {
        self.classes.iter().flat_map(|class| class.ready.iter(entries, LINE)).collect()
    }
}
