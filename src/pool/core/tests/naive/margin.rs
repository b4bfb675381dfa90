use super::{super::Offer, Job, Naive};

/// Windows of a period: two seconds.
const PERIOD: usize = 20;

/// What each tenant asked for: the tenant, the window, and the seconds that were expected.
#[derive(Default)]
pub(super) struct Demand(Vec<(u8, usize, f64)>);

impl Naive {
    pub(super) fn note_demand(&mut self, offer: &Offer) {
        let seconds = self.service(Some(offer.kind));
        self.demand.0.push((offer.tenant, self.history.window(), seconds));
    }

    /// Whether the tenant asked for less than an equal share of the workers in two seconds, beside this job. Of the period
    /// before the open one, as much counts as the two seconds reach into it.
    fn is_light(&self, offer: &Offer) -> bool {
        let (period, into) = (self.history.window() / PERIOD, self.history.window() % PERIOD);
        let of = |at: usize| -> f64 {
            let own = self.demand.0.iter().filter(|asked| asked.0 == offer.tenant && asked.1 / PERIOD == at);
            own.map(|asked| asked.2).sum()
        };
        let before = if period > 0 { of(period - 1) * (1.0 - into as f64 / PERIOD as f64) } else { 0.0 };
        let asked = of(period) + before - self.service(Some(offer.kind));
        let seen = |tenant: &u8| self.demand.0.iter().any(|asked| asked.0 == *tenant && asked.1 / PERIOD + 1 >= period);
        let share = 2.0 * self.live() as f64 / (0..4).filter(seen).count() as f64;
        asked < share
    }

    pub(super) fn miss(&mut self, job: &Job) {
        self.history.open().missed[job.offer.class.rank()] += 1.0;
    }

    pub(super) fn margin_of(&self, offer: &Offer) -> f64 {
        if self.is_light(offer) { 1.0 } else { self.history.margin(offer.class.rank()) }
    }
}
