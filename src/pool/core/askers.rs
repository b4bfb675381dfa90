//! Which tenants ask for room most often, whether they get it or not.
//!
//! The algorithm is space-saving (Metwally, Agrawal and El Abbadi, 2005): as many counts as are kept, and a tenant that has
//! none takes over the smallest. Counts fade, so that they tell of the last ten seconds or so.

use std::{hash::BuildHasher, time::Duration};

use rustc_hash::FxBuildHasher;
use tokio::time::Instant;

/// Counts that are kept.
const KEPT: usize = 32;
/// What a count keeps of itself from one second to the next.
const FADES: f64 = 0.9;
const SECOND: Duration = Duration::from_secs(1);

/// The counts.
#[derive(Default)]
pub(super) struct Askers {
    counts: Vec<Count>,
    /// The one that was last there.
    last: usize,
    /// Up to when they have faded.
    faded: Option<Instant>,
}

struct Count {
    hash: u64,
    tenant: Box<str>,
    asked: f64,
    refused: f64,
}

/// How often a tenant asks.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantRate {
    /// Name of the tenant.
    pub tenant: Box<str>,
    /// Jobs that ask for room, per second.
    pub asks: f64,
    /// Those of them that are refused at once.
    pub refusals: f64,
}

impl Askers {
    /// A job of `tenant` asks for room. Returns the place of its count, for [`refuse`](Self::refuse).
    pub(super) fn ask(&mut self, now: Instant, tenant: &str) -> usize {
        self.fade(now);
        let hash = FxBuildHasher.hash_one(tenant);
        let is_it = |count: &Count| count.hash == hash && *count.tenant == *tenant;
        if !self.counts.get(self.last).is_some_and(is_it) {
            self.last = self.counts.iter().position(is_it).unwrap_or_else(|| self.take_over(hash, tenant));
        }
        self.counts[self.last].asked += 1.0;
        self.last
    }

    /// A job that [asked](Self::ask) is refused.
    pub(super) fn refuse(&mut self, place: usize) {
        self.counts[place].refused += 1.0;
    }

    /// The rates, the highest first.
    pub(super) fn rates(&self, now: Instant) -> Vec<TenantRate> {
        // What comes in each second fades to a tenth of it in the next: the sum is ten times the rate.
        let rate = (1.0 - FADES) * self.faded.map_or(1.0, |faded| fading(now, faded).1);
        let rates = self.counts.iter().map(|Count { hash: _, tenant, asked, refused }| TenantRate {
            tenant: tenant.clone(),
            asks: asked * rate,
            refusals: refused * rate,
        });
        let mut rates: Vec<_> = rates.filter(|rate| rate.asks >= 0.05).collect();
        rates.sort_unstable_by(|a, b| b.asks.total_cmp(&a.asks));
        rates
    }

    fn fade(&mut self, now: Instant) {
        let (time, factor) = fading(now, *self.faded.get_or_insert(now));
        if time.is_zero() {
            return;
        }
        self.faded = self.faded.map(|faded| faded + time);
        for count in &mut self.counts {
            count.asked *= factor;
            count.refused *= factor;
        }
    }

    fn take_over(&mut self, hash: u64, tenant: &str) -> usize {
        let least = (0..self.counts.len()).min_by(|a, b| self.counts[*a].asked.total_cmp(&self.counts[*b].asked));
        // Its place is as many asks as it may have missed.
        let of = |asked| Count { hash, tenant: tenant.into(), asked, refused: 0.0 };
        match least.filter(|_| self.counts.len() >= KEPT) {
            Some(least) => {
                self.counts[least] = of(self.counts[least].asked);
                least
            }
            None => {
                self.counts.push(of(0.0));
                self.counts.len() - 1
            }
        }
    }
}

/// The whole seconds since `faded`, and what is left of a count after them.
fn fading(now: Instant, faded: Instant) -> (Duration, f64) {
    let seconds = now.saturating_duration_since(faded).as_secs();
    (SECOND * u32::try_from(seconds).unwrap_or(u32::MAX), FADES.powi(i32::try_from(seconds).unwrap_or(i32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_most_is_told_among_very_many() {
        let start = Instant::now();
        let mut askers = Askers::default();
        for second in 0..60 {
            let now = start + SECOND * second;
            for turn in 0..200 {
                let place = askers.ask(now, "loud");
                if turn < 150 {
                    askers.refuse(place);
                }
                askers.ask(now, &format!("one of many {second} {turn}"));
                if turn % 4 == 0 {
                    askers.ask(now, "second");
                }
            }
        }
        assert_eq!(askers.counts.len(), KEPT);
        let now = start + SECOND * 59;
        let rates = askers.rates(now);
        assert_eq!((&*rates[0].tenant, &*rates[1].tenant), ("loud", "second"));
        assert!((rates[0].asks - 200.0).abs() < 2.0 && (rates[0].refusals - 150.0).abs() < 2.0, "{rates:?}");
        assert!((45.0..60.0).contains(&rates[1].asks), "{rates:?}");
        assert_eq!(askers.rates(now + 300 * SECOND), [], "a tenant that asks no more is forgotten");
    }
}
