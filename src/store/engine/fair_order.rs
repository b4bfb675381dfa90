//! Fair order of tenants: assigns places to jobs that become ready. Claims take jobs by place, so tenants alternate,
//! and the jobs of each tenant stay in order. This is start-time fair queueing (Goyal, Vin and Cheng, 1996), with jobs
//! of equal size.

use std::collections::HashMap;

use crate::store::JobRecord;

/// The assigned places, by kind and class.
#[derive(Debug, Default)]
pub(in crate::store) struct FairOrder {
    kinds: HashMap<(String, usize), KindOrder>,
    pub(super) is_loaded: bool,
}

#[derive(Debug, Default)]
struct KindOrder {
    /// Place up to which jobs were claimed.
    reached: i64,
    /// Last place of each tenant that has places beyond `reached`.
    last: HashMap<String, i64>,
}

/// The places of a tenant's ready jobs.
#[derive(Debug)]
pub(in crate::store) struct Places {
    pub(in crate::store) kind: String,
    pub(in crate::store) rank: usize,
    pub(in crate::store) tenant: String,
    pub(in crate::store) first: i64,
    pub(in crate::store) last: i64,
}

impl FairOrder {
    /// Continues from the ready jobs in the store.
    pub(super) fn load(&mut self, places: Vec<Places>) {
        for Places { kind, rank, tenant, first, last } in places {
            let order = self
                .kinds
                .entry((kind, rank))
                .or_insert_with(|| KindOrder { reached: i64::MAX, ..KindOrder::default() });
            order.reached = order.reached.min(first - 1);
            order.last.insert(tenant, last);
        }
        self.is_loaded = true;
    }

    /// The place of a job that becomes ready: behind the jobs of its tenant, and level with the first jobs of others.
    pub(super) fn next(&mut self, record: &JobRecord) -> i64 {
        let job = &record.request.job;
        let order = self.kinds.entry((job.kind.clone(), job.criticality.rank())).or_default();
        if order.last.len() == order.last.capacity() {
            // An entry at or below `reached` has no effect on later places.
            order.last.retain(|_, last| *last > order.reached);
        }
        let last = order.last.entry(job.tenant.clone()).or_insert(order.reached);
        *last = order.reached.max(*last) + 1;
        *last
    }

    /// Ready jobs were claimed up to the place `last`; `is_all` if none is left.
    pub(super) fn claimed(&mut self, kind: &str, rank: usize, last: Option<i64>, is_all: bool) {
        let Some(order) = self.kinds.get_mut(&(kind.to_owned(), rank)) else { return };
        order.reached = order.reached.max(last.unwrap_or(i64::MIN));
        if is_all {
            let reached = order.last.drain().map(|(_, last)| last).max();
            order.reached = order.reached.max(reached.unwrap_or(i64::MIN));
        }
    }
}
