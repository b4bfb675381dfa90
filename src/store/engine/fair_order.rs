//! Fair order of tenants: assigns places to jobs that become ready. Claims take jobs by place, so tenants alternate,
//! and the jobs of each tenant stay in order. This is start-time fair queueing (Goyal, Vin and Cheng, 1996), with jobs
//! of equal size.

use std::collections::{HashMap, hash_map::Entry};

use crate::{
    model::Job,
    store::{StoreError, sql::Connection},
};

/// The assigned places, by kind and class.
#[derive(Debug, Default)]
pub(in crate::store) struct FairOrder {
    kinds: HashMap<(String, usize), KindOrder>,
}

#[derive(Debug, Default)]
struct KindOrder {
    /// Place up to which jobs were claimed.
    reached: i64,
    /// Last place of the jobs that were ready when the process began. Up to there, tenants may have places that are not
    /// known yet.
    old: i64,
    /// Last place of each tenant that has places beyond `reached`.
    last: HashMap<String, i64>,
}

impl FairOrder {
    /// The place of a job that becomes ready: behind the jobs of its tenant, and level with the first jobs of others.
    /// `rows` has the places of the jobs that were ready when the process began.
    pub(super) fn place(&mut self, job: &Job, rows: &mut impl Connection) -> Result<i64, StoreError> {
        let (kind, rank, tenant) = (&job.kind, job.criticality.rank(), &job.tenant);
        let order = match self.kinds.entry((kind.clone(), rank)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let (first, old) = rows.places(kind, rank)?.unwrap_or((1, 0));
                new.insert(KindOrder { reached: first - 1, old, last: HashMap::new() })
            }
        };
        if order.last.len() == order.last.capacity() {
            // An entry at or below `reached` has no effect on later places.
            order.last.retain(|_, last| *last > order.reached);
        }
        let last = match order.last.get(tenant) {
            Some(last) => *last,
            None if order.reached < order.old => rows.last_place(kind, rank, tenant)?.unwrap_or(order.reached),
            None => order.reached,
        };
        let place = order.reached.max(last) + 1;
        order.last.insert(tenant.clone(), place);
        Ok(place)
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
