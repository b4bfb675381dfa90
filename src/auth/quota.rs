use std::{
    collections::HashMap,
    hash::BuildHasher,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    clock::Clock,
    middleware::NoOpMiddleware,
    state::{InMemoryState, NotKeyed},
};
use parking_lot::Mutex;
use rand::RngExt;
use rustc_hash::FxBuildHasher;
use tokio::time::Instant;

use super::{QuotaConfig, TenantQuota};
use crate::model::LONGEST_HINT;

const SHARDS: usize = 16;
/// Least time between two sweeps of a shard that is full.
const SWEEP: Duration = Duration::from_secs(1);

/// What each tenant has left.
pub struct Quotas {
    each: TenantQuota,
    /// Tenants with bounds of their own; they are never forgotten.
    named: HashMap<Box<str>, Arc<Tenant>>,
    shards: Box<[Mutex<Shard>]>,
    most_in_shard: usize,
    /// Whoever finds no room in the table.
    others: Arc<Tenant>,
    clock: Elapsed,
    /// Keyed at random: nobody can choose names that meet in one shard.
    hasher: std::hash::RandomState,
    refused: AtomicU64,
}

#[derive(Default)]
struct Shard {
    tenants: HashMap<Box<str>, Arc<Tenant>, FxBuildHasher>,
    swept: Duration,
}

/// Why a job is over its tenant's quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverQuota {
    /// Too many jobs in too short a time.
    Rate {
        /// Jobs per second that are allowed.
        rate: NonZeroU32,
        /// When there is room again. Callers that are refused in a row are told times in a row.
        retry_after: Duration,
    },
    /// Too many jobs at once; there is room again when one of them ends.
    InFlight {
        /// Jobs that are allowed.
        limit: usize,
    },
}

/// Room for one job of a tenant, given back on drop.
#[derive(Debug)]
#[must_use = "the room is given back on drop"]
pub struct Hold(Arc<Tenant>);

#[derive(Debug)]
struct Tenant {
    bounds: TenantQuota,
    limiter: Option<RateLimiter<NotKeyed, InMemoryState, Elapsed, NoOpMiddleware<Duration>>>,
    in_flight: AtomicUsize,
    /// Time of the last room that a refused caller was told of, in nanoseconds of the clock.
    promised: AtomicU64,
    /// Time of the last job, likewise.
    touched: AtomicU64,
}

/// Time since the quotas were made, by the clock that tests can pause.
#[derive(Debug, Clone, Copy)]
struct Elapsed(Instant);

impl Clock for Elapsed {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

impl Quotas {
    /// `None` where nobody is bound.
    #[must_use]
    pub fn new(config: &QuotaConfig) -> Option<Self> {
        let QuotaConfig { each, tenants, named } = config;
        if !config.is_bound() {
            return None;
        }
        let clock = Elapsed(Instant::now());
        let named = named.iter().map(|(name, bounds)| (name.as_str().into(), Arc::new(Tenant::new(*bounds, clock))));
        Some(Self {
            each: *each,
            named: named.collect(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            most_in_shard: tenants.div_ceil(SHARDS),
            others: Arc::new(Tenant::new(*each, clock)),
            clock,
            hasher: std::hash::RandomState::new(),
            refused: AtomicU64::new(0),
        })
    }

    /// Room for one job of `tenant`; `None` where it is not bound.
    ///
    /// # Errors
    /// [`OverQuota`], which takes nothing.
    pub fn take(&self, tenant: &str) -> Result<Option<Hold>, OverQuota> {
        let tenant = match self.named.get(tenant) {
            Some(named) => Arc::clone(named),
            None if self.each.is_bound() => self.tenant(tenant),
            None => return Ok(None),
        };
        let taken = tenant.take(self.clock.now());
        if taken.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        taken.map(Some)
    }

    /// Jobs that were over a quota.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Tenants in the table.
    #[must_use]
    pub fn tenants(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().tenants.len()).sum()
    }

    fn tenant(&self, name: &str) -> Arc<Tenant> {
        let hash = self.hasher.hash_one(name) as usize;
        let mut shard = self.shards[hash % SHARDS].lock();
        if let Some(tenant) = shard.tenants.get(name) {
            return Arc::clone(tenant);
        }
        if shard.tenants.len() >= self.most_in_shard {
            shard.sweep(self.clock.now());
        }
        if shard.tenants.len() >= self.most_in_shard {
            return Arc::clone(&self.others);
        }
        let tenant = Arc::new(Tenant::new(self.each, self.clock));
        shard.tenants.insert(name.into(), Arc::clone(&tenant));
        tenant
    }
}

impl Shard {
    /// Forgets tenants that would be new again: nothing in flight, and their room refilled.
    fn sweep(&mut self, now: Duration) {
        if now < self.swept + SWEEP {
            return;
        }
        self.swept = now;
        self.tenants.retain(|_, tenant| Arc::strong_count(tenant) > 1 || !tenant.is_at_rest(now));
    }
}

impl Tenant {
    fn new(bounds: TenantQuota, clock: Elapsed) -> Self {
        let limiter = bounds.rate.map(|rate| {
            let quota = Quota::per_second(rate).allow_burst(bounds.burst.unwrap_or(rate));
            RateLimiter::direct_with_clock(quota, clock)
        });
        Self {
            bounds,
            limiter,
            in_flight: AtomicUsize::new(0),
            promised: AtomicU64::new(0),
            touched: AtomicU64::new(0),
        }
    }

    fn take(self: Arc<Self>, now: Duration) -> Result<Hold, OverQuota> {
        self.touched.store(nanos(now), Ordering::Relaxed);
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let hold = Hold(self);
        let tenant = &hold.0;
        if let Some(limit) = tenant.bounds.in_flight
            && before >= limit
        {
            return Err(OverQuota::InFlight { limit });
        }
        if let (Some(limiter), Some(rate)) = (&tenant.limiter, tenant.bounds.rate)
            && let Err(full) = limiter.check()
        {
            let retry_after = tenant.promise(now, full.wait_time_from(now), rate);
            return Err(OverQuota::Rate { rate, retry_after });
        }
        Ok(hold)
    }

    /// The time of the next room that no other caller was told of, as a wait from `now`. Where all the room of a minute was
    /// told of, no more is booked: most of those callers do not come back.
    fn promise(&self, now: Duration, refill: Duration, rate: NonZeroU32) -> Duration {
        let (next, latest) = (nanos(now + refill), nanos(now + LONGEST_HINT));
        let step = 1_000_000_000 / u64::from(rate.get());
        let turn = |last: u64| next.max(last.saturating_add(step));
        let book = |last: u64| Some(turn(last)).filter(|turn| *turn <= latest);
        match self.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, book) {
            Ok(last) => Duration::from_nanos(turn(last)).saturating_sub(now),
            Err(_) => LONGEST_HINT.mul_f64(rand::rng().random_range(0.5..1.0)),
        }
    }

    fn is_at_rest(&self, now: Duration) -> bool {
        let TenantQuota { rate, burst, in_flight: _ } = self.bounds;
        let refill = rate.map_or(0.0, |rate| f64::from(burst.unwrap_or(rate).get()) / f64::from(rate.get()));
        let rested = Duration::from_nanos(self.touched.load(Ordering::Relaxed)) + Duration::from_secs_f64(refill);
        self.in_flight.load(Ordering::Relaxed) == 0 && rested < now
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
