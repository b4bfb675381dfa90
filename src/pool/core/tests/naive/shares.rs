use std::{collections::HashMap, time::Duration};

use super::{super::drive::KINDS, Job, Naive};

const LANES: usize = KINDS + 1;

/// What each tenant of each class was given.
#[derive(Default)]
pub(super) struct Shares {
    /// By class and lane.
    lanes: [[Lane; LANES]; 4],
    /// The greatest tag of a lane that was served, by class.
    served: [u64; 4],
    /// Starts in a row that passed a lower class by, and the class of the last that did not.
    passed: u32,
    reserved: usize,
}

#[derive(Default)]
struct Lane {
    /// Worker time that the lane was given, over its tenants.
    tag: u64,
    clock: u64,
    places: u64,
    /// Tag and place by tenant; nobody is ever forgotten.
    tags: HashMap<u8, (u64, u64)>,
}

impl Lane {
    fn seat(&mut self, tenant: u8, tag: u64) {
        self.places += 1;
        self.tags.insert(tenant, (tag, self.places));
    }

    fn tag(&self, tenant: u8) -> (u64, u64) {
        self.tags.get(&tenant).copied().unwrap_or_default()
    }
}

impl Naive {
    /// A job is about to be ready.
    pub(super) fn seat_ready(&mut self, rank: usize, lane: usize, tenant: u8) {
        if !self.has_ready(rank, lane, tenant) {
            let lane = &mut self.shares.lanes[rank][lane];
            let tag = lane.tag(tenant).0.max(lane.clock);
            lane.seat(tenant, tag);
        }
    }

    /// The ready jobs changed: a lane in which nobody competes forgives all.
    pub(super) fn reset_clocks(&mut self) {
        for (rank, lane) in (0..4).flat_map(|rank| (0..LANES).map(move |lane| (rank, lane))) {
            if self.competing(rank, lane) == 0 {
                let lane = &mut self.shares.lanes[rank][lane];
                lane.clock = lane.tags.values().map(|tag| tag.0).max().unwrap_or(0).max(lane.clock);
            }
        }
    }

    /// The job that an idle worker takes next.
    pub(super) fn next_ready(&self) -> Option<u32> {
        let rank = self.next_class()?;
        let served = self.shares.served[rank];
        let tag = |lane: usize| self.shares.lanes[rank][lane].tag;
        let lanes = (0..LANES).filter(|lane| self.lane_may_start(rank, *lane));
        let lane = lanes.min_by_key(|lane| (tag(*lane).max(served), tag(*lane), *lane))?;
        let with_jobs = (0..4u8).filter(|tenant| self.has_ready(rank, lane, *tenant));
        let tenant = with_jobs.min_by_key(|tenant| self.shares.lanes[rank][lane].tag(*tenant))?;
        let jobs = self.queued.iter().filter(|job| job.ready.is_some());
        let own = jobs.filter(|job| self.seat_of(job) == (rank, lane, tenant));
        own.min_by_key(|job| job.ready).map(|job| job.job)
    }

    /// A ready job starts: its tenant is charged for it.
    pub(super) fn charge(&mut self, job: &Job) {
        let (rank, lane, tenant) = self.seat_of(job);
        let with_jobs: Vec<usize> = (0..4).filter(|rank| self.class_may_start(*rank)).collect();
        if with_jobs.first().is_some_and(|top| rank > *top) {
            (self.shares.passed, self.shares.reserved) = (0, rank);
        } else if with_jobs.len() > 1 {
            self.shares.passed += 1;
        }
        let competing = self.competing(rank, lane);
        let charge = nanos(job.work);
        let served = &mut self.shares.served[rank];
        let lane = &mut self.shares.lanes[rank][lane];
        *served = lane.tag.max(*served);
        lane.tag = *served + charge / competing;
        let tag = lane.tag(tenant).0;
        lane.clock = (lane.clock + charge / (competing + 1)).max(tag);
        lane.seat(tenant, tag + charge);
    }

    /// A job that was charged with so many seconds took `took`.
    pub(super) fn correct(&mut self, job: &Job, took: Duration, charged: f64) {
        let (rank, lane, tenant) = self.seat_of(job);
        let waits = self.has_ready(rank, lane, tenant);
        let lane = &mut self.shares.lanes[rank][lane];
        let (tag, place) = lane.tag(tenant);
        let tag = (tag + took.as_nanos() as u64).saturating_sub(nanos(charged));
        if waits {
            lane.seat(tenant, tag);
        } else {
            lane.tags.insert(tenant, (tag, place));
        }
        self.reset_clocks();
    }

    fn next_class(&self) -> Option<usize> {
        let with_jobs: Vec<usize> = (0..4).filter(|rank| self.class_may_start(*rank)).collect();
        let top = *with_jobs.first()?;
        let lower = |rank: &usize| *rank > top && with_jobs.contains(rank);
        let turn = (1..=4).map(|step| (self.shares.reserved + step) % 4).find(lower);
        let is_due = self.shares.passed + 1 >= 20;
        Some(if is_due { turn.unwrap_or(top) } else { top })
    }

    /// Class, lane and tenant of a job.
    fn seat_of(&self, job: &Job) -> (usize, usize, u8) {
        (job.offer.class.rank(), self.lane(job.offer.kind), job.offer.tenant)
    }

    fn class_may_start(&self, rank: usize) -> bool {
        (0..LANES).any(|lane| self.lane_may_start(rank, lane))
    }

    fn lane_may_start(&self, rank: usize, lane: usize) -> bool {
        let open = lane == 0 || (0..KINDS).any(|kind| self.lane(kind) == lane && self.kind_is_open(kind));
        open && self.competing(rank, lane) > 0
    }

    /// Tenants with a ready job.
    fn competing(&self, rank: usize, lane: usize) -> u64 {
        (0..4).filter(|tenant| self.has_ready(rank, lane, *tenant)).count() as u64
    }

    fn has_ready(&self, rank: usize, lane: usize, tenant: u8) -> bool {
        self.queued.iter().any(|job| job.ready.is_some() && self.seat_of(job) == (rank, lane, tenant))
    }
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
