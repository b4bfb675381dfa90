//! Quotas of tenants: rate and jobs in flight. `src/rpc/guard.rs` asks them.

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

use parking_lot::Mutex;
use rand::RngExt;
use rustc_hash::FxBuildHasher;
use tokio::time::Instant;

use super::{QuotaConfig, TenantQuota};
use crate::model::MAX_RETRY_AFTER;

const SHARDS: usize = 16;
const NANOS: u64 = 1_000_000_000;
/// Shortest time between two sweeps of a full shard.
const SWEEP: Duration = Duration::from_secs(1);

/// The remaining quota of each tenant.
pub struct Quotas {
    each: TenantQuota,
    /// Tenants with their own bounds. They are never forgotten.
    named: HashMap<Box<str>, Arc<Tenant>>,
    shards: Box<[Mutex<Shard>]>,
    most_in_shard: usize,
    /// Shared by the tenants that do not fit in the table.
    others: Arc<Tenant>,
    /// When the quotas were made. Stored times count from there.
    began: Instant,
    /// Keyed at random, so that callers cannot choose names that share one shard.
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
        /// When capacity is free again. Callers that are refused in a row get successive times.
        retry_after: Duration,
    },
    /// Too many jobs at once. Capacity is free again when one of them ends.
    InFlight {
        /// Jobs that are allowed.
        limit: usize,
    },
}

/// One job's part of a quota, given back on drop.
#[derive(Debug)]
#[must_use = "the quota is given back on drop"]
pub struct Hold(Arc<Tenant>);

#[derive(Debug)]
struct Tenant {
    bounds: TenantQuota,
    /// When its bucket will be full again, in nanoseconds since the quotas were made.
    full_at: AtomicU64,
    in_flight: AtomicUsize,
    /// The last retry time that was given to a refused caller, in the same unit.
    promised: AtomicU64,
}

impl Quotas {
    /// `None` if no tenant is bounded.
    #[must_use]
    pub fn new(config: &QuotaConfig) -> Option<Self> {
        let QuotaConfig { each, tenants, named } = config;
        if !config.is_bound() {
            return None;
        }
        let named = named.iter().map(|(name, bounds)| (name.as_str().into(), Arc::new(Tenant::new(*bounds))));
        Some(Self {
            each: *each,
            named: named.collect(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            most_in_shard: tenants.div_ceil(SHARDS),
            others: Arc::new(Tenant::new(*each)),
            began: Instant::now(),
            hasher: std::hash::RandomState::new(),
            refused: AtomicU64::new(0),
        })
    }

    /// Takes one job of the quota of `tenant`; `None` if it has no bounds.
    ///
    /// # Errors
    /// [`OverQuota`]; nothing is taken.
    pub fn take(&self, tenant: &str) -> Result<Option<Hold>, OverQuota> {
        let tenant = match self.named.get(tenant) {
            Some(named) => Arc::clone(named),
            None if self.each.is_bound() => self.tenant(tenant),
            None => return Ok(None),
        };
        let taken = tenant.take(self.began.elapsed());
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
            shard.sweep(self.began.elapsed());
        }
        if shard.tenants.len() >= self.most_in_shard {
            return Arc::clone(&self.others);
        }
        let tenant = Arc::new(Tenant::new(self.each));
        shard.tenants.insert(name.into(), Arc::clone(&tenant));
        tenant
    }
}

impl Shard {
    /// Forgets tenants without jobs whose bucket is full: they would start the same as new ones.
    fn sweep(&mut self, now: Duration) {
        if now < self.swept + SWEEP {
            return;
        }
        self.swept = now;
        self.tenants.retain(|_, tenant| Arc::strong_count(tenant) > 1 || !tenant.is_at_rest(now));
    }
}

impl Tenant {
    fn new(bounds: TenantQuota) -> Self {
        Self { bounds, in_flight: AtomicUsize::new(0), full_at: AtomicU64::new(0), promised: AtomicU64::new(0) }
    }

    fn take(self: Arc<Self>, now: Duration) -> Result<Hold, OverQuota> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let hold = Hold(self);
        let tenant = &hold.0;
        if let Some(limit) = tenant.bounds.in_flight
            && before >= limit
        {
            return Err(OverQuota::InFlight { limit });
        }
        if let Some(rate) = tenant.bounds.rate
            && let Err(refill) = tenant.draw(now, rate)
        {
            let retry_after = tenant.promise(now, refill, rate);
            return Err(OverQuota::Rate { rate, retry_after });
        }
        Ok(hold)
    }

    /// Takes one token from the bucket, or returns the time until there is one: the generic cell rate algorithm of
    /// ITU-T I.371.
    fn draw(&self, now: Duration, rate: NonZeroU32) -> Result<(), Duration> {
        let (now, step) = (nanos(now), NANOS / u64::from(rate.get()));
        let burst = self.bounds.burst.unwrap_or(rate);
        let most = step * u64::from(burst.get() - 1);
        let draw = |full_at: u64| (full_at <= now + most).then(|| full_at.max(now) + step);
        let drawn = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, draw);
        drawn.map(drop).map_err(|full_at| Duration::from_nanos(full_at - now - most))
    }

    /// The next retry time that no other caller was given, as a wait from `now`. At most a minute is booked ahead: most
    /// of those callers do not come back.
    fn promise(&self, now: Duration, refill: Duration, rate: NonZeroU32) -> Duration {
        let (next, latest) = (nanos(now + refill), nanos(now + MAX_RETRY_AFTER));
        let step = NANOS / u64::from(rate.get());
        let turn = |last: u64| next.max(last.saturating_add(step));
        let book = |last: u64| Some(turn(last)).filter(|turn| *turn <= latest);
        match self.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, book) {
            Ok(last) => Duration::from_nanos(turn(last)).saturating_sub(now),
            Err(_) => MAX_RETRY_AFTER.mul_f64(rand::rng().random_range(0.5..1.0)),
        }
    }

    fn is_at_rest(&self, now: Duration) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0 && self.full_at.load(Ordering::Relaxed) < nanos(now)
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
