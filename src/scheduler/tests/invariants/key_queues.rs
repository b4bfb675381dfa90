//! The sums of the queues of ordering keys.

use rustc_hash::FxHashMap;

use super::KeyQueues;

impl KeyQueues {
    pub(in super::super::super) fn blocked(&self) -> usize {
        self.key_queues.iter().map(|(_, key_queue)| key_queue.blocked.len()).sum()
    }

    pub(in super::super::super) fn len(&self) -> usize {
        assert_eq!(self.key_queues.len(), self.by_key.values().map(FxHashMap::len).sum::<usize>());
        self.key_queues.len()
    }
}
