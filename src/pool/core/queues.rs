#[cfg(test)]
mod invariants;

use std::{collections::BTreeSet, time::Duration};

use slab::Slab;

use super::{
    Host,
    backlogs::Backlogs,
    blocked::Mixed,
    entry::{CLASS, Entry, LINE, Place},
    law::{RESERVE, Rate},
    list::List,
    tenants::{Share, Tenants},
    turns::Turns,
};
use crate::model::Criticality;

/// The queued jobs: strict order among the classes but for the reserve, fair sharing of worker time among the tenants
/// of a class, first in first out within a tenant.
///
/// Kinds with limits have a lane each, the others share the open one. A lane whose limit is reached is passed over, and
/// holds up nobody but its own jobs. Where several lanes of a class have jobs, each gets worker time as it has tenants.
///
/// Fair sharing is start-time fair queueing. Each tenant has a tag, the worker time that it was given; the smallest tag
/// goes first. A job is charged what its kind takes on average when it starts, and the difference when it ends. The
/// clock of the lane goes on by each charge, divided among the tenants that are there. A tenant that comes, or comes back,
/// starts at that clock: what it did not ask for is not saved up.
#[derive(Default)]
pub(super) struct Queues {
    classes: [Class; 4],
    /// By slot: four of each lane.
    pub(super) lanes: Vec<Lane>,
    pub(super) tenants: Tenants,
    /// Starts in a row that passed a lower class by.
    passed: u32,
    /// Class that the last reserved start went to.
    last_reserved: usize,
}

#[derive(Default)]
pub(super) struct Class {
    /// Ready jobs in the order in which they came to be so.
    order: List,
    /// Those that are not ready, in order of acceptance.
    held: List,
    bytes: usize,
    /// The greatest tag of a lane that was served.
    served: u64,
    /// Worker time that its jobs take, in seconds per second: what is expected when they are accepted, and the difference
    /// when they end.
    pub(super) taken: Rate,
}

/// The jobs of one class in one lane.
#[derive(Default)]
pub(super) struct Lane {
    /// Queued jobs, blocked ones too, and what they count.
    pub(super) jobs: usize,
    pub(super) load: f64,
    /// Worker time that the lane had, over its tenants.
    tag: u64,
    pub(super) backlogs: Backlogs,
    /// Of its tenants that have jobs behind ordering keys.
    pub(super) mixed: Mixed,
    /// Tenants with a ready job, by tag.
    turns: Turns,
    /// Places in `turns` that were given out.
    places: u64,
    /// Idle tenants whose tag is ahead of a newcomer's start tag.
    debtors: BTreeSet<(u64, usize)>,
    /// Lowest start tag of a new tenant.
    clock: u64,
    /// The greatest tag of all.
    top: u64,
}

impl Queues {
    /// Queues with the open lane.
    pub(super) fn new() -> Self {
        Self { lanes: std::iter::repeat_with(Lane::default).take(4).collect(), ..Self::default() }
    }

    /// Has the open lane and so many others from now on.
    pub(super) fn extend(&mut self, limited: usize) {
        self.lanes.resize_with(4 * (limited + 1), Lane::default);
    }

    /// What the jobs of a lane count that would start before one of `class` whose tenant has `own` queued, its own
    /// included.
    pub(super) fn ahead(&self, lane: usize, class: Criticality, own: f64) -> f64 {
        let lanes = &self.lanes[4 * lane..];
        let above: f64 = lanes[..class.rank()].iter().map(|lane| lane.load).sum();
        above + lanes[class.rank()].backlogs.up_to(own)
    }

    /// Queued jobs of a lane.
    pub(super) fn jobs_of(&self, lane: usize) -> usize {
        self.lanes[4 * lane..4 * lane + 4].iter().map(|lane| lane.jobs).sum()
    }

    /// Whether a job of the lane is ready.
    pub(super) fn has_ready(&self, lane: usize) -> bool {
        self.lanes[4 * lane..4 * lane + 4].iter().any(|lane| !lane.turns.is_empty())
    }

    pub(super) fn above(&self, class: Criticality) -> &[Class] {
        &self.classes[..class.rank()]
    }

    /// A job of `class` was accepted, or took so many seconds more than was expected.
    pub(super) fn take(&mut self, class: Criticality, seconds: f64) {
        self.classes[class.rank()].taken.add(seconds);
    }

    pub(super) fn turn(&mut self, empty: u32) {
        for class in &mut self.classes {
            class.taken.turn(empty);
        }
    }

    /// A job is queued; whether it is ready is said by [`push`](Self::push).
    pub(super) fn enter<H: Host>(&mut self, entry: &mut Entry<H>, tenant: &str) {
        let slot = entry.slot();
        let tenant = self.tenants.queue(tenant, entry.class, entry.bytes);
        entry.tenant = Some(tenant);
        let lane = &mut self.lanes[slot];
        lane.jobs += 1;
        lane.load += entry.load();
        let share = self.tenants.share_mut(tenant, slot);
        let before = share.mix();
        share.jobs += 1;
        lane.backlogs.change(share.load, share.load + entry.load());
        share.load += entry.load();
        lane.mixed.change(before, share.mix());
    }

    /// A job is queued no more; it is not among the ready ones. Its tenant is held until it [parts](Self::part).
    pub(super) fn leave<H: Host>(&mut self, entry: &Entry<H>) {
        let (slot, tenant) = (entry.slot(), entry.tenant.expect("a queued job has a tenant"));
        let lane = &mut self.lanes[slot];
        lane.jobs -= 1;
        lane.load = if lane.jobs == 0 { 0.0 } else { (lane.load - entry.load()).max(0.0) };
        let share = self.tenants.share_mut(tenant, slot);
        let before = share.mix();
        share.jobs -= 1;
        // Rounding does not outlive the last job.
        let left = if share.jobs == 0 { 0.0 } else { (share.load - entry.load()).max(f64::MIN_POSITIVE) };
        lane.backlogs.change(share.load, left);
        share.load = left;
        lane.mixed.change(before, share.mix());
        self.tenants.unqueue(tenant, entry.class, entry.bytes);
    }

    /// A queued job is expected to take so many seconds.
    pub(super) fn revalue<H: Host>(&mut self, entry: &mut Entry<H>, work: f64) {
        let before = entry.load();
        entry.work = work;
        let (more, slot) = (entry.load() - before, entry.slot());
        let (lane, share) = (&mut self.lanes[slot], self.tenants.share_mut(tenant_of(entry), slot));
        lane.load = (lane.load + more).max(0.0);
        let (before, load) = (share.mix(), (share.load + more).max(f64::MIN_POSITIVE));
        lane.backlogs.change(share.load, load);
        share.load = load;
        if entry.place == Place::Blocked {
            share.blocked_load = (share.blocked_load + more).max(0.0);
            lane.mixed.blocked = (lane.mixed.blocked + more).max(0.0);
        }
        lane.mixed.change(before, share.mix());
    }

    /// A queued job is ready to start.
    pub(super) fn push<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let entry = &entries[index];
        let (slot, tenant) = (entry.slot(), tenant_of(entry));
        let class = &mut self.classes[entry.class.rank()];
        class.bytes += entry.bytes;
        class.order.push_back(entries, CLASS, index);
        let lane = &mut self.lanes[slot];
        let share = self.tenants.share_mut(tenant, slot);
        if share.ready.is_empty() {
            let owed = lane.debtors.remove(&(share.tag, tenant));
            share.tag = share.tag.max(lane.clock);
            lane.seat(share, tenant);
            share.ready.push_back(entries, LINE, index);
            if owed {
                self.tenants.forgive(tenant);
            }
        } else {
            share.ready.push_back(entries, LINE, index);
        }
    }

    /// A ready job is ready no more.
    pub(super) fn remove<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let entry = &entries[index];
        let (slot, tenant) = (entry.slot(), tenant_of(entry));
        let class = &mut self.classes[entry.class.rank()];
        class.bytes -= entry.bytes;
        class.order.remove(entries, CLASS, index);
        let share = self.tenants.share_mut(tenant, slot);
        share.ready.remove(entries, LINE, index);
        if share.ready.is_empty() {
            self.lanes[slot].turns.remove((share.tag, share.since, tenant));
        }
        self.settle_debts(slot);
    }

    /// The job to start next; `is_open` says of a lane whether its limit lets one start.
    pub(super) fn head(&self, is_open: impl Fn(usize) -> bool) -> Option<usize> {
        let rank = self.next_class(&is_open)?;
        let served = self.classes[rank].served;
        let turn = |slot: &usize| (self.lanes[*slot].tag.max(served), self.lanes[*slot].tag, *slot);
        let slot = self.available(rank, &is_open).min_by_key(turn)?;
        let (.., tenant) = self.lanes[slot].turns.first()?;
        self.tenants.share(tenant, slot)?.ready.head()
    }

    /// A ready job starts: to be said before it is [removed](Self::remove), and before its limits know.
    pub(super) fn start<H: Host>(&mut self, entry: &Entry<H>, is_open: impl Fn(usize) -> bool) {
        let (slot, tenant) = (entry.slot(), tenant_of(entry));
        self.note_start(entry.class.rank(), &is_open);
        let charge = nanos(entry.work);
        let (class, lane) = (&mut self.classes[entry.class.rank()], &mut self.lanes[slot]);
        // A lane without a job, or over its limit, saves nothing up.
        class.served = class.served.max(lane.tag);
        lane.tag = class.served + charge / lane.turns.len().max(1) as u64;
        let share = self.tenants.share_mut(tenant, slot);
        lane.turns.remove((share.tag, share.since, tenant));
        // Divided by one more than compete: who comes now goes before those who were served.
        lane.clock = (lane.clock + charge / (lane.turns.len() as u64 + 2)).max(share.tag);
        share.tag += charge;
        lane.top = lane.top.max(share.tag);
        lane.seat(share, tenant);
        self.settle_debts(slot);
    }

    /// A job that was charged with so many seconds took `took`.
    pub(super) fn correct<H: Host>(&mut self, entry: &Entry<H>, took: Duration, charged: f64) {
        let Some(tenant) = entry.tenant else { return };
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX / 2);
        let lane = &mut self.lanes[entry.slot()];
        let share = self.tenants.share_mut(tenant, entry.slot());
        let waits = lane.turns.remove((share.tag, share.since, tenant));
        share.tag = (share.tag.saturating_add(took)).saturating_sub(nanos(charged));
        lane.top = lane.top.max(share.tag);
        if waits {
            lane.seat(share, tenant);
        }
        self.settle_debts(entry.slot());
    }

    /// A job that was queued is over, whether it started or not.
    pub(super) fn part(&mut self, tenant: usize) {
        let lanes = &mut self.lanes;
        self.tenants.part(tenant, |slot, share| {
            let lane = &mut lanes[slot];
            let owes = share.tag > lane.clock && !lane.turns.is_empty();
            if owes {
                lane.debtors.insert((share.tag, tenant));
            }
            owes
        });
    }

    /// A queued job is not ready: its ordering key or its limit key holds it.
    pub(super) fn hold<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let class = &mut self.classes[entries[index].class.rank()];
        class.bytes += entries[index].bytes;
        class.held.push_back(entries, CLASS, index);
    }

    /// A queued job is held no more.
    pub(super) fn let_go<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let class = &mut self.classes[entries[index].class.rank()];
        class.bytes -= entries[index].bytes;
        class.held.remove(entries, CLASS, index);
    }

    /// The job that gives way to one of `class`: of the lowest class below it, the one that came to be ready last, or was
    /// held last, whichever arrived later.
    pub(super) fn victim<H: Host>(&self, entries: &Slab<Entry<H>>, class: Criticality) -> Option<usize> {
        let newest = |lower: &Class| {
            let last = [lower.order.tail(), lower.held.tail()].into_iter().flatten();
            last.max_by_key(|index| entries[*index].sequence)
        };
        self.classes[class.rank() + 1..].iter().rev().find_map(newest)
    }

    /// Bytes and number of the jobs that would give way to one of `class`.
    pub(super) fn evictable(&self, class: Criticality) -> (usize, usize) {
        let lower = &self.classes[class.rank() + 1..];
        lower
            .iter()
            .fold((0, 0), |(bytes, jobs), class| (bytes + class.bytes, jobs + class.order.len() + class.held.len()))
    }

    /// The most important class with a ready job; now and then, one of those below it.
    fn next_class(&self, is_open: &impl Fn(usize) -> bool) -> Option<usize> {
        let has_job = |rank: &usize| self.available(*rank, is_open).next().is_some();
        let top = (0..4).find(has_job)?;
        if self.passed + 1 < RESERVE {
            return Some(top);
        }
        // In turn, so that none of them waits for the others to be empty.
        let lower = (1..=4).map(|step| (self.last_reserved + step) % 4).filter(|rank| *rank > top);
        Some(lower.clone().find(has_job).unwrap_or(top))
    }

    /// The slots of a class with a ready job that may start.
    fn available(&self, rank: usize, is_open: &impl Fn(usize) -> bool) -> impl Iterator<Item = usize> {
        let lanes = self.lanes.as_chunks::<4>().0.iter().enumerate();
        let has_job = move |(lane, classes): &(usize, &[Lane; 4])| !classes[rank].turns.is_empty() && is_open(*lane);
        lanes.filter(has_job).map(move |(lane, _)| 4 * lane + rank)
    }

    fn note_start(&mut self, rank: usize, is_open: &impl Fn(usize) -> bool) {
        let mut with_jobs = (0..4).filter(|rank| self.available(*rank, is_open).next().is_some());
        let (top, lower) = (with_jobs.next(), with_jobs.next());
        if top.is_some_and(|top| rank > top) {
            self.passed = 0;
            self.last_reserved = rank;
        } else if lower.is_some() {
            self.passed += 1;
        }
    }

    /// Lets go of those who would start no better than who comes; where nobody competes any more, of all.
    fn settle_debts(&mut self, slot: usize) {
        let lane = &mut self.lanes[slot];
        if lane.turns.is_empty() {
            lane.clock = lane.top;
        }
        while let Some((tag, tenant)) = lane.debtors.first().copied()
            && tag <= lane.clock
        {
            lane.debtors.pop_first();
            self.tenants.forgive(tenant);
        }
    }
}

impl Lane {
    /// Gives a tenant its place in the order, behind those with the same tag.
    fn seat(&mut self, share: &mut Share, tenant: usize) {
        self.places += 1;
        share.since = self.places;
        self.turns.insert((share.tag, share.since, tenant));
    }
}

fn tenant_of<H: Host>(entry: &Entry<H>) -> usize {
    entry.tenant.expect("a job keeps the tenant that it was queued for")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds that are not negative")]
fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
