//! Rates over windows of a tenth of a second, and each tenant's demand in the last two seconds.

use rustc_hash::{FxBuildHasher, FxHashMap};
use std::{hash::BuildHasher, time::Duration};

/// Windows of one period.
const PERIOD: u64 = 20;
const PERIOD_SECONDS: f64 = PERIOD as f64 * WINDOW.as_secs_f64();
/// Largest number of names in the table of a period. Further tenants share one entry.
const MAX_NAMES: usize = 10_000;
/// The shared entry.
const OTHERS: u64 = 0;
/// Largest number of tenants in a list.
const MAX_LISTED: usize = 32;

/// Demand by hash of the tenant's name. Two periods are kept: the last two seconds cover the current one and a part of
/// the previous one.
#[derive(Default)]
pub(crate) struct TenantDemand {
    period: u64,
    running: FxHashMap<u64, Asked>,
    before: FxHashMap<u64, Asked>,
    /// Tenants of both periods.
    tenants: usize,
}

#[derive(Default)]
struct Asked {
    name: Box<str>,
    /// Expected work.
    seconds: f64,
    jobs: f64,
    refused: f64,
}

/// Request rate of a tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantRate {
    /// Name of the tenant.
    pub tenant: Box<str>,
    /// Jobs per second that request capacity.
    pub asks: f64,
    /// Jobs per second that are refused at once.
    pub refusals: f64,
}

impl TenantDemand {
    /// A job arrives that is expected to take `seconds`.
    pub(crate) fn arrive(&mut self, tenant: &str, seconds: f64) {
        let name = self.name(tenant);
        let is_new = !self.before.contains_key(&name);
        let asked = self.running.entry(name).or_insert_with(|| {
            self.tenants += usize::from(is_new);
            Asked { name: if name == OTHERS { Box::default() } else { tenant.into() }, ..Asked::default() }
        });
        asked.seconds += seconds;
        asked.jobs += 1.0;
    }

    /// A job that arrived is refused.
    pub(crate) fn refuse(&mut self, tenant: &str) {
        let name = self.name(tenant);
        if let Some(asked) = self.running.get_mut(&name) {
            asked.refused += 1.0;
        }
    }

    /// Whether a tenant's demand is below an equal share of `workers` among the recent tenants. The current job, of
    /// `own` seconds, is not included.
    pub(crate) fn is_light(&self, tenant: &str, own: f64, workers: usize, window: u64) -> bool {
        let asked = self.per_second(tenant, window) * PERIOD_SECONDS;
        (asked - own) * (self.tenants as f64) < workers as f64 * PERIOD_SECONDS
    }

    /// A tenant's demand, in seconds of work per second.
    pub(crate) fn per_second(&self, tenant: &str, window: u64) -> f64 {
        let name = self.name(tenant);
        self.rate(name, window, |asked| asked.seconds)
    }

    /// The tenants with the highest request rates, highest first.
    pub(crate) fn rates(&self, window: u64) -> Vec<TenantRate> {
        let fresh = self.before.iter().filter(|(name, _)| !self.running.contains_key(name));
        let rates = self.running.iter().chain(fresh).filter(|(name, _)| **name != OTHERS);
        let rates = rates.map(|(name, asked)| TenantRate {
            tenant: asked.name.clone(),
            asks: self.rate(*name, window, |asked| asked.jobs),
            refusals: self.rate(*name, window, |asked| asked.refused),
        });
        let mut rates: Vec<_> = rates.filter(|rate| rate.asks > 0.0).collect();
        rates.sort_unstable_by(|a, b| b.asks.total_cmp(&a.asks));
        rates.truncate(MAX_LISTED);
        rates
    }

    /// Rate over the last two seconds.
    fn rate(&self, name: u64, window: u64, amount: impl Fn(&Asked) -> f64) -> f64 {
        let left = 1.0 - (window % PERIOD) as f64 / PERIOD as f64;
        let weights = match (window / PERIOD).saturating_sub(self.period) {
            0 => [1.0, left],
            1 => [left, 0.0],
            _ => [0.0, 0.0],
        };
        let of = |period: &FxHashMap<u64, Asked>| period.get(&name).map_or(0.0, &amount);
        (weights[0] * of(&self.running) + weights[1] * of(&self.before)) / PERIOD_SECONDS
    }

    fn name(&self, tenant: &str) -> u64 {
        let hash = FxBuildHasher.hash_one(tenant);
        let is_full = self.running.len() >= MAX_NAMES && !self.running.contains_key(&hash);
        if is_full { OTHERS } else { hash }
    }

    /// Advances to `window`.
    pub(crate) fn advance(&mut self, window: u64) {
        let over = window / PERIOD - self.period;
        if over == 0 {
            return;
        }
        std::mem::swap(&mut self.before, &mut self.running);
        self.running.clear();
        if over > 1 {
            self.before.clear();
        }
        self.period += over;
        self.tenants = self.before.len();
    }
}

/// Time between two samples of the rates and of the safety margins.
pub(crate) const WINDOW: Duration = Duration::from_millis(100);
/// Weight of one window in a rate: a time constant of about a second.
pub(crate) const WINDOW_WEIGHT: f64 = 0.1;

/// Rate, as an exponentially weighted mean over windows. The first windows are averaged with equal weights.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rate {
    /// In the current window.
    amount: f64,
    pub(crate) per_second: f64,
    windows: u32,
}

impl Rate {
    pub(crate) fn add(&mut self, amount: f64) {
        self.amount += amount;
    }

    /// Ends a window, and `empty` more without events.
    pub(crate) fn advance(&mut self, empty: u32) {
        self.fold();
        // The rate is zero after this many windows.
        for _ in 0..empty.min(FORGOTTEN) {
            self.fold();
        }
    }

    fn fold(&mut self) {
        self.windows = self.windows.saturating_add(1);
        let latest = std::mem::take(&mut self.amount) / WINDOW.as_secs_f64();
        let weight = WINDOW_WEIGHT.max(1.0 / f64::from(self.windows));
        self.per_second += weight * (latest - self.per_second);
    }
}

/// Windows after which a rate is zero, because less than a thousandth of it is left.
pub(crate) const FORGOTTEN: u32 = 70;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_light_while_it_demands_less_than_an_equal_share() {
        let mut demand = TenantDemand::default();
        let mut is_light = |tenant, seconds, window| {
            demand.advance(window);
            demand.arrive(tenant, seconds);
            demand.is_light(tenant, 0.0, 1, window)
        };
        // One worker, two tenants: a second of work each in two seconds.
        assert!(is_light("light", 0.3, 0));
        assert!(is_light("heavy", 0.9, 0));
        assert!(!is_light("heavy", 0.2, 5), "1.1 seconds");
        assert!(is_light("light", 0.3, 19));
        assert!(!is_light("heavy", 0.1, 20), "the last two seconds include a part of the previous period");
        assert!(is_light("heavy", 0.1, 35), "they include a quarter of the previous period");
        assert!(!is_light("heavy", 2.0, 100), "a tenant alone may use the whole worker");
        assert!(is_light("heavy", 1.9, 180));
    }

    #[test]
    fn further_names_share_one_entry() {
        let mut demand = TenantDemand::default();
        for name in 0..2 * MAX_NAMES {
            demand.arrive(&name.to_string(), 0.1);
        }
        assert_eq!((demand.running.len(), demand.tenants), (MAX_NAMES + 1, MAX_NAMES + 1));
    }

    #[test]
    fn the_tenants_with_the_highest_rates_are_listed_among_many() {
        let mut demand = TenantDemand::default();
        for window in 0..40 {
            demand.advance(window);
            for turn in 0..20 {
                demand.arrive("loud", 0.0);
                if turn < 15 {
                    demand.refuse("loud");
                }
                demand.arrive(&format!("one of many {window} {turn}"), 0.0);
                if turn % 4 == 0 {
                    demand.arrive("second", 0.0);
                }
            }
        }
        let rates = demand.rates(39);
        assert_eq!((&*rates[0].tenant, &*rates[1].tenant, rates.len()), ("loud", "second", MAX_LISTED));
        assert!((200.0..220.0).contains(&rates[0].asks) && (150.0..165.0).contains(&rates[0].refusals), "{rates:?}");
        assert!((50.0..55.0).contains(&rates[1].asks), "{rates:?}");
        assert_eq!(demand.rates(39 + 2 * PERIOD), [], "a tenant without further jobs is forgotten");
    }
}
