use super::{Core, Host, entry::Place, workers::Duty};

impl<H: Host> Core<H> {
    /// Checks every invariant of the machine by counting anew.
    pub(super) fn assert_invariants(&self) {
        let places: Vec<Place> = self.entries.iter().map(|(_, entry)| entry.place).collect();
        let count = |wanted: fn(&Place) -> bool| places.iter().filter(|place| wanted(place)).count();
        let waiting = count(|place| *place == Place::Waiting);
        let ready = count(|place| *place == Place::Ready);
        let blocked = count(|place| *place == Place::Blocked);
        let held = count(|place| *place == Place::Held);
        let running = count(|place| matches!(place, Place::Running { .. }));

        assert_eq!(self.queued.len(), ready + blocked + held, "queued = ready + blocked + held");
        assert_eq!(self.running, running, "each worker's job is counted once");
        assert_eq!(self.waiting.len(), waiting, "each waiting caller is in line");
        assert_eq!(self.queues.ready(&self.entries).len(), ready, "each ready job is in its class");
        assert_eq!(self.lines.blocked(), blocked, "each blocked job is behind its key");
        assert_eq!(self.limits.held(), held, "each held job is at its gate");
        assert!(self.queued.len() <= self.caps.jobs, "jobs within their cap");
        assert!(waiting <= self.caps.waiting, "callers within their cap");

        let bytes = |wanted: fn(Place) -> bool| -> usize {
            let entries = self.entries.iter().map(|(_, entry)| entry);
            entries.filter(|entry| wanted(entry.place)).map(|entry| entry.bytes).sum()
        };
        let queued = bytes(|place| matches!(place, Place::Ready | Place::Blocked | Place::Held));
        assert_eq!(self.queued_bytes, queued, "bytes of queued jobs alone");
        assert_eq!(self.waiting.bytes(), bytes(|place| place == Place::Waiting), "bytes of waiting callers");
        assert!(self.queued_bytes <= self.caps.bytes, "bytes within their cap");
        assert!(self.waiting.bytes() <= self.caps.bytes, "bytes of waiting callers within their cap");

        let accepted = self.ledger.counts.accepted;
        let undecided = self.entries.iter().filter(|(_, entry)| entry.is_undecided_run()).count() + self.queued.len();
        assert_eq!(accepted, self.ledger.counts.ended() + undecided as u64, "every accepted job ends once");

        let head = self.settled.get().and_then(|now| self.head(now));
        assert!(!self.can_start() || head.is_none(), "no worker idles while a job may start");
        let runs = self.entries.iter().filter(|(_, entry)| matches!(entry.place, Place::Running { .. }));
        self.limits.assert_kept(&runs.map(|(_, entry)| (entry.lane, entry.gate)).collect::<Vec<_>>());
        self.limits.assert_bounded(&self.entries.iter().filter_map(|(_, entry)| entry.gate).collect::<Vec<_>>());
        self.queues.assert_bounded(&self.entries);
        let idle = self.workers.iter().filter(|slot| matches!(slot.duty, Duty::Idle(_))).count();
        assert_eq!(self.workers.parked().concat().len(), idle, "each idle worker is parked once");
        let wakes = self.settled.get().zip(self.wake_at());
        assert!(wakes.is_none_or(|(settled, at)| at > settled), "what time alone lets start was started");
        assert!(self.paused.is_none() || !(self.closed || self.shut), "a shut door holds nothing back");
        let (surplus, missed) = (self.workers.surplus(), self.workers.unreplaced());
        assert!(surplus == 0 || missed == 0, "nobody goes while another one is missed");
        assert!(surplus <= self.running, "only busy workers are to go");
        let leaders = self.entries.iter().filter(|(_, entry)| entry.line.is_some() && entry.place != Place::Blocked);
        let mut lines: Vec<usize> = leaders.filter_map(|(_, entry)| entry.line).collect();
        lines.sort_unstable();
        let leading = lines.len();
        lines.dedup();
        assert_eq!(lines.len(), leading, "one job of a key is ready or runs");
        assert_eq!(self.lines.len(), leading, "no line without a leader");
        let in_line: Vec<usize> = self.waiting.iter(&self.entries).collect();
        assert_eq!(in_line.len(), waiting, "the line of callers is whole");
        self.waiting.assert_whole(&self.entries);
    }
}
