use std::{collections::BTreeSet, time::Duration};

use slab::Slab;

use super::{
    Host,
    backlogs::Backlogs,
    entry::{CLASS, Entry, LINE},
    law::{Frequency, Law, Rate},
    list::List,
    tenants::{Share, Tenants},
};
use crate::model::Criticality;

/// The queued jobs: strict order among the classes but for the reserve, fair sharing of worker time among the tenants
/// of a class, first in first out within a tenant.
///
/// Fair sharing is start-time fair queueing. Each tenant has a tag, the worker time that it was given; the smallest tag
/// goes first. A job is charged what its kind takes on average when it starts, and the difference when it ends. The
/// clock of the class goes on by each charge, divided among the tenants that are there; who comes, or comes back, starts
/// at that clock: time in which nothing was asked for is not saved up.
#[derive(Default)]
pub(super) struct Queues {
    classes: [Class; 4],
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
    ready_bytes: usize,
    /// Queued jobs, blocked ones too, and their expected seconds.
    jobs: usize,
    pub(super) work: f64,
    backlogs: Backlogs,
    /// Tenants with a ready job, by tag.
    turns: BTreeSet<(u64, u64, usize)>,
    /// Places in `turns` that were given out.
    places: u64,
    /// Tenants without a job that had more than the clock says.
    debtors: BTreeSet<(u64, usize)>,
    clock: u64,
    /// The greatest tag of all.
    top: u64,
    /// Worker time that its jobs take, in seconds per second: what is expected when they are accepted, and the difference
    /// when they end.
    pub(super) taken: Rate,
}

impl Queues {
    pub(super) fn class(&self, class: Criticality) -> &Class {
        &self.classes[class.rank()]
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
    pub(super) fn enter<H: Host>(&mut self, entry: &mut Entry<H>, tenant: &str, window: u64) {
        let rank = entry.class.rank();
        let tenant = self.tenants.queue(tenant, entry.bytes, window);
        entry.tenant = Some(tenant);
        let class = &mut self.classes[rank];
        class.jobs += 1;
        class.work += entry.work;
        let share = self.tenants.share_mut(tenant, rank);
        if share.jobs == 0 {
            share.starts = Frequency::new(window);
        }
        share.jobs += 1;
        class.backlogs.change(share.work, share.work + entry.work);
        share.work += entry.work;
    }

    /// A job is queued no more; it is not among the ready ones. Its tenant is held until it [parts](Self::part).
    pub(super) fn leave<H: Host>(&mut self, entry: &Entry<H>) {
        let (rank, tenant) = (entry.class.rank(), entry.tenant.expect("a queued job has a tenant"));
        let class = &mut self.classes[rank];
        class.jobs -= 1;
        class.work = if class.jobs == 0 { 0.0 } else { (class.work - entry.work).max(0.0) };
        let share = self.tenants.share_mut(tenant, rank);
        share.jobs -= 1;
        // Rounding does not outlive the last job.
        let left = if share.jobs == 0 { 0.0 } else { (share.work - entry.work).max(f64::MIN_POSITIVE) };
        class.backlogs.change(share.work, left);
        share.work = left;
        self.tenants.unqueue(tenant, entry.bytes);
    }

    /// A queued job is ready to start.
    pub(super) fn push<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, index: usize) {
        let entry = &entries[index];
        let (rank, tenant, bytes) = (entry.class.rank(), tenant_of(entry), entry.bytes);
        let class = &mut self.classes[rank];
        class.ready_bytes += bytes;
        class.order.push_back(entries, CLASS, index);
        let share = self.tenants.share_mut(tenant, rank);
        if share.ready.is_empty() {
            let owed = class.debtors.remove(&(share.tag, tenant));
            share.tag = share.tag.max(class.clock);
            class.seat(share, tenant);
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
        let (rank, tenant, bytes) = (entry.class.rank(), tenant_of(entry), entry.bytes);
        let class = &mut self.classes[rank];
        class.ready_bytes -= bytes;
        class.order.remove(entries, CLASS, index);
        let share = self.tenants.share_mut(tenant, rank);
        share.ready.remove(entries, LINE, index);
        if share.ready.is_empty() {
            class.turns.remove(&(share.tag, share.since, tenant));
        }
        self.settle_debts(rank);
    }

    /// The job to start next.
    pub(super) fn head(&self, law: &Law) -> Option<usize> {
        let rank = self.next_class(law)?;
        let (.., tenant) = self.classes[rank].turns.first()?;
        self.tenants.share(*tenant, rank).ready.head()
    }

    /// A ready job starts: to be said before it is [removed](Self::remove).
    pub(super) fn start<H: Host>(&mut self, entry: &Entry<H>, window: u64) {
        let (rank, tenant) = (entry.class.rank(), tenant_of(entry));
        self.note_start(rank);
        let charge = nanos(entry.work);
        let class = &mut self.classes[rank];
        let share = self.tenants.share_mut(tenant, rank);
        share.starts.count(window);
        class.turns.remove(&(share.tag, share.since, tenant));
        // Divided by one more than compete: who comes now goes before those who were served.
        class.clock = (class.clock + charge / (class.turns.len() as u64 + 2)).max(share.tag);
        share.tag += charge;
        class.top = class.top.max(share.tag);
        class.seat(share, tenant);
        self.settle_debts(rank);
    }

    /// A job that was charged for when it started took `run`.
    pub(super) fn correct<H: Host>(&mut self, entry: &Entry<H>, run: Duration) {
        let Some(tenant) = entry.tenant else { return };
        let took = u64::try_from(run.as_nanos()).unwrap_or(u64::MAX / 2);
        let class = &mut self.classes[entry.class.rank()];
        let share = self.tenants.share_mut(tenant, entry.class.rank());
        let waits = class.turns.remove(&(share.tag, share.since, tenant));
        share.tag = (share.tag.saturating_add(took)).saturating_sub(nanos(entry.work));
        class.top = class.top.max(share.tag);
        if waits {
            class.seat(share, tenant);
        }
        self.settle_debts(entry.class.rank());
    }

    /// A job that was queued is over, whether it started or not.
    pub(super) fn part(&mut self, tenant: usize) {
        if self.tenants.is_last(tenant) {
            for (rank, class) in self.classes.iter_mut().enumerate() {
                let tag = self.tenants.share(tenant, rank).tag;
                if tag > class.clock && !class.turns.is_empty() && class.debtors.insert((tag, tenant)) {
                    self.tenants.owe(tenant);
                }
            }
        }
        self.tenants.part(tenant);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.classes.iter().all(|class| class.turns.is_empty())
    }

    /// The job that gives way to one of `class`: the newest of the lowest class below it.
    pub(super) fn victim(&self, class: Criticality) -> Option<usize> {
        self.classes[class.rank() + 1..].iter().rev().find_map(|lower| lower.order.tail())
    }

    /// Bytes and number of the jobs that would give way to one of `class`.
    pub(super) fn evictable(&self, class: Criticality) -> (usize, usize) {
        let lower = &self.classes[class.rank() + 1..];
        lower.iter().fold((0, 0), |(bytes, jobs), class| (bytes + class.ready_bytes, jobs + class.order.len()))
    }

    /// The most important class with a ready job; now and then, one of those below it.
    fn next_class(&self, law: &Law) -> Option<usize> {
        let has_job = |rank: &usize| !self.classes[*rank].turns.is_empty();
        let top = (0..4).find(has_job)?;
        if f64::from(self.passed + 1) * law.reserve < 1.0 {
            return Some(top);
        }
        // In turn, so that none of them waits for the others to be empty.
        let lower = (1..=4).map(|step| (self.last_reserved + step) % 4).filter(|rank| *rank > top);
        Some(lower.clone().find(has_job).unwrap_or(top))
    }

    fn note_start(&mut self, rank: usize) {
        let mut with_jobs = (0..4).filter(|rank| !self.classes[*rank].turns.is_empty());
        let (top, lower) = (with_jobs.next(), with_jobs.next());
        if top.is_some_and(|top| rank > top) {
            self.passed = 0;
            self.last_reserved = rank;
        } else if lower.is_some() {
            self.passed += 1;
        }
    }

    /// Lets go of those whom the clock of a class has passed; where nobody competes any more, of all.
    fn settle_debts(&mut self, rank: usize) {
        let class = &mut self.classes[rank];
        if class.turns.is_empty() {
            class.clock = class.top;
        }
        while let Some((tag, tenant)) = class.debtors.first().copied()
            && tag <= class.clock
        {
            class.debtors.pop_first();
            self.tenants.forgive(tenant);
        }
    }

    #[cfg(test)]
    pub(super) fn ready<H: Host>(&self, entries: &Slab<Entry<H>>) -> Vec<usize> {
        self.classes.iter().flat_map(|class| class.order.iter(entries, CLASS)).collect()
    }
}

impl Class {
    /// Gives a tenant its place in the order, behind those with the same tag.
    fn seat(&mut self, share: &mut Share, tenant: usize) {
        self.places += 1;
        share.since = self.places;
        self.turns.insert((share.tag, share.since, tenant));
    }

    /// Expected seconds of the jobs that would start before one of a tenant with a backlog of `own` seconds, its own
    /// included.
    pub(super) fn ahead(&self, own: f64) -> f64 {
        self.backlogs.up_to(own)
    }
}

fn tenant_of<H: Host>(entry: &Entry<H>) -> usize {
    entry.tenant.expect("a job keeps the tenant that it was queued for")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds that are not negative")]
fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
