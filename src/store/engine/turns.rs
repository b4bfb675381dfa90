//! Turns of tenants: the places of jobs that become ready. Claims go by place, so tenants are served in turn, and the jobs
//! of each in order. This is start-time fair queueing (Goyal, Vin and Cheng, 1996), with jobs of equal size.

use std::collections::HashMap;

use crate::store::JobRecord;

/// The places that were given, by kind and class.
#[derive(Debug, Default)]
pub(in crate::store) struct Turns {
    lines: HashMap<(String, usize), Line>,
    pub(super) is_loaded: bool,
}

#[derive(Debug, Default)]
struct Line {
    /// Place up to which jobs were claimed.
    reached: i64,
    /// Last place of each tenant that has one beyond.
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

impl Turns {
    /// Goes on from the jobs that are ready.
    pub(super) fn load(&mut self, places: Vec<Places>) {
        for Places { kind, rank, tenant, first, last } in places {
            let line = self.lines.entry((kind, rank)).or_insert_with(|| Line { reached: i64::MAX, ..Line::default() });
            line.reached = line.reached.min(first - 1);
            line.last.insert(tenant, last);
        }
        self.is_loaded = true;
    }

    /// The place of a job that becomes ready: behind those of its tenant, beside the first ones of others.
    pub(super) fn next(&mut self, record: &JobRecord) -> i64 {
        let job = &record.request.job;
        let line = self.lines.entry((job.kind.clone(), job.criticality.rank())).or_default();
        if line.last.len() == line.last.capacity() {
            // What was reached holds no tenant back.
            line.last.retain(|_, last| *last > line.reached);
        }
        let last = line.last.entry(job.tenant.clone()).or_insert(line.reached);
        *last = line.reached.max(*last) + 1;
        *last
    }

    /// Ready jobs were claimed up to a place, or all of them.
    pub(super) fn claimed(&mut self, kind: &str, rank: usize, last: Option<i64>, is_all: bool) {
        let Some(line) = self.lines.get_mut(&(kind.to_owned(), rank)) else { return };
        line.reached = line.reached.max(last.unwrap_or(i64::MIN));
        if is_all {
            let reached = line.last.drain().map(|(_, last)| last).max();
            line.reached = line.reached.max(reached.unwrap_or(i64::MIN));
        }
    }
}
