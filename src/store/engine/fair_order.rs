//! Fair order of tenants: assigns places to jobs that become ready. Claims take jobs by place, so tenants alternate,
//! and the jobs of each tenant stay in order. This is start-time fair queueing (Goyal, Vin and Cheng, 1996), with jobs
//! of equal size.

use std::collections::{HashMap, hash_map::Entry};

use crate::store::StoreError;

/// The assigned places, by kind and class.
#[derive(Debug, Default)]
pub(in crate::store) struct FairOrder {
    kinds: HashMap<(String, usize), KindOrder>,
}

#[derive(Debug, Default)]
pub(super) struct KindOrder {
    /// Place up to which jobs were claimed.
    reached: i64,
    /// Last place of the jobs that were ready when the process began. Up to there, tenants may have places that are not
    /// known yet.
    old: i64,
    /// Last place of each tenant that has places beyond `reached`.
    last: HashMap<String, i64>,
}

impl FairOrder {
    /// The order of a kind and a class. The first time, it continues from the places of the first and the last ready
    /// job, which `places` finds.
    pub(super) fn of(
        &mut self,
        kind: &str,
        rank: usize,
        places: impl FnOnce(&str, usize) -> Result<Option<(i64, i64)>, StoreError>,
    ) -> Result<&mut KindOrder, StoreError> {
        match self.kinds.entry((kind.to_owned(), rank)) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => {
                let (first, old) = places(kind, rank)?.unwrap_or((1, 0));
                Ok(new.insert(KindOrder { reached: first - 1, old, last: HashMap::new() }))
            }
        }
    }

    /// Ready jobs were claimed up to the place `last`; `is_all` if none is left.
    pub(super) fn claimed(&mut self, kind: &str, rank: usize, last: Option<i64>, is_all: bool) {
        let Some(order) = self.kinds.get_mut(&(kind.to_owned(), rank)) else { return };
        order.reached = order.reached.max(last.unwrap_or(i64::MIN));
        if is_all {
            let reached = order.last.drain().map(|(_, last)| last).max();
            order.reached = order.reached.max(reached.unwrap_or(i64::MIN)).max(order.old);
        }
    }
}

impl KindOrder {
    /// The place of a job that becomes ready: behind the jobs of its tenant, and level with the first jobs of others.
    /// `find` looks for the last place of a tenant.
    pub(super) fn next(
        &mut self,
        tenant: &str,
        find: impl FnOnce(&str) -> Result<Option<i64>, StoreError>,
    ) -> Result<i64, StoreError> {
        if self.last.len() == self.last.capacity() {
            // An entry at or below `reached` has no effect on later places.
            self.last.retain(|_, last| *last > self.reached);
        }
        let last = match self.last.get(tenant) {
            Some(last) => *last,
            None if self.reached < self.old => find(tenant)?.unwrap_or(self.reached),
            None => self.reached,
        };
        let place = self.reached.max(last) + 1;
        self.last.insert(tenant.to_owned(), place);
        Ok(place)
    }
}
