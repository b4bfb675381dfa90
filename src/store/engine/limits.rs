//! Limits of kinds over all servers of a store. A kind leases only as many jobs as its limit leaves. A limit key blocks
//! its jobs before they are ready, so that no server looks at jobs that may not run.

use std::{collections::BTreeMap, sync::Arc};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::{Engine, Shared};
use crate::store::{
    BATCH, JobRecord, StoreError, StoredLimit, StoredLimits,
    sql::{Connection, Select, running, slots, waiting_after},
};

impl Default for Shared {
    fn default() -> Self {
        // The limits may have changed since the last process.
        let searched = Mutex::new(Some(Default::default()));
        Self { searched, fair_order: Mutex::default(), quotas: ArcSwap::default(), limits: ArcSwap::default() }
    }
}

impl Shared {
    pub(in crate::store) fn set_limits(&self, limits: StoredLimits) {
        if **self.limits.load() != limits {
            self.limits.store(Arc::new(limits));
            *self.searched.lock() = Some(Default::default());
        }
    }

    fn limit(&self, kind: &str) -> StoredLimit {
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
        if kinds.keys().any(|kind| self.limit_of_all(kind).is_some()) {
            self.rows.lock_limits()?;
        }
        let mut rooms = Vec::new();
        for (kind, &count) in kinds {
            let left = match self.limit_of_all(kind) {
                Some(max) => max.saturating_sub(running(&mut self.rows, kind)?),
                None => count,
            };
            rooms.push((kind.clone(), count.min(left)));
        }
        Ok(rooms)
    }

    /// An attempt ended: another server may wait for its place.
    pub(super) fn note_place(&mut self, kind: &str) {
        self.changes.ready |= self.limit_of_all(kind).is_some();
    }

    /// How many more jobs of a limit key may be ready or run.
    pub(super) fn free_slots(&mut self, kind: &str, key: &str) -> Result<usize, StoreError> {
        let Some(max) = self.shared.limit(kind).per_key else { return Ok(BATCH) };
        Ok((max as usize).saturating_sub(slots(&mut self.rows, kind, key)?).min(BATCH))
    }

    pub(super) fn has_free_slot(&mut self, record: &JobRecord) -> Result<bool, StoreError> {
        let Some((kind, key)) = record.request.limit_key() else { return Ok(true) };
        Ok(self.free_slots(kind, key)? > 0)
    }

    /// Makes the next jobs of a limit key ready, as many as it allows.
    pub(super) fn let_in(&mut self, kind: &str, key: &str) -> Result<(), StoreError> {
        let free = self.free_slots(kind, key)?;
        if free == 0 {
            return Ok(());
        }
        let mut next = self.select(Select::waiting(kind, key), free)?;
        for record in &mut next {
            record.enter(true, self.place(record)?);
            self.changes.ready = true;
        }
        self.save(&next)
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
            self.let_in(&next.0, &next.1)?;
            last = next;
        }
        self.searched = Some(Some(last));
        Ok(true)
    }
}
