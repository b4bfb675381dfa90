//! Rates of kinds over all servers of a store. Each kind has a bucket of tokens, and each lease takes one. It is that
//! of `src/scheduler/limit/key.rs`, in a row that a claim locks. The time is the database's.

use std::{mem, time::Duration};

use super::Engine;
use crate::{
    model::Rate,
    store::{
        JobRecord, StoreError, Timestamp,
        sql::{Connection, lock_bucket, save_bucket},
    },
};

/// Shortest time between two claims for the sake of tokens, unless the bucket would overflow meanwhile.
pub(super) const LEAST_PAUSE: Duration = Duration::from_millis(50);
/// A bucket that is further from full than an empty one, and by more than transactions last, was filled at a lower
/// rate, or the clock was set back.
const TOLERANCE: i64 = 30_000_000_000;

/// Times are nanoseconds.
pub(super) struct StoredBucket {
    full_at: i64,
    /// Time from empty to full.
    depth: i64,
    interval: i64,
    is_changed: bool,
}

impl StoredBucket {
    pub(super) fn new(rate: Rate, full_at: i64, now: i64) -> Self {
        let interval = i64::try_from(rate.interval.as_nanos()).unwrap_or(i64::MAX).max(1);
        let depth = interval.saturating_mul(i64::from(rate.burst.get()));
        let empty = now.saturating_add(depth);
        let is_changed = full_at > empty.saturating_add(TOLERANCE);
        Self { full_at: if is_changed { empty } else { full_at.max(now) }, depth, interval, is_changed }
    }

    pub(super) fn tokens(&self, now: i64) -> usize {
        usize::try_from((now.saturating_add(self.depth) - self.full_at) / self.interval).unwrap_or_default()
    }

    /// When it has one more token; `None` if it is full.
    pub(super) fn next_at(&self, now: i64) -> Option<i64> {
        let more = self.interval.saturating_mul(self.tokens(now) as i64 + 1);
        (self.full_at > now).then(|| self.full_at.saturating_sub(self.depth).saturating_add(more))
    }

    /// The time until a claim is worth while again.
    pub(super) fn opens_in(&self, now: i64) -> Duration {
        let next = self.next_at(now).unwrap_or(now) - now;
        Duration::from_nanos(next.max(0) as u64).max(self.pause())
    }

    /// Shortest time between two looks for tokens: it loses none.
    pub(super) fn pause(&self) -> Duration {
        Duration::from_nanos(self.depth as u64 / 2).min(LEAST_PAUSE)
    }

    pub(super) fn full_at(&self) -> i64 {
        self.full_at
    }

    pub(super) fn take(&mut self, tokens: u32) {
        self.full_at = self.full_at.saturating_add(self.interval.saturating_mul(tokens.into()));
        self.is_changed |= tokens > 0;
    }
}

impl<C: Connection> Engine<C> {
    /// The rate of a kind over all servers; `None` where one process has all jobs, whose pool keeps it.
    pub(super) fn rate_of_all(&self, kind: &str) -> Option<Rate> {
        self.shared.limit(kind).rate.filter(|_| self.rows.ends_leases())
    }

    /// How many of so many jobs of a kind may be leased. It waits for no other server: one that leases jobs of the kind
    /// may wait for what this transaction has locked.
    pub(super) fn within_rate(&mut self, kind: &str, count: usize) -> Result<usize, StoreError> {
        let Some(rate) = self.rate_of_all(kind).filter(|_| count > 0) else { return Ok(count) };
        let now = nanos(self.now);
        if !self.buckets.contains_key(kind) {
            let Some(full_at) = lock_bucket(&mut self.rows, kind)? else {
                self.changes.opens.push((kind.to_owned(), LEAST_PAUSE));
                return Ok(0);
            };
            self.buckets.insert(kind.to_owned(), StoredBucket::new(rate, full_at, now));
        }
        Ok(self.buckets[kind].tokens(now).min(count))
    }

    /// A job is leased.
    pub(super) fn take_token(&mut self, record: &JobRecord) {
        if let Some(bucket) = self.buckets.get_mut(&record.request.job.kind) {
            bucket.take(1);
        }
        self.take_key_token(record);
    }

    pub(super) fn save_buckets(&mut self) -> Result<(), StoreError> {
        let now = nanos(self.now);
        for (kind, bucket) in mem::take(&mut self.buckets) {
            if bucket.is_changed {
                save_bucket(&mut self.rows, &kind, bucket.full_at)?;
            }
            // No other event wakes the dispatcher for the jobs that may be left.
            if bucket.tokens(now) == 0 {
                self.changes.opens.push((kind, bucket.opens_in(now)));
            }
        }
        Ok(())
    }
}

pub(super) fn nanos(time: Timestamp) -> i64 {
    time.as_millis().saturating_mul(1_000_000)
}
