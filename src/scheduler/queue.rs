//! The queue: classes, then tenants by their fair share (`queue/fair_share.rs`).

mod backlogs;
mod fair_share;
#[cfg(test)]
#[path = "tests/invariants/queue.rs"]
mod invariants;
mod key_queues;
mod tenants;
mod waiting;

use std::collections::BTreeSet;

use slab::Slab;

use super::{
    Host,
    entry::{Amount, Entry, EntryStage, KindQueueId, Names, TenantId},
    list::{Link, List},
};
use crate::model::Criticality;
use backlogs::Backlogs;
use key_queues::KeyQueues;
use tenants::{Flow, FlowOrder, Tenants};
use waiting::Waiting;

/// While several classes have jobs, one of this many starts goes to a class below the most important one.
const RESERVE: u32 = 20;

/// The queued jobs. More important classes go first, except for the [`RESERVE`]. Within a class, tenants share worker
/// time fairly (`fair_share.rs`), and each tenant's jobs start in order of arrival.
///
/// Each kind with limits has its own kind queue; the other kinds share the open one. A kind queue at its limit is
/// skipped. If several kind queues of a class have jobs, they share worker time by their numbers of tenants.
#[derive(Default)]
pub(super) struct Queue {
    classes: [Class; 4],
    /// By [slot](Entry::slot): a kind queue has four, one for each class.
    pub(super) slots: Vec<SlotQueue>,
    pub(super) tenants: Tenants,
    pub(super) keys: KeyQueues,
    pub(super) waiting: Waiting,
    /// All queued jobs, in order of acceptance.
    pub(super) all: List,
    pub(super) bytes: usize,
    /// Starts in a row that skipped a lower class.
    passed: u32,
    /// Class of the last reserved start.
    last_reserved: usize,
}

#[derive(Default)]
pub(super) struct Class {
    /// Its queued jobs, in order of acceptance.
    queued: List,
    /// Their payload bytes.
    bytes: usize,
    /// The largest tag of a kind queue that was served.
    served: u64,
}

/// The jobs of one slot: of one class in one kind queue.
#[derive(Default)]
pub(super) struct SlotQueue {
    /// Queued jobs.
    pub(super) jobs: usize,
    /// Load of the ready ones.
    pub(super) ready: f64,
    /// Worker time of its jobs, divided by the number of its tenants.
    tag: u64,
    /// Load of the queued jobs of each tenant.
    pub(super) backlogs: Backlogs,
    /// Tenants with a ready job, by tag.
    order: FlowOrder,
    /// Number of positions assigned in `order`.
    positions: u64,
    /// Idle tenants whose tag is ahead of a newcomer's start tag. They keep their tag until that has caught up. The
    /// test case is `a_tenant_with_one_long_job_at_a_time_gets_half_of_the_worker`.
    ahead: BTreeSet<(u64, TenantId)>,
    /// Lowest start tag of a new tenant.
    clock: u64,
    /// The largest tag of all tenants.
    top: u64,
}

impl Queue {
    /// An empty queue with the open kind queue.
    pub(super) fn new() -> Self {
        Self { slots: std::iter::repeat_with(SlotQueue::default).take(4).collect(), ..Self::default() }
    }

    /// Extends to `count` kind queues, the open one included.
    pub(super) fn extend(&mut self, count: usize) {
        self.slots.resize_with(4 * count, SlotQueue::default);
    }

    /// Load of a kind queue's jobs that start before a job of `class`, if its tenant has `own` queued, this job
    /// included.
    ///
    /// However many jobs ordering keys or limit keys block, they use few workers. So they do not count in the classes
    /// above. The test case is `a_long_key_queue_of_a_more_important_class_keeps_no_worker_idle`.
    pub(super) fn ahead(&self, kind_queue: KindQueueId, class: Criticality, own: f64) -> f64 {
        let queues = self.classes_of(kind_queue);
        let above: f64 = queues[..class.rank()].iter().map(|queue| queue.ready).sum();
        above + queues[class.rank()].backlogs.up_to(own)
    }

    /// A kind queue, by class.
    fn classes_of(&self, kind_queue: KindQueueId) -> &[SlotQueue; 4] {
        &self.slots.as_chunks().0[kind_queue.0]
    }

    /// Queued jobs of a kind queue.
    pub(super) fn jobs_of(&self, kind_queue: KindQueueId) -> usize {
        self.classes_of(kind_queue).iter().map(|queue| queue.jobs).sum()
    }

    /// Load of the ready jobs of a kind queue.
    pub(super) fn ready_of(&self, kind_queue: KindQueueId) -> f64 {
        self.classes_of(kind_queue).iter().map(|queue| queue.ready).sum()
    }

    /// Whether a job of the kind queue is ready.
    pub(super) fn has_ready(&self, kind_queue: KindQueueId) -> bool {
        self.classes_of(kind_queue).iter().any(|queue| !queue.order.is_empty())
    }

    /// A job is accepted, and counts in all sums from now on. It is blocked if its ordering key is in use.
    pub(super) fn enter<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize, names: Names<'_>) {
        let is_free = self.keys.is_free(names);
        let entry = &mut entries[index];
        let tenant = self.tenants.queue(names.tenant, entry.class, entry.bytes);
        entry.tenant = Some(tenant);
        entry.key_queue = self.keys.join(names, entry.work);
        entry.stage = if is_free { EntryStage::Ready } else { EntryStage::Blocked };
        let slot = entry.slot();
        let (queue, flow) = (&mut self.slots[slot], self.tenants.flow_mut(tenant, slot));
        queue.jobs += 1;
        flow.jobs += 1;
        queue.count(flow, entry.load());
        let class = &mut self.classes[entry.class.rank()];
        class.bytes += entry.bytes;
        self.bytes += entry.bytes;
        class.queued.push_back(entries, Link::Class, index);
        self.all.push_back(entries, Link::Age, index);
        if !is_free {
            self.keys.block(entries, index);
        }
    }

    /// A queued job starts or ends, and no longer counts in any sum. Its tenant and its ordering key are kept until it
    /// [departs](Self::depart).
    pub(super) fn leave<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        match entries[index].stage {
            EntryStage::Blocked => self.keys.unblock(entries, index),
            EntryStage::Ready => self.remove(entries, index),
            EntryStage::Waiting | EntryStage::Throttled | EntryStage::Running { .. } => {}
        }
        let class = &mut self.classes[entries[index].class.rank()];
        class.bytes -= entries[index].bytes;
        class.queued.remove(entries, Link::Class, index);
        self.all.remove(entries, Link::Age, index);
        let entry = &entries[index];
        let (slot, tenant) = (entry.slot(), tenant_of(entry));
        let (queue, flow) = (&mut self.slots[slot], self.tenants.flow_mut(tenant, slot));
        queue.jobs -= 1;
        flow.jobs -= 1;
        queue.count(flow, -entry.load());
        self.tenants.unqueue(tenant, entry.class, entry.bytes);
        self.bytes -= entry.bytes;
    }

    /// A job is over, and releases its tenant and its ordering key.
    pub(super) fn depart<H: Host>(&mut self, entry: &Entry<H>) {
        if let Some(tenant) = entry.tenant {
            self.part(tenant);
        }
        if let Some(key_queue) = entry.key_queue {
            self.keys.quit(key_queue, entry.work);
        }
    }

    /// A queued job becomes ready.
    pub(super) fn push<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let entry = &entries[index];
        let (slot, tenant, load) = (entry.slot(), tenant_of(entry), entry.load());
        let queue = &mut self.slots[slot];
        let flow = self.tenants.flow_mut(tenant, slot);
        if flow.ready.is_empty() {
            let was_ahead = queue.ahead.remove(&(flow.tag, tenant));
            flow.tag = flow.tag.max(queue.clock);
            queue.position(flow, tenant);
            if was_ahead {
                self.tenants.release(tenant);
            }
        }
        let flow = self.tenants.flow_mut(tenant, slot);
        flow.ready.push_back(entries, Link::Line, index);
        queue.count_ready(flow, load);
    }

    /// A ready job is no longer ready.
    pub(super) fn remove<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let entry = &entries[index];
        let (slot, tenant, load) = (entry.slot(), tenant_of(entry), entry.load());
        let (queue, flow) = (&mut self.slots[slot], self.tenants.flow_mut(tenant, slot));
        flow.ready.remove(entries, Link::Line, index);
        queue.count_ready(flow, -load);
        if flow.ready.is_empty() {
            queue.order.remove((flow.tag, flow.since, tenant));
        }
        self.forget_idle(slot);
    }

    /// The next job to start. `is_open` says whether the limits of a kind queue allow a start.
    pub(super) fn head(&self, is_open: impl Fn(KindQueueId) -> bool) -> Option<usize> {
        let rank = self.next_class(&is_open)?;
        let served = self.classes[rank].served;
        let position = |slot: &usize| (self.slots[*slot].tag.max(served), self.slots[*slot].tag, *slot);
        let slot = self.available(rank, &is_open).min_by_key(position)?;
        let (.., tenant) = self.slots[slot].order.first()?;
        self.tenants.flow(tenant, slot)?.ready.head()
    }

    /// A queued job is over, whether it started or not.
    fn part(&mut self, tenant: TenantId) {
        let slots = &mut self.slots;
        self.tenants.part(tenant, |slot, flow| {
            let queue = &mut slots[slot];
            let is_ahead = flow.tag > queue.clock && !queue.order.is_empty();
            if is_ahead {
                queue.ahead.insert((flow.tag, tenant));
            }
            is_ahead
        });
    }

    /// The job to evict for one of `class`: the newest of the lowest class below it.
    pub(super) fn victim(&self, class: Criticality) -> Option<usize> {
        self.classes[class.rank() + 1..].iter().rev().find_map(|lower| lower.queued.tail())
    }

    /// The queued jobs of a class, the oldest first.
    pub(super) fn of_class<H: Host>(
        &self,
        entries: &Slab<Entry<H>>,
        class: Criticality,
    ) -> impl Iterator<Item = usize> {
        self.classes[class.rank()].queued.iter(entries, Link::Class)
    }

    /// The jobs that could be evicted for one of `class`.
    pub(super) fn evictable(&self, class: Criticality) -> Amount {
        let lower = &self.classes[class.rank() + 1..];
        let jobs = lower.iter().map(|class| class.queued.len()).sum();
        Amount { jobs, bytes: lower.iter().map(|class| class.bytes).sum() }
    }

    /// The most important class with a ready job, or sometimes one below it.
    fn next_class(&self, is_open: &impl Fn(KindQueueId) -> bool) -> Option<usize> {
        let has_job = |rank: &usize| self.available(*rank, is_open).next().is_some();
        let top = (0..4).find(has_job)?;
        if self.passed + 1 < RESERVE {
            return Some(top);
        }
        // Round robin over the lower classes, so that each is served.
        let lower = (1..=4).map(|step| (self.last_reserved + step) % 4).filter(|rank| *rank > top);
        Some(lower.clone().find(has_job).unwrap_or(top))
    }

    /// The slots of a class with a ready job that may start.
    fn available(&self, rank: usize, is_open: &impl Fn(KindQueueId) -> bool) -> impl Iterator<Item = usize> {
        let kind_queues = self.slots.as_chunks::<4>().0.iter().enumerate();
        let has_job = move |(kind_queue, classes): &(usize, &[SlotQueue; 4])| {
            !classes[rank].order.is_empty() && is_open(KindQueueId(*kind_queue))
        };
        kind_queues.filter(has_job).map(move |(kind_queue, _)| 4 * kind_queue + rank)
    }

    fn note_start(&mut self, rank: usize, is_open: &impl Fn(KindQueueId) -> bool) {
        let mut with_jobs = (0..4).filter(|rank| self.available(*rank, is_open).next().is_some());
        let (top, lower) = (with_jobs.next(), with_jobs.next());
        if top.is_some_and(|top| rank > top) {
            self.passed = 0;
            self.last_reserved = rank;
        } else if lower.is_some() {
            self.passed += 1;
        }
    }

    /// Removes idle tenants that virtual time has caught up with. If no tenant has a ready job, removes all idle ones.
    fn forget_idle(&mut self, slot: usize) {
        let queue = &mut self.slots[slot];
        if queue.order.is_empty() {
            queue.clock = queue.top;
        }
        while let Some((tag, tenant)) = queue.ahead.first().copied()
            && tag <= queue.clock
        {
            queue.ahead.pop_first();
            self.tenants.release(tenant);
        }
    }
}

impl SlotQueue {
    /// Adds `more` to the load of a tenant's queued jobs.
    fn count(&mut self, flow: &mut Flow, more: f64) {
        // Removes rounding errors with the last job.
        let load = if flow.jobs == 0 { 0.0 } else { (flow.load + more).max(f64::MIN_POSITIVE) };
        self.backlogs.change(flow.load, load);
        flow.load = load;
    }

    /// Adds `more` to the load of a tenant's ready jobs.
    fn count_ready(&mut self, flow: &mut Flow, more: f64) {
        let ready = if flow.ready.is_empty() { 0.0 } else { flow.ready_load + more };
        self.ready = (self.ready + ready - flow.ready_load).max(0.0);
        flow.ready_load = ready;
    }

    /// Gives a tenant its position in the order, behind tenants with the same tag.
    fn position(&mut self, flow: &mut Flow, tenant: TenantId) {
        self.positions += 1;
        flow.since = self.positions;
        self.order.insert((flow.tag, flow.since, tenant));
    }
}

fn tenant_of<H: Host>(entry: &Entry<H>) -> TenantId {
    entry.tenant.expect("a job keeps the tenant that it was queued for")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds that are not negative")]
fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
