//! Queues of ordering keys. Each key runs one job at a time.

#[cfg(test)]
#[path = "../tests/invariants/key_queues.rs"]
mod invariants;

use rustc_hash::FxHashMap;
use slab::Slab;

use super::super::{
    Host,
    entry::{Entry, KeyQueueId, Names},
    list::{Link, List},
};

/// The ordering keys in use; each belongs to one tenant. A key has a queue while one of its jobs is ready, running or
/// blocked. All of its jobs but one are blocked.
#[derive(Default)]
pub(crate) struct KeyQueues {
    /// By tenant and key.
    by_key: FxHashMap<Box<str>, FxHashMap<Box<str>, KeyQueueId>>,
    key_queues: Slab<KeyQueue>,
}

struct KeyQueue {
    tenant: Box<str>,
    key: Box<str>,
    blocked: List,
    /// Expected seconds of its jobs, including running ones.
    work: f64,
    jobs: usize,
}

impl KeyQueues {
    /// Whether a job with that key may start at once.
    pub(crate) fn is_free(&self, names: Names<'_>) -> bool {
        self.find(names).is_none()
    }

    /// Expected seconds of all jobs with that key, which run one after the other.
    pub(crate) fn work(&self, names: Names<'_>) -> f64 {
        self.find(names).map_or(0.0, |key_queue| self.key_queues[key_queue.0].work)
    }

    /// The queue of a key in use. The empty key is never in use.
    pub(crate) fn find(&self, Names { tenant, ordering_key, .. }: Names<'_>) -> Option<KeyQueueId> {
        self.by_key.get(tenant).filter(|_| !ordering_key.is_empty())?.get(ordering_key).copied()
    }

    /// Joins the queue of a key, which is created for the first job. `None` for the empty key.
    pub(crate) fn join(&mut self, names: Names<'_>, work: f64) -> Option<KeyQueueId> {
        if names.ordering_key.is_empty() {
            return None;
        }
        let key_queue = self.find(names).unwrap_or_else(|| self.make(names));
        self.key_queues[key_queue.0].jobs += 1;
        self.key_queues[key_queue.0].work += work;
        Some(key_queue)
    }

    /// A job leaves its key queue, from any position.
    pub(crate) fn quit(&mut self, key_queue: KeyQueueId, work: f64) {
        let key_queue = &mut self.key_queues[key_queue.0];
        key_queue.jobs -= 1;
        // Removes rounding errors with the last job.
        key_queue.work = if key_queue.jobs == 0 { 0.0 } else { (key_queue.work - work).max(0.0) };
    }

    fn make(&mut self, Names { tenant, ordering_key, .. }: Names<'_>) -> KeyQueueId {
        let (tenant, key): (Box<str>, Box<str>) = (tenant.into(), ordering_key.into());
        let (blocked, keys) = (List::default(), self.by_key.entry(tenant.clone()).or_default());
        let key_queue = self.key_queues.insert(KeyQueue { tenant, key: key.clone(), blocked, work: 0.0, jobs: 0 });
        keys.insert(key, KeyQueueId(key_queue));
        KeyQueueId(key_queue)
    }

    pub(crate) fn block<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        self.key_queues[key_queue_of(&entries[index]).0].blocked.push_back(entries, Link::Line, index);
    }

    pub(crate) fn unblock<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        self.key_queues[key_queue_of(&entries[index]).0].blocked.remove(entries, Link::Line, index);
    }

    /// The first job of a key queue was removed. Returns the next one, which may start, or removes the queue.
    pub(crate) fn advance<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, key_queue: KeyQueueId) -> Option<usize> {
        let next = self.key_queues[key_queue.0].blocked.pop_front(entries, Link::Line);
        if next.is_none() {
            let KeyQueue { tenant, key, .. } = self.key_queues.remove(key_queue.0);
            if let Some(keys) = self.by_key.get_mut(&tenant) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.by_key.remove(&tenant);
                }
            }
        }
        next
    }
}

fn key_queue_of<H: Host>(entry: &Entry<H>) -> KeyQueueId {
    entry.key_queue.expect("a blocked job has an ordering key")
}
