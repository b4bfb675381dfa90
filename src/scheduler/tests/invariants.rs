//! The invariants of the scheduler. Those of its parts are in the files of the same name.

use super::{Core, Host, entry::EntryStage, workers::WorkerState};

impl<H: Host> Core<H> {
    /// Checks every invariant by counting again.
    pub(super) fn assert_invariants(&self) {
        let stages: Vec<EntryStage> = self.entries.iter().map(|(_, entry)| entry.stage).collect();
        let count = |wanted: fn(&EntryStage) -> bool| stages.iter().filter(|stage| wanted(stage)).count();
        let waiting = count(|stage| *stage == EntryStage::Waiting);
        let ready = count(|stage| *stage == EntryStage::Ready);
        let blocked = count(|stage| *stage == EntryStage::Blocked);
        let throttled = count(|stage| *stage == EntryStage::Throttled);
        let running = count(|stage| matches!(stage, EntryStage::Running { .. }));

        assert_eq!(self.queue.all.len(), ready + blocked + throttled, "queued = ready + blocked + throttled");
        assert_eq!(self.running, running, "each running job is counted once");
        assert_eq!(self.queue.waiting.len(), waiting, "each waiting caller is in the list of callers");
        assert_eq!(self.queue.ready(&self.entries).len(), ready, "each ready job is in its class");
        assert_eq!(self.queue.keys.blocked(), blocked, "each blocked job is in its key queue");
        assert_eq!(self.limits.throttled(), throttled, "each throttled job is at its key limiter");
        assert!(self.queue.all.len() <= self.caps.jobs, "jobs within their cap");
        assert!(waiting <= self.caps.waiting, "callers within their cap");

        let bytes = |wanted: fn(EntryStage) -> bool| -> usize {
            let entries = self.entries.iter().map(|(_, entry)| entry);
            entries.filter(|entry| wanted(entry.stage)).map(|entry| entry.bytes).sum()
        };
        let queued = bytes(|stage| matches!(stage, EntryStage::Ready | EntryStage::Blocked | EntryStage::Throttled));
        assert_eq!(self.queue.bytes, queued, "bytes of queued jobs alone");
        assert_eq!(self.queue.waiting.bytes(), bytes(|stage| stage == EntryStage::Waiting), "bytes of waiting callers");
        assert!(self.queue.bytes <= self.caps.bytes, "bytes within their cap");
        assert!(self.queue.waiting.bytes() <= self.caps.bytes, "bytes of waiting callers within their cap");

        let accepted = self.counts.accepted;
        let undecided =
            self.entries.iter().filter(|(_, entry)| entry.is_undecided_run()).count() + self.queue.all.len();
        assert_eq!(accepted, self.counts.ended() + undecided as u64, "every accepted job ends once");

        let head = self.dispatched.get().and_then(|now| self.head(now));
        assert!(!self.can_start() || head.is_none(), "no worker idles while a job may start");
        let runs = self.entries.iter().filter(|(_, entry)| matches!(entry.stage, EntryStage::Running { .. }));
        self.limits.assert_kept(&runs.map(|(_, entry)| (entry.kind_queue, entry.key_limiter)).collect::<Vec<_>>());
        self.limits.assert_bounded(&self.entries.iter().filter_map(|(_, entry)| entry.key_limiter).collect::<Vec<_>>());
        self.queue.assert_bounded(&self.entries);
        let idle = self.workers.iter().filter(|worker| matches!(worker.state, WorkerState::Idle(_))).count();
        assert_eq!(self.workers.parked().concat().len(), idle, "each idle worker is in one list");
        let wakes = self.dispatched.get().zip(self.wake_at());
        assert!(wakes.is_none_or(|(dispatched, at)| at > dispatched), "jobs that waited only for time were started");
        assert!(
            self.paused.is_none() || !(self.closed_for_good || self.shut_by_operator),
            "a shut or closed pool is not paused"
        );
        let (surplus, missed) = (self.workers.surplus(), self.workers.unreplaced());
        assert!(surplus == 0 || missed == 0, "no worker is removed while one is missing");
        assert!(surplus <= self.running, "only busy workers are retiring");
        let leaders =
            self.entries.iter().filter(|(_, entry)| entry.key_queue.is_some() && entry.stage != EntryStage::Blocked);
        let mut keys: Vec<_> = leaders.filter_map(|(_, entry)| entry.key_queue).collect();
        keys.sort_unstable();
        let leading = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), leading, "one job of a key is ready, throttled or running");
        assert_eq!(self.queue.keys.len(), leading, "each key has such a job");
        let in_order: Vec<usize> = self.queue.waiting.iter(&self.entries).collect();
        assert_eq!(in_order.len(), waiting, "the list of callers is complete");
        self.queue.waiting.assert_whole(&self.entries);
    }
}
