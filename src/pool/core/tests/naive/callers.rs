use super::{
    super::{super::RefusalReason, Offer, Told},
    Job, Naive,
    law::fair,
};

impl Naive {
    /// Seconds that the jobs of callers take that wait for room before an offer: those of its own tenant, of its class
    /// and above. One that has no place waits for the others, too: for all of the classes above, and in its own for as
    /// much of each tenant as of its own; or for all, where tenants have no parts.
    pub(super) fn callers_before_offer(&self, offer: &Offer, has_place: bool) -> f64 {
        let rank = offer.class.rank();
        let of = |tenant: u8, rank: usize| -> f64 {
            let callers = self.waiting.iter().filter(|caller| caller.offer.class.rank() == rank);
            callers.filter(|caller| caller.offer.tenant == tenant).map(|caller| caller.work).sum()
        };
        let seconds = if has_place {
            (0..=rank).map(|rank| of(offer.tenant, rank)).sum()
        } else {
            let above: f64 = (0..rank).flat_map(|above| (0..4).map(move |tenant| of(tenant, above))).sum();
            let own = of(offer.tenant, rank) + self.service(Some(offer.kind));
            let own = if self.caps.tenant_share >= 1.0 { f64::INFINITY } else { own };
            above + fair([0, 1, 2, 3].map(|tenant| of(tenant, rank)), own)
        };
        seconds / self.live().max(1) as f64
    }

    /// The first caller of each tenant, class by class, in order of arrival.
    fn first_callers(&self) -> Vec<Job> {
        let seat = |caller: &Job| (caller.offer.class.rank(), caller.offer.tenant);
        let is_first = |at: usize| !self.waiting[..at].iter().any(|other| seat(other) == seat(&self.waiting[at]));
        (0..self.waiting.len()).filter(|at| is_first(*at)).map(|at| self.waiting[at].clone()).collect()
    }

    /// The queue may be full of jobs behind their keys: the first caller of a tenant then does without a place in it.
    pub(super) fn caller_for_worker(&mut self) -> Option<Job> {
        let may_start = |caller: &Job| self.key_is_free(caller.offer.key) && self.is_within_limits(&caller.offer);
        let caller = self.first_callers().into_iter().find(may_start)?;
        Some(self.take_caller(&caller))
    }

    /// Asks every caller until none of them leaves; fewer than the machine asks at a time.
    pub(super) fn admit_callers(&mut self) {
        loop {
            let before = self.waiting.len();
            (0..4).for_each(|rank| self.ask_callers(rank));
            if self.waiting.len() == before {
                return;
            }
        }
    }

    fn ask_callers(&mut self, rank: usize) {
        let of_class = self.waiting.iter().filter(|caller| caller.offer.class.rank() == rank);
        for caller in of_class.cloned().collect::<Vec<_>>() {
            let offer = caller.offer;
            if caller.start_by <= self.now {
                self.take_caller(&caller);
                self.counts.rejected[0] += 1;
                self.told.push(Told::Refused { job: caller.job, reason: RefusalReason::NoRoomInTime });
                continue;
            }
            if self.queued.len() >= self.room(rank).0 {
                return;
            }
            if self.is_over_share(&offer) {
                continue;
            }
            let Ok(is_probe) = self.judge(&offer, caller.start_by, caller.finish_by, 0.0) else { continue };
            if !self.has_room(rank, offer.bytes) {
                return;
            }
            let caller = self.take_caller(&caller);
            self.accept(Job { is_probe, ..caller });
        }
    }

    fn take_caller(&mut self, caller: &Job) -> Job {
        let at = self.waiting.iter().position(|other| other.job == caller.job).expect("it waits");
        self.waiting.remove(at)
    }
}
