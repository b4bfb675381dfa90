//! Rates of limit keys over all servers of a store. A job of a key becomes ready only with a token in the bucket of the
//! key, and takes it when it is leased. The other jobs are blocked until a look at the key lets them in. Full buckets
//! are not stored.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter, mem,
};

use super::{
    Engine, MAX_LOCKS,
    rates::{LEAST_PAUSE, StoredBucket, nanos},
};
use crate::{
    model::Rate,
    store::{
        JobRecord, StoreError, Timestamp,
        job::{limit_lock, owned},
        sql::{
            Connection, KeyBucket, LimitKey, Slots, first_key_looks, key_buckets, lock_key_buckets, remove_key_bucket,
            save_key_buckets,
        },
        wakes::ANY_KEY,
    },
};

/// What a transaction changes of the buckets of limit keys.
#[derive(Default)]
pub(super) struct KeyChanges(BTreeMap<LimitKey, KeyChange>);

#[derive(Default)]
struct KeyChange {
    /// Tokens that it takes.
    taken: u32,
    /// Whether no job waits for the key.
    is_idle: bool,
}

impl KeyChanges {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// When a job of a limit key may become ready next; `None` if its rate does not prevent one now.
pub(in crate::store) fn next_start(
    rows: &mut impl Connection,
    rate: Option<Rate>,
    key: (&str, &str),
) -> Result<Option<Timestamp>, StoreError> {
    let Some(rate) = rate.filter(|_| rows.ends_leases()) else { return Ok(None) };
    let (now, stored) = (nanos(rows.now()?), key_buckets(rows, iter::once(key))?.pop());
    let bucket = StoredBucket::new(rate, stored.map_or(0, |(_, full_at)| full_at), now);
    Ok(bucket.next_at(now).filter(|_| bucket.tokens(now) == 0).map(millis))
}

impl<C: Connection> Engine<C> {
    /// The rate of each limit key of a kind over all servers; `None` where one process has all jobs: its pool keeps it.
    pub(super) fn key_rate(&self, kind: &str) -> Option<Rate> {
        self.shared.limit(kind).key_rate.filter(|_| self.rows.ends_leases())
    }

    /// How many jobs of a limit key may be ready, as far as its rate goes. Notes the next look, if it is later.
    pub(super) fn key_tokens(&mut self, slots: &Slots) -> usize {
        let Some(rate) = self.key_rate(&slots.kind) else { return usize::MAX };
        let (now, key) = (nanos(self.now), (&*slots.kind, &*slots.key));
        let bucket = self.key_bucket(rate, key, slots.bucket.map(|bucket| bucket.full_at));
        let next = bucket.next_at(now).map_or(Timestamp::MAX, millis);
        // An earlier step of the transaction may have noted that no job waits.
        if self.key_changes.0.contains_key(&owned(key)) || slots.bucket.is_some_and(|stored| stored.look_at > next) {
            self.key_change(key).is_idle = false;
        }
        bucket.tokens(now)
    }

    /// The bucket of a limit key, without the tokens that the transaction has taken. One that is not stored is full.
    fn key_bucket(&self, rate: Rate, key: (&str, &str), full_at: Option<i64>) -> StoredBucket {
        let mut bucket = StoredBucket::new(rate, full_at.unwrap_or_default(), nanos(self.now));
        bucket.take(self.key_changes.0.get(&owned(key)).map_or(0, |change| change.taken));
        bucket
    }

    /// No job waits for a limit key. Its bucket is looked at when it is full.
    pub(super) fn note_idle(&mut self, slots: &Slots) {
        if slots.bucket.is_some_and(|bucket| bucket.look_at != millis(bucket.full_at)) {
            self.key_change((&slots.kind, &slots.key)).is_idle = true;
        }
    }

    pub(super) fn take_key_token(&mut self, record: &JobRecord) {
        if let Some(key) = record.request.limit_key().filter(|(kind, _)| self.key_rate(kind).is_some()) {
            self.key_change(key).taken += 1;
        }
    }

    /// Leaves out ready jobs for which there is no token now: some that another server has made ready since this
    /// transaction began, and some after a change of the rate. Returns their keys.
    pub(super) fn within_key_rates(&mut self, records: &mut Vec<JobRecord>) -> Result<BTreeSet<LimitKey>, StoreError> {
        let has_rate = |record: &&JobRecord| self.key_rate(&record.request.job.kind).is_some();
        let paced = records.iter().filter(has_rate).filter_map(|record| record.request.limit_key());
        let keys: BTreeSet<_> = paced.collect();
        let stored: BTreeMap<_, _> = key_buckets(&mut self.rows, keys.into_iter())?.into_iter().collect();
        let (now, mut buckets, mut short) = (nanos(self.now), BTreeMap::new(), BTreeSet::new());
        records.retain(|record| {
            let Some((key, rate)) = record.request.limit_key().and_then(|key| Some((key, self.key_rate(key.0)?)))
            else {
                return true;
            };
            let full_at = stored.get(&owned(key)).copied();
            let bucket = buckets.entry(owned(key)).or_insert_with(|| self.key_bucket(rate, key, full_at));
            let has_token = bucket.tokens(now) > 0;
            if has_token {
                bucket.take(1);
            } else {
                short.insert(owned(key));
            }
            has_token
        });
        Ok(short)
    }

    fn key_change(&mut self, key: (&str, &str)) -> &mut KeyChange {
        self.key_changes.0.entry(owned(key)).or_default()
    }

    /// Looks at the limit keys whose time has come, and lets in as many of their jobs as may run.
    pub(super) fn look_at_keys(&mut self) -> Result<(), StoreError> {
        let was_ready = mem::take(&mut self.changes.ready);
        let mut looks = first_key_looks(&mut self.rows, MAX_LOCKS + 1)?;
        let later = looks.split_off(looks.partition_point(|(_, look_at)| *look_at <= self.now).min(MAX_LOCKS));
        for (key, _) in looks {
            self.look_at_key(key)?;
        }
        // This server takes them.
        self.changes.place |= mem::replace(&mut self.changes.ready, was_ready);
        if let Some(((kind, _), look_at)) = later.first() {
            self.wake_at(kind, *look_at);
        }
        Ok(())
    }

    /// Makes as many jobs of a limit key ready as may run, unless another transaction has it.
    pub(super) fn look_at_key(&mut self, key: LimitKey) -> Result<(), StoreError> {
        match self.lock_key(limit_lock((&key.0, &key.1))) {
            Ok(()) => {}
            Err(StoreError::Conflict) => {
                self.changes.opens.push((ANY_KEY.to_owned(), LEAST_PAUSE));
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        self.key_change((&key.0, &key.1)).is_idle = false;
        self.let_in(&BTreeSet::from([key]))
    }

    /// Looks again then, and not too often.
    fn wake_at(&mut self, kind: &str, look_at: Timestamp) {
        let pause = self.key_rate(kind).map_or(LEAST_PAUSE, |rate| StoredBucket::new(rate, 0, 0).pause());
        self.changes.opens.push((ANY_KEY.to_owned(), look_at.since(self.now).max(pause)));
    }

    /// Waits for other servers that lease jobs of the same keys. Whoever has locked a bucket waits only for further
    /// ones, in their order.
    pub(super) fn save_key_changes(&mut self) -> Result<(), StoreError> {
        let changes = mem::take(&mut self.key_changes).0;
        if changes.is_empty() {
            return Ok(());
        }
        let (now, mut saved) = (nanos(self.now), Vec::new());
        for (key, full_at) in lock_key_buckets(&mut self.rows, changes.keys())? {
            let change = &changes[&key];
            let next = self.key_rate(&key.0).and_then(|rate| {
                let mut bucket = StoredBucket::new(rate, full_at, now);
                bucket.take(change.taken);
                Some((bucket.full_at(), bucket.next_at(now)?))
            });
            let Some((full_at, next)) = next else {
                remove_key_bucket(&mut self.rows, &key)?;
                continue;
            };
            let is_idle = change.is_idle && change.taken == 0;
            let look_at = millis(if is_idle { full_at } else { next });
            self.wake_at(&key.0, look_at);
            saved.push((key, KeyBucket { full_at, look_at }));
        }
        save_key_buckets(&mut self.rows, &saved)
    }
}

/// The first millisecond that is not before a time in nanoseconds.
fn millis(nanos: i64) -> Timestamp {
    Timestamp::from_millis(nanos.saturating_add(999_999) / 1_000_000).min(Timestamp::MAX)
}
