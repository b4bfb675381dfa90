use std::collections::HashMap;

use super::{super::Offer, Job, Naive, law::margin};

/// The margins of those who queue much: by class, lane and tenant.
#[derive(Default)]
pub(super) struct Margins {
    of: HashMap<(usize, usize, u8), Own>,
}

#[derive(Default)]
struct Own {
    /// Jobs that were queued since the tenant came.
    jobs: usize,
    /// The margin of its class when it began.
    start: f64,
    /// Queued and missed jobs of each window from then on, and whether the tenant had none queued at its end.
    windows: Vec<(f64, f64, bool)>,
    open: (f64, f64),
}

impl Naive {
    fn seat(&self, offer: &Offer) -> (usize, usize, u8) {
        (offer.class.rank(), self.lane(offer.kind), offer.tenant)
    }

    /// A tenant without a job that is or was queued is not known any more.
    fn is_known(&self, tenant: u8) -> bool {
        let running = self.running.iter().map(|run| &run.job).filter(|job| job.was_queued);
        self.queued.iter().chain(running).any(|job| job.offer.tenant == tenant)
    }

    /// A job is about to be queued. Returns whether it counts in the margin of its tenant.
    pub(super) fn count_in_margin(&mut self, job: &Job) -> bool {
        if !self.is_known(job.offer.tenant) {
            self.margins.of.retain(|(.., tenant), _| *tenant != job.offer.tenant);
        }
        let (seat, rank) = (self.seat(&job.offer), job.offer.class.rank());
        let of_class = self.history.margin(rank, &self.law);
        let own = self.margins.of.entry(seat).or_default();
        if own.jobs >= 5 {
            own.open.0 += 1.0;
            return true;
        }
        own.jobs += 1;
        own.start = of_class;
        self.history.open().queued[rank] += 1.0;
        false
    }

    pub(super) fn miss(&mut self, job: &Job) {
        if job.is_try {
            return;
        }
        let (seat, rank) = (self.seat(&job.offer), job.offer.class.rank());
        if job.has_own_margin {
            self.margins.of.get_mut(&seat).expect("a tenant with a job").open.1 += 1.0;
        } else {
            self.history.open().missed[rank] += 1.0;
        }
    }

    pub(super) fn turn_margins(&mut self, closed: usize) {
        let queued: Vec<_> = self.queued.iter().map(|job| self.seat(&job.offer)).collect();
        for (seat, own) in self.margins.of.iter_mut().filter(|(_, own)| own.jobs >= 5) {
            for _ in 0..closed {
                let (more, missed) = std::mem::take(&mut own.open);
                own.windows.push((more, missed, !queued.contains(seat)));
            }
        }
    }

    pub(super) fn margin_of(&self, offer: &Offer) -> f64 {
        let own = self.margins.of.get(&self.seat(offer)).filter(|own| own.jobs >= 5 && self.is_known(offer.tenant));
        match own {
            Some(own) => margin(own.start, own.windows.iter().copied(), &self.law),
            None => self.history.margin(offer.class.rank(), &self.law),
        }
    }
}
