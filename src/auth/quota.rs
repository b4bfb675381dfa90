//! Quotas of tenants: rate and jobs in flight. `src/rpc/access_control.rs` applies them.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::RngExt;
use tokio::time::Instant;

use super::{QuotaConfig, TenantQuota};

/// Longest time for which retry times are reserved, and about the longest that a refused caller gets.
const MAX_RESERVED: Duration = Duration::from_secs(5);
const NANOS: u64 = 1_000_000_000;
/// Shortest time between two sweeps of a full table.
const SWEEP: Duration = Duration::from_secs(1);

/// The remaining quota of each tenant.
pub struct Quotas {
    each: TenantQuota,
    /// Tenants with their own limits. They are never removed.
    named: HashMap<Box<str>, Arc<Tenant>>,
    table: Mutex<Table>,
    /// Maximum number of tenants in the table.
    max_tenants: usize,
    /// Shared by the tenants that do not fit in the table.
    others: Arc<Tenant>,
    /// When the quotas were created. Stored times are relative to it.
    began: Instant,
    /// Jobs over the quota of a tenant without its own limits.
    refused: AtomicU64,
}

/// The tenants without their own limits, by name.
#[derive(Default)]
struct Table {
    tenants: HashMap<Box<str>, Arc<Tenant>>,
    swept: Duration,
}

/// Why a job is over its tenant's quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverQuota {
    /// Too many jobs per second.
    Rate {
        /// Jobs per second that are allowed.
        rate: NonZeroU32,
        /// When the next job is possible. Callers that are refused one after another get successive times.
        retry_after: Duration,
    },
    /// Too many jobs at the same time. The next job is possible when one of them ends.
    InFlight {
        /// Jobs that are allowed.
        limit: usize,
    },
}

/// One job's part of a quota, returned on drop.
#[derive(Debug)]
#[must_use = "the quota is given back on drop"]
pub struct Hold(Arc<Tenant>);

#[derive(Debug)]
struct Tenant {
    bounds: TenantQuota,
    /// When the bucket is full again, in nanoseconds since the quotas were created.
    full_at: AtomicU64,
    in_flight: AtomicUsize,
    /// Jobs over its quota.
    refused: AtomicU64,
    /// The last retry time that a refused caller got, in the same unit.
    promised: AtomicU64,
}

impl Quotas {
    /// The quotas; `None` if no tenant has limits.
    pub fn new(config: &QuotaConfig) -> Option<Self> {
        let QuotaConfig { each, tenants, named } = config;
        if !config.is_bound() {
            return None;
        }
        let named = named.iter().map(|(name, bounds)| (name.as_str().into(), Arc::new(Tenant::new(*bounds))));
        Some(Self {
            each: *each,
            named: named.collect(),
            table: Mutex::default(),
            max_tenants: *tenants,
            others: Arc::new(Tenant::new(*each)),
            began: Instant::now(),
            refused: AtomicU64::new(0),
        })
    }

    /// Takes one job of the quota of `tenant`. Returns `None` if the tenant has no limits.
    ///
    /// # Errors
    /// [`OverQuota`]; then nothing is taken.
    pub fn take(&self, tenant: &str) -> Result<Option<Hold>, OverQuota> {
        let named = self.named.get(tenant);
        let tenant = match named {
            Some(named) => Arc::clone(named),
            None if self.each.is_bound() => self.tenant(tenant),
            None => return Ok(None),
        };
        let taken = tenant.take(self.began.elapsed());
        if taken.is_err() {
            named.map_or(&self.refused, |named| &named.refused).fetch_add(1, Ordering::Relaxed);
        }
        taken.map(Some)
    }

    /// Jobs that were over a quota: of each tenant with its own limits, and of all others, with `None`.
    pub fn refused(&self) -> impl Iterator<Item = (Option<&str>, u64)> {
        let named = self.named.iter().map(|(name, tenant)| (Some(&**name), &tenant.refused));
        named.chain([(None, &self.refused)]).map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }

    /// Tenants in the table.
    pub fn tenants(&self) -> usize {
        self.table.lock().tenants.len()
    }

    fn tenant(&self, name: &str) -> Arc<Tenant> {
        let mut table = self.table.lock();
        if let Some(tenant) = table.tenants.get(name) {
            return Arc::clone(tenant);
        }
        if table.tenants.len() >= self.max_tenants {
            table.sweep(self.began.elapsed());
        }
        if table.tenants.len() >= self.max_tenants {
            return Arc::clone(&self.others);
        }
        let tenant = Arc::new(Tenant::new(self.each));
        table.tenants.insert(name.into(), Arc::clone(&tenant));
        tenant
    }
}

impl Table {
    /// Removes tenants that no longer differ from new ones: they have no jobs, and their bucket is full.
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
        let [full_at, refused, promised] = [0; 3].map(AtomicU64::new);
        Self { bounds, full_at, in_flight: AtomicUsize::new(0), refused, promised }
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

    /// Takes one token from the bucket, or returns the time until there is one (the generic cell rate algorithm, ITU-T
    /// I.371).
    fn draw(&self, now: Duration, rate: NonZeroU32) -> Result<(), Duration> {
        let (now, step) = (nanos(now), NANOS / u64::from(rate.get()));
        let burst = self.bounds.burst.unwrap_or(rate);
        let max = step * u64::from(burst.get() - 1);
        let draw = |full_at: u64| (full_at <= now + max).then(|| full_at.max(now) + step);
        let drawn = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, draw);
        drawn.map(drop).map_err(|full_at| Duration::from_nanos(full_at - now - max))
    }

    /// The next retry time that no other caller got, as a delay from `now`. Only seconds are reserved ahead, because in
    /// a flood most of those callers do not return, and one that would should not wait for them.
    fn promise(&self, now: Duration, refill: Duration, rate: NonZeroU32) -> Duration {
        let (next, latest) = (nanos(now + refill), nanos(now + MAX_RESERVED));
        let step = NANOS / u64::from(rate.get());
        let turn = |last: u64| next.max(last.saturating_add(step));
        let book = |last: u64| Some(turn(last)).filter(|turn| *turn <= latest);
        match self.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, book) {
            Ok(last) => Duration::from_nanos(turn(last)).saturating_sub(now),
            Err(_) => MAX_RESERVED.mul_f64(rand::rng().random_range(0.5..1.0)),
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
mod tests {
    use tokio::time::advance;

    use super::*;

    fn quotas(each: TenantQuota, tenants: usize) -> Quotas {
        let named = vec![("big".to_owned(), TenantQuota { in_flight: Some(3), ..TenantQuota::default() })];
        Quotas::new(&QuotaConfig { each, tenants, named }).expect("bound")
    }

    fn rate(rate: u32, burst: u32) -> TenantQuota {
        TenantQuota { rate: NonZeroU32::new(rate), burst: NonZeroU32::new(burst), ..TenantQuota::default() }
    }

    fn wait(taken: Result<Option<Hold>, OverQuota>) -> Duration {
        match taken {
            Err(OverQuota::Rate { retry_after, .. }) => retry_after,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_comes_back_when_told_gets_in() {
        let quotas = quotas(rate(10, 2), 100);
        assert!(quotas.take("a").is_ok() && quotas.take("a").is_ok());
        let told = wait(quotas.take("a"));
        assert!((Duration::from_millis(99)..=Duration::from_millis(100)).contains(&told), "{told:?}");
        advance(told - Duration::from_millis(1)).await;
        assert!(quotas.take("a").is_err(), "a little early");
        advance(Duration::from_millis(1)).await;
        assert!(quotas.take("a").is_ok());
        assert!(quotas.take("b").is_ok(), "another tenant has its own");
        assert_eq!(quotas.refused().last(), Some((None, 2)), "it has no limits of its own");
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_are_refused_together_come_back_one_by_one() {
        let quotas = quotas(rate(10, 1), 100);
        assert!(quotas.take("a").is_ok());
        let mut told: Vec<_> = (0..5).map(|_| wait(quotas.take("a"))).collect();
        told.dedup();
        assert_eq!(told.len(), 5, "{told:?}");
        let mut passed = Duration::ZERO;
        for wait in told {
            advance(wait - passed + Duration::from_nanos(1)).await;
            passed = wait;
            assert!(quotas.take("a").is_ok(), "after {wait:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_moves_no_hint_over_seconds_and_books_no_turn_beyond() {
        let quotas = quotas(rate(10, 1), 100);
        assert!(quotas.take("a").is_ok());
        for refused in 0..20_000 {
            let told = wait(quotas.take("a"));
            assert!(told <= MAX_RESERVED, "after {refused} refusals {told:?}");
        }
        // Nothing was booked beyond: once that time is over, the next one waits for the next room.
        advance(MAX_RESERVED + Duration::from_secs(1)).await;
        assert!(quotas.take("a").is_ok());
        let told = wait(quotas.take("a"));
        assert!(told <= Duration::from_millis(100), "{told:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_at_the_rate_holds_no_room() {
        let quotas = quotas(TenantQuota { in_flight: Some(2), ..rate(1, 1) }, 100);
        let held = quotas.take("a").expect("room");
        assert!((0..5).all(|_| matches!(quotas.take("a"), Err(OverQuota::Rate { .. }))));
        drop(held);
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_is_bounded_and_forgets_those_at_rest() {
        let quotas = quotas(rate(1, 1), 160);
        for number in 0..10_000 {
            let _ = quotas.take(&format!("tenant-{number}"));
        }
        assert!(quotas.tenants() <= 160);
        assert!(matches!(quotas.take("one more"), Err(OverQuota::Rate { .. })), "the others share one quota");
        let known = quotas.take("tenant-0");
        assert!(known.is_err(), "a tenant that has used its room is not forgotten");
        advance(Duration::from_secs(2) * 10_000).await;
        assert!(quotas.take("one more").is_ok());
        assert!(quotas.tenants() <= 160);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_counted_where_nobody_is_bound() {
        assert!(
            Quotas::new(&QuotaConfig { each: TenantQuota::default(), tenants: 10_000, named: Vec::new() }).is_none()
        );
        let quotas = quotas(TenantQuota::default(), 100);
        assert!(quotas.take("a").unwrap().is_none());
        assert_eq!(quotas.tenants(), 0);
    }
}
