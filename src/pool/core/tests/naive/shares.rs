use std::{collections::HashMap, time::Duration};

use super::{Job, Naive, law::rate};

/// What each tenant of each class was given.
#[derive(Default)]
pub(super) struct Shares {
    classes: [Class; 4],
    /// Starts in a row that passed a lower class by, and the class of the last that did not.
    passed: u32,
    reserved: usize,
}

#[derive(Default)]
struct Class {
    clock: u64,
    places: u64,
    /// Tag and place by tenant; nobody is ever forgotten.
    tags: HashMap<u8, (u64, u64)>,
    /// Windows of the starts of each tenant's backlog, and the one in which it began.
    starts: HashMap<u8, (usize, Vec<usize>)>,
}

impl Class {
    fn seat(&mut self, tenant: u8, tag: u64) {
        self.places += 1;
        self.tags.insert(tenant, (tag, self.places));
    }

    fn tag(&self, tenant: u8) -> (u64, u64) {
        self.tags.get(&tenant).copied().unwrap_or_default()
    }
}

impl Shares {
    /// Starts per second of a backlog; `None` before five of them in five windows.
    pub(super) fn pace(&self, rank: usize, tenant: u8, queues: bool, window: usize) -> Option<f64> {
        // A tenant's figures stay as long as the machine holds it, and are read while it is known.
        let (first, starts) = self.classes[rank].starts.get(&tenant).filter(|_| queues)?;
        let counted = (*first..window).map(|window| starts.iter().filter(|start| **start == window).count() as f64);
        (starts.len() >= 5 && window - first >= 5).then(|| rate(counted))
    }
}

impl Naive {
    /// A job joins the queue behind `before` jobs of its tenant and class.
    pub(super) fn join_share(&mut self, job: &Job) {
        let (rank, tenant) = (job.offer.class.rank(), job.offer.tenant);
        let first = !self.queued.iter().any(|other| other.offer.tenant == tenant && other.offer.class.rank() == rank);
        if first {
            self.shares.classes[rank].starts.insert(tenant, (self.history.window(), Vec::new()));
        }
    }

    /// A job is about to be ready.
    pub(super) fn seat_ready(&mut self, rank: usize, tenant: u8) {
        if !self.has_ready(rank, tenant) {
            let class = &mut self.shares.classes[rank];
            let tag = class.tag(tenant).0.max(class.clock);
            class.seat(tenant, tag);
        }
    }

    /// The ready jobs changed: a class in which nobody competes forgives all.
    pub(super) fn reset_clocks(&mut self) {
        for rank in 0..4 {
            if (0..4).all(|tenant| !self.has_ready(rank, tenant)) {
                let class = &mut self.shares.classes[rank];
                class.clock = class.tags.values().map(|tag| tag.0).max().unwrap_or(0).max(class.clock);
            }
        }
    }

    /// The job that an idle worker takes next.
    pub(super) fn next_ready(&self) -> Option<u32> {
        let rank = self.next_class()?;
        let with_jobs = (0..4u8).filter(|tenant| self.has_ready(rank, *tenant));
        let tenant = with_jobs.min_by_key(|tenant| self.shares.classes[rank].tag(*tenant))?;
        let jobs = self.queued.iter().filter(|job| job.ready.is_some());
        let own = jobs.filter(|job| job.offer.class.rank() == rank && job.offer.tenant == tenant);
        own.min_by_key(|job| job.ready).map(|job| job.job)
    }

    /// A ready job starts: its tenant is charged for it.
    pub(super) fn charge(&mut self, job: &Job) {
        let (rank, tenant) = (job.offer.class.rank(), job.offer.tenant);
        let with_jobs: Vec<usize> = (0..4).filter(|rank| self.class_has_ready(*rank)).collect();
        if rank > with_jobs[0] {
            (self.shares.passed, self.shares.reserved) = (0, rank);
        } else if with_jobs.len() > 1 {
            self.shares.passed += 1;
        }
        let competing = (0..4).filter(|tenant| self.has_ready(rank, *tenant)).count() as u64;
        let charge = nanos(job.work);
        let window = self.history.window();
        let class = &mut self.shares.classes[rank];
        let tag = class.tag(tenant).0;
        class.clock = (class.clock + charge / (competing + 1)).max(tag);
        class.seat(tenant, tag + charge);
        class.starts.get_mut(&tenant).expect("a backlog").1.push(window);
    }

    /// A job that was charged for took `run`.
    pub(super) fn correct(&mut self, job: &Job, run: Duration) {
        let (rank, tenant) = (job.offer.class.rank(), job.offer.tenant);
        let waits = self.has_ready(rank, tenant);
        let class = &mut self.shares.classes[rank];
        let (tag, place) = class.tag(tenant);
        let tag = (tag + run.as_nanos() as u64).saturating_sub(nanos(job.work));
        if waits {
            class.seat(tenant, tag);
        } else {
            class.tags.insert(tenant, (tag, place));
        }
        self.reset_clocks();
    }

    fn next_class(&self) -> Option<usize> {
        let with_jobs: Vec<usize> = (0..4).filter(|rank| self.class_has_ready(*rank)).collect();
        let top = *with_jobs.first()?;
        let lower = |rank: &usize| *rank > top && with_jobs.contains(rank);
        let turn = (1..=4).map(|step| (self.shares.reserved + step) % 4).find(lower);
        let is_due = f64::from(self.shares.passed + 1) >= 1.0 / self.law.reserve;
        Some(if is_due { turn.unwrap_or(top) } else { top })
    }

    fn class_has_ready(&self, rank: usize) -> bool {
        (0..4).any(|tenant| self.has_ready(rank, tenant))
    }

    fn has_ready(&self, rank: usize, tenant: u8) -> bool {
        let of = |job: &Job| job.offer.class.rank() == rank && job.offer.tenant == tenant;
        self.queued.iter().any(|job| job.ready.is_some() && of(job))
    }
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
