//! How much work each tenant asked for in the last two seconds, whether it got room or not.

use std::hash::BuildHasher;

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::law::WINDOW;

/// Windows of one period: two seconds.
const PERIOD: u64 = 20;
/// Names in the table of a period. Further tenants share one entry.
const MOST_NAMES: usize = 10_000;
/// The entry that they share.
const OTHERS: u64 = 0;

/// Expected seconds of work that came, by hash of the tenant's name. Two periods are kept: the last two seconds are the
/// running one, and what they reach into the one before it.
#[derive(Default)]
pub(super) struct TenantDemand {
    period: u64,
    running: FxHashMap<u64, f64>,
    before: FxHashMap<u64, f64>,
    /// Tenants of either period.
    tenants: usize,
}

impl TenantDemand {
    /// A job arrives that is expected to take so many seconds.
    pub(super) fn arrive(&mut self, tenant: &str, seconds: f64) {
        let name = self.name(tenant);
        let is_new = !self.before.contains_key(&name);
        let running = self.running.entry(name).or_insert_with(|| {
            self.tenants += usize::from(is_new);
            0.0
        });
        *running += seconds;
    }

    /// Whether a tenant asked for less than an equal share of what `workers` can do, among the tenants that were seen,
    /// beside the job of `own` seconds that is judged.
    pub(super) fn is_light(&self, tenant: &str, own: f64, workers: usize, window: u64) -> bool {
        let name = self.name(tenant);
        let of = |period: &FxHashMap<u64, f64>| period.get(&name).copied().unwrap_or(0.0);
        let overlap = 1.0 - (window % PERIOD) as f64 / PERIOD as f64;
        let asked = of(&self.running) + of(&self.before) * overlap;
        let capacity = workers as f64 * PERIOD as f64 * WINDOW.as_secs_f64();
        (asked - own) * (self.tenants as f64) < capacity
    }

    fn name(&self, tenant: &str) -> u64 {
        let hash = FxBuildHasher.hash_one(tenant);
        let is_full = self.running.len() >= MOST_NAMES && !self.running.contains_key(&hash);
        if is_full { OTHERS } else { hash }
    }

    /// So many windows are over, from the first one on.
    pub(super) fn turn(&mut self, window: u64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_light_while_it_asks_for_less_than_an_equal_share() {
        let mut demand = TenantDemand::default();
        let mut is_light = |tenant, seconds, window| {
            demand.turn(window);
            demand.arrive(tenant, seconds);
            demand.is_light(tenant, 0.0, 1, window)
        };
        // One worker, two tenants: a second of work each in two seconds.
        assert!(is_light("light", 0.3, 0));
        assert!(is_light("heavy", 0.9, 0));
        assert!(!is_light("heavy", 0.2, 5), "1.1 seconds");
        assert!(is_light("light", 0.3, 19));
        assert!(!is_light("heavy", 0.1, 20), "the last two seconds reach into the period before");
        assert!(is_light("heavy", 0.1, 35), "by a quarter");
        assert!(!is_light("heavy", 2.0, 100), "alone, it has all of the worker");
        assert!(is_light("heavy", 1.9, 180));
    }

    #[test]
    fn further_names_share_one_entry() {
        let mut demand = TenantDemand::default();
        for name in 0..2 * MOST_NAMES {
            demand.arrive(&name.to_string(), 0.1);
        }
        assert_eq!((demand.running.len(), demand.tenants), (MOST_NAMES + 1, MOST_NAMES + 1));
    }
}
