use std::time::Duration;

use tokio::time::Instant;

use super::{
    Core, Effect, Host, RefusalReason,
    admission::pushback,
    entry::{AGE, Entry, LINE, Names, Place},
};
use crate::model::{Criticality, Outcome};

pub(super) const WAITER: &str = "an entry that has not started keeps its waiter";

/// The ways of a job between its places.
impl<H: Host> Core<H> {
    /// Room is there: the job becomes queued, behind its ordering key where that is in use.
    pub(super) fn accept(&mut self, now: Instant, index: usize, names: Names<'_>, is_probe: bool) {
        self.ledger.counts.accepted += 1;
        let free = self.lines.is_free(names.ordering_key);
        let entry = &mut self.entries[index];
        entry.work = self.estimates.service(entry.kind);
        entry.is_probe = is_probe;
        if is_probe {
            self.estimates.probe(entry.kind, now);
        }
        let line = self.lines.join(names.ordering_key, entry.work);
        entry.line = line;
        entry.gate = self.limits.join(entry.lane, names.limit_key, now);
        self.limits.queue(entry.gate);
        self.queued_bytes += entry.bytes;
        self.queues.take(entry.class, entry.work);
        self.margins[entry.class.rank()].accept();
        self.queues.enter(entry, names.tenant);
        self.queued.push_back(&mut self.entries, AGE, index);
        self.saturated |= self.queued.len() * 5 >= self.caps.jobs.saturating_mul(4);
        match line {
            Some(line) if !free => {
                self.entries[index].place = Place::Blocked;
                self.queues.block(&self.entries[index]);
                if let Some(gate) = self.entries[index].gate {
                    self.limits.gate_mut(gate).blocked += 1;
                }
                self.queues.hold(&mut self.entries, index);
                self.lines.block(&mut self.entries, line, index);
            }
            _ => self.ready_or_hold(index),
        }
    }

    /// No ordering key holds a queued job back: it is ready, or stands at the gate of its limit key.
    fn ready_or_hold(&mut self, index: usize) {
        let was_blocked = self.entries[index].place == Place::Blocked;
        if was_blocked {
            self.unblock(index);
        }
        let Some(gate) = self.entries[index].gate else {
            if was_blocked {
                self.queues.let_go(&mut self.entries, index);
            }
            self.entries[index].place = Place::Ready;
            return self.queues.push(&mut self.entries, index);
        };
        if !was_blocked {
            self.queues.hold(&mut self.entries, index);
        }
        self.entries[index].place = Place::Held;
        self.limits.gate_mut(gate).held.push_back(&mut self.entries, LINE, index);
        self.limits.stir(gate);
    }

    /// A job stands behind its ordering key no more: it is free, or leaves.
    fn unblock(&mut self, index: usize) {
        self.queues.unblock(&self.entries[index]);
        if let Some(gate) = self.entries[index].gate {
            self.limits.gate_mut(gate).blocked -= 1;
        }
    }

    pub(super) fn shed_one(&mut self, class: Criticality, effects: &mut Vec<Effect<H>>) {
        let victim = self.queues.victim(&self.entries, class).expect("enough jobs below the class were counted");
        let lower = self.entries[victim].class;
        let retry_after = pushback(self.wait_behind(lower, f64::INFINITY));
        self.end_queued(victim, Outcome::Shed, Some(retry_after), effects);
    }

    pub(super) fn end_queued(
        &mut self,
        index: usize,
        outcome: Outcome,
        retry_after: Option<Duration>,
        effects: &mut Vec<Effect<H>>,
    ) {
        self.ledger.end(outcome);
        let Entry { waiter, job, .. } = self.remove_queued(index);
        effects.push(Effect::Ended { waiter: waiter.expect(WAITER), job, outcome, retry_after });
    }

    /// A caller that waits for room hears that it gets none.
    pub(super) fn refuse_waiting(&mut self, index: usize, reason: RefusalReason, effects: &mut Vec<Effect<H>>) {
        self.ledger.counts.rejected[reason.index()] += 1;
        let waiter = self.leave_waiting(index).waiter.expect(WAITER);
        effects.push(Effect::Refused { waiter, reason });
    }

    pub(super) fn leave_waiting(&mut self, index: usize) -> Entry<H> {
        self.waiting.remove(&mut self.entries, index);
        self.entries.remove(index)
    }

    /// Takes a queued job out for good.
    pub(super) fn remove_queued(&mut self, index: usize) -> Entry<H> {
        let led = self.entries[index].place != Place::Blocked;
        self.unqueue(index);
        let entry = self.entries.remove(index);
        self.queues.take(entry.class, -entry.work);
        self.depart(&entry);
        if led {
            self.leave_line(entry.line);
        }
        entry
    }

    /// Takes a queued job out of the queue, to start or to end.
    pub(super) fn unqueue(&mut self, index: usize) {
        self.queued.remove(&mut self.entries, AGE, index);
        self.saturated &= self.queued.len() * 5 > self.caps.jobs;
        let Entry { place, bytes, line, gate, .. } = self.entries[index];
        self.queued_bytes -= bytes;
        match (place, line, gate) {
            (Place::Blocked, Some(line), _) => {
                self.queues.let_go(&mut self.entries, index);
                self.unblock(index);
                self.lines.unblock(&mut self.entries, line, index);
            }
            (Place::Held, _, Some(gate)) => {
                self.queues.let_go(&mut self.entries, index);
                self.limits.gate_mut(gate).held.remove(&mut self.entries, LINE, index);
            }
            _ => self.queues.remove(&mut self.entries, index),
        }
        self.limits.unqueue(gate, place == Place::Ready);
        self.queues.leave(&self.entries[index]);
    }

    /// A kind was measured for the first time: its jobs that stand in line were valued by a guess, which must refuse nobody.
    pub(super) fn revalue(&mut self, kind: usize) {
        let work = self.estimates.service(kind);
        let is_of_kind = |index: &usize| self.entries[*index].kind == kind;
        let queued: Vec<usize> = self.queued.iter(&self.entries, AGE).filter(is_of_kind).collect();
        let waiting: Vec<usize> = self.waiting.iter(&self.entries).filter(is_of_kind).collect();
        for index in queued {
            let entry = &mut self.entries[index];
            let more = work - entry.work;
            self.queues.take(entry.class, more);
            self.queues.revalue(entry, work);
            if let Some(line) = entry.line {
                self.lines.revalue(line, entry, more);
            }
        }
        for index in waiting {
            self.waiting.revalue(&mut self.entries[index], work);
        }
    }

    /// A job is over: its tenant and its ordering key hold it no more.
    pub(super) fn depart(&mut self, entry: &Entry<H>) {
        if let Some(tenant) = entry.tenant {
            self.queues.part(tenant);
        }
        if let Some(line) = entry.line {
            self.lines.quit(line, entry.work);
        }
        self.limits.quit(entry.gate);
    }

    /// The job at the head of an ordering key is gone: the next one may start, at the end of its class's queue.
    pub(super) fn leave_line(&mut self, line: Option<usize>) {
        let next = line.and_then(|line| self.lines.advance(&mut self.entries, line));
        if let Some(next) = next {
            self.ready_or_hold(next);
        }
    }
}
