//! Limits of kinds over all servers of a store. A kind leases only as many jobs as its limit leaves. A limit key blocks
//! its jobs before they are ready, so that no server looks at jobs that may not run.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::{Engine, Shared};
use crate::store::{
    BATCH, JobRecord, StoreError, StoredLimit, StoredLimits, Timestamp,
    job::{limit_lock, owned},
    sql::{Connection, LimitKey, Select, Slots, running, slots, waiting_after},
};

/// Changes of the clock by less are those of a clock that is kept right.
const MAX_STEP_BACK: Duration = Duration::from_secs(1);

impl Default for Shared {
    fn default() -> Self {
        // The limits may have changed since the last process.
        let searched = Mutex::new(Some(Default::default()));
        let (fair_order, ticked_at) = (Mutex::default(), Mutex::default());
        Self { searched, fair_order, quotas: ArcSwap::default(), limits: ArcSwap::default(), ticked_at }
    }
}

impl Shared {
    pub(in crate::store) fn set_limits(&self, limits: StoredLimits) {
        if **self.limits.load() != limits {
            self.limits.store(Arc::new(limits));
            *self.searched.lock() = Some(Default::default());
        }
    }

    /// Notes the time of a tick. If the clock was set back, all limit keys are looked at again: their times are wrong.
    pub(super) fn ticked(&self, now: Timestamp) {
        let last = mem::replace(&mut *self.ticked_at.lock(), now);
        if last.since(now) > MAX_STEP_BACK {
            *self.searched.lock() = Some(Default::default());
        }
    }

    /// Whether a kind has a rate for each limit key.
    pub(super) fn has_key_rates(&self) -> bool {
        self.limits.load().values().any(|limit| limit.key_rate.is_some())
    }

    pub(in crate::store) fn limit(&self, kind: &str) -> StoredLimit {
        self.limits.load().get(kind).copied().unwrap_or_default()
    }
}

impl<C: Connection> Engine<C> {
    /// The limit of a kind over all servers; `None` where one process has all jobs, whose pool keeps it.
    pub(super) fn limit_of_all(&self, kind: &str) -> Option<usize> {
        self.shared.limit(kind).all.filter(|_| self.rows.ends_leases()).map(|max| max as usize)
    }

    /// How many jobs of each kind may be leased.
    pub(super) fn within_limits(
        &mut self,
        kinds: &BTreeMap<String, usize>,
    ) -> Result<Vec<(String, usize)>, StoreError> {
        let mut rooms = self.rooms(kinds)?;
        // Others wait for the lock until the commit, so it is taken only where it serves.
        if rooms.iter().any(|(kind, room)| *room > 0 && self.limit_of_all(kind).is_some()) {
            self.rows.lock_limits()?;
            rooms = self.rooms(kinds)?;
        }
        Ok(rooms)
    }

    fn rooms(&mut self, kinds: &BTreeMap<String, usize>) -> Result<Vec<(String, usize)>, StoreError> {
        let mut rooms = Vec::new();
        for (kind, &count) in kinds {
            let left = match self.limit_of_all(kind) {
                Some(max) => running(&mut self.rows, kind)?.map_or(0, |running| max.saturating_sub(running)),
                None => count,
            };
            rooms.push((kind.clone(), count.min(left)));
        }
        Ok(rooms)
    }

    /// An attempt ended: this server can use its place. To tell all others of it would cost more claims than jobs.
    pub(super) fn note_place(&mut self, kind: &str) {
        self.changes.place |= self.limit_of_all(kind).is_some();
    }

    /// The state of limit keys, and how many more jobs of each may become ready.
    pub(super) fn free_slots(&mut self, keys: &BTreeSet<(String, String)>) -> Result<Vec<(Slots, usize)>, StoreError> {
        keys.iter().try_for_each(|(kind, key)| self.lock_key(limit_lock((kind, key))))?;
        // Jobs that no limit bounds are not counted: all may be ready.
        let is_open =
            |(kind, _): &&LimitKey| self.shared.limit(kind).per_key.is_none() && self.key_rate(kind).is_none();
        let (open, limited): (BTreeSet<_>, BTreeSet<_>) = keys.iter().partition(is_open);
        let mut found = slots(&mut self.rows, limited.into_iter())?;
        found.extend(open.into_iter().map(Slots::open));
        let mut free = |slots: Slots| {
            let max = self.shared.limit(&slots.kind).per_key.map_or(usize::MAX, |max| max as usize);
            let places = max.saturating_sub(slots.ready + slots.running);
            let free = places.min(self.key_tokens(&slots).saturating_sub(slots.ready));
            (slots, free)
        };
        Ok(found.into_iter().map(&mut free).collect())
    }

    pub(super) fn has_free_slot(&mut self, record: &JobRecord) -> Result<bool, StoreError> {
        let key = record.request.limit_key().map(owned);
        Ok(self.free_slots(&key.into_iter().collect())?.iter().all(|(_, free)| *free > 0))
    }

    /// Makes the next jobs of limit keys ready, as many as each allows, and blocks those that are beyond its rate.
    pub(super) fn let_in(&mut self, keys: &BTreeSet<(String, String)>) -> Result<(), StoreError> {
        let mut all = Vec::new();
        for (slots, free) in self.free_slots(keys)? {
            let surplus = slots.ready.saturating_sub(self.key_tokens(&slots));
            if surplus > 0 {
                let mut last = self.select(Select::last_ready(&slots.kind, &slots.key), surplus.min(BATCH))?;
                last.iter_mut().for_each(|record| record.enter(false, record.place));
                // Other jobs may have waited behind them.
                self.changes.place |= !last.is_empty();
                all.extend(last);
                continue;
            }
            if !slots.is_awaited {
                self.note_idle(&slots);
                continue;
            }
            if free == 0 {
                continue;
            }
            let mut next = self.select(Select::waiting(&slots.kind, &slots.key), free.min(BATCH))?;
            for record in &mut next {
                record.enter(true, self.place(record)?);
                self.changes.ready = true;
            }
            all.extend(next);
        }
        self.save(&all)
    }

    /// After a change of the limits: lets in the jobs of further limit keys. Returns whether more follow.
    pub(super) fn search(&mut self) -> Result<bool, StoreError> {
        let searched = self.shared.searched.lock().clone();
        let Some(mut last) = searched else { return Ok(false) };
        for _ in 0..BATCH {
            let Some(next) = waiting_after(&mut self.rows, &last)? else {
                self.searched = Some(None);
                return Ok(false);
            };
            self.let_in(&[next.clone()].into())?;
            last = next;
        }
        self.searched = Some(Some(last));
        Ok(true)
    }
}
