//! Queues of ordering keys. Each key runs one job at a time.

use rustc_hash::FxHashMap;
use slab::Slab;

use super::super::{
    Host,
    entry::{Entry, KeyQueueId, LINE},
    list::List,
};

/// The ordering keys in use. A key has a queue while one of its jobs is ready, running or blocked. All of its jobs but
/// one are blocked.
#[derive(Default)]
pub(crate) struct KeyQueues {
    by_key: FxHashMap<Box<str>, KeyQueueId>,
    key_queues: Slab<KeyQueue>,
}

struct KeyQueue {
    key: Box<str>,
    blocked: List,
    /// Expected seconds of its jobs, including running ones.
    work: f64,
    jobs: usize,
}

impl KeyQueues {
    /// Whether a job with that key may start at once.
    pub(crate) fn is_free(&self, key: &str) -> bool {
        key.is_empty() || !self.by_key.contains_key(key)
    }

    /// Expected seconds of all jobs with that key, which run one after the other.
    pub(crate) fn work(&self, key: &str) -> f64 {
        let key_queue = self.by_key.get(key).filter(|_| !key.is_empty());
        key_queue.map_or(0.0, |key_queue| self.key_queues[key_queue.0].work)
    }

    /// Joins the queue of `key`, which is created for the first job. `None` for the empty key.
    pub(crate) fn join(&mut self, key: &str, work: f64) -> Option<KeyQueueId> {
        if key.is_empty() {
            return None;
        }
        let key_queue = self.find_or_make(key);
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

    fn find_or_make(&mut self, key: &str) -> KeyQueueId {
        if let Some(key_queue) = self.by_key.get(key) {
            return *key_queue;
        }
        let key_queue = KeyQueueId(self.key_queues.insert(KeyQueue {
            key: key.into(),
            blocked: List::default(),
            work: 0.0,
            jobs: 0,
        }));
        self.by_key.insert(key.into(), key_queue);
        key_queue
    }

    pub(crate) fn block<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        self.key_queues[key_queue_of(&entries[index]).0].blocked.push_back(entries, LINE, index);
    }

    pub(crate) fn unblock<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        self.key_queues[key_queue_of(&entries[index]).0].blocked.remove(entries, LINE, index);
    }

    /// The first job of a key queue was removed. Returns the next one, which may start, or removes the queue.
    pub(crate) fn advance<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, key_queue: KeyQueueId) -> Option<usize> {
        let next = self.key_queues[key_queue.0].blocked.pop_front(entries, LINE);
        if next.is_none() {
            let key_queue = self.key_queues.remove(key_queue.0);
            self.by_key.remove(&key_queue.key);
        }
        next
    }

    #[cfg(test)]
    pub(crate) fn blocked(&self) -> usize {
        self.key_queues.iter().map(|(_, key_queue)| key_queue.blocked.len()).sum()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        assert_eq!(self.key_queues.len(), self.by_key.len());
        self.key_queues.len()
    }
}

fn key_queue_of<H: Host>(entry: &Entry<H>) -> KeyQueueId {
    entry.key_queue.expect("a blocked job has an ordering key")
}
