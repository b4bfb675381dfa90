use super::{
    super::{Offer, Told},
    Job, Naive,
    law::come_back,
    within,
};
use crate::model::Outcome;

/// Who asked for room, and in which window.
#[derive(Default)]
pub(super) struct Seen(Vec<(usize, u8, usize)>);

impl Seen {
    pub(super) fn note(&mut self, offer: &Offer, window: usize) {
        self.0.push((offer.class.rank(), offer.tenant, window));
    }

    /// Those of the last minute.
    fn of_late(&self, window: usize) -> impl Iterator<Item = &(usize, u8, usize)> {
        self.0.iter().filter(move |(.., at)| window - at < 600)
    }
}

impl Naive {
    /// Jobs and bytes up to which a class may fill the queue: an eighth is kept for each class above that was there.
    pub(super) fn room(&self, rank: usize) -> (usize, usize) {
        let window = self.history.window();
        let above = (0..rank).filter(|above| self.seen.of_late(window).any(|(rank, ..)| rank == above)).count();
        (self.caps.jobs - self.caps.jobs / 8 * above, self.caps.bytes - self.caps.bytes / 8 * above)
    }

    pub(super) fn may_wait(&self, bytes: usize) -> bool {
        self.waiting.len() < self.caps.waiting && within(self.waiting_bytes(), bytes, self.caps.bytes)
    }

    pub(super) fn has_room(&self, rank: usize, bytes: usize) -> bool {
        self.has_room_without(rank, bytes, 0, 0)
    }

    fn has_room_without(&self, rank: usize, bytes: usize, fewer: usize, fewer_bytes: usize) -> bool {
        let (jobs, most) = self.room(rank);
        let held = self.queued_bytes() - fewer_bytes;
        let most = if held == 0 { self.caps.bytes } else { most };
        self.queued.len() - fewer < jobs && bytes <= most.saturating_sub(held)
    }

    /// Whether a job that is queued leaves what the first callers of its class and of those above it need.
    pub(super) fn leaves_room(&self, rank: usize, bytes: usize) -> bool {
        within(self.queued_bytes(), bytes.saturating_add(self.wanted_before(rank)), self.caps.bytes)
    }

    fn wanted_before(&self, rank: usize) -> usize {
        let first = |rank: usize| self.waiting.iter().find(|caller| caller.offer.class.rank() == rank);
        (0..=rank).filter_map(first).map(|caller| caller.offer.bytes).fold(0, usize::saturating_add)
    }

    /// Whether room is there once every queued job of a lower class is gone.
    pub(super) fn could_shed(&self, offer: &Offer) -> bool {
        let lower = |job: &&Job| job.offer.class.rank() > offer.class.rank();
        let jobs = self.queued.iter().filter(lower).count();
        let bytes = self.queued.iter().filter(lower).map(|job| job.offer.bytes).sum();
        self.has_room_without(offer.class.rank(), offer.bytes, jobs, bytes)
    }

    pub(super) fn shed_one(&mut self, rank: usize) {
        let lower = self.queued.iter().map(|job| job.offer.class.rank()).max().filter(|lowest| *lowest > rank);
        let lower = lower.expect("a job to shed");
        let of_class = || self.queued.iter().filter(|job| job.offer.class.rank() == lower);
        let ready = of_class().filter(|job| job.ready.is_some()).max_by_key(|job| job.ready);
        let held = of_class().rfind(|job| job.ready.is_none());
        let job = ready.into_iter().chain(held).map(|job| job.job).max().expect("a job of the class");
        let retry_after = come_back(self.behind_all(lower)).expect("some time");
        self.counts.shed += 1;
        self.leave_queue(job);
        self.told.push(Told::Ended { job, outcome: Outcome::Shed, retry_after: Some(retry_after) });
    }

    pub(super) fn is_over_share(&self, offer: &Offer) -> bool {
        let part = self.caps.tenant_share;
        let share = |cap: usize| (cap as f64 * part).floor();
        let own = self.queued.iter().filter(|job| job.offer.tenant == offer.tenant);
        let others = self.queued.len() > own.clone().count();
        let own = own.filter(|job| job.offer.class.rank() <= offer.class.rank());
        let (jobs, bytes) =
            own.fold((0, offer.bytes as f64), |(jobs, bytes), job| (jobs + 1, bytes + job.offer.bytes as f64));
        if jobs == 0 {
            return false;
        }
        if others && (jobs as f64 >= share(self.caps.jobs).max(1.0) || bytes > share(self.caps.bytes)) {
            return true;
        }
        // The last arrival of another tenant than the one before it.
        let mixed = self.seen.0.windows(2).rev().find(|pair| pair[0].1 != pair[1].1).map(|pair| pair[1].2);
        let mixes = mixed.is_some_and(|at| self.history.window() - at < 600);
        let times = f64::max(3.0, part / (1.0 - part));
        let (most_jobs, most_bytes) = self.room(offer.class.rank());
        let free = |most: usize, held: usize| most.saturating_sub(held) as f64 * times;
        let (places, room) = (free(most_jobs, self.queued.len()), free(most_bytes, self.queued_bytes()));
        let too_much = (places > 0.0 && jobs as f64 >= places) || (room > 0.0 && bytes > room);
        mixes && part < 1.0 && too_much
    }
}
