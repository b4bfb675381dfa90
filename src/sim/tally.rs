use std::time::Duration;

use crate::model::Criticality;

/// What became of the jobs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) arrived: u64,
    pub(crate) admitted: u64,
    pub(crate) missed: u64,
    /// Worker time of jobs that ended in time, and of the others.
    pub(crate) useful: Duration,
    pub(crate) wasted: Duration,
    /// Worker time that was asked for.
    pub(crate) demand: Duration,
    /// By class: arrived and served.
    pub(crate) classes: [(u64, u64); 4],
    /// By tenant: arrived and served.
    pub(crate) tenants: Vec<(u64, u64)>,
    /// Waits of those that were served, in milliseconds, by tenant.
    pub(crate) waits: Vec<Vec<f64>>,
    /// Jobs that arrived and were served, by tenth of a second.
    pub(crate) tenths: Vec<(u64, u64)>,
}

/// The figures of one run.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    /// Useful worker time over what could have been had.
    pub(crate) useful_share: f64,
    pub(crate) admitted_then_missed: f64,
}

impl Tally {
    pub(crate) fn new(tenants: usize) -> Self {
        Self { tenants: vec![(0, 0); tenants], waits: vec![Vec::new(); tenants], ..Self::default() }
    }

    pub(crate) fn arrive(&mut self, at: Duration, service: Duration, tenant: usize, class: Criticality) {
        self.arrived += 1;
        self.demand += service;
        self.classes[class.rank()].0 += 1;
        self.tenants[tenant].0 += 1;
        self.tenth(at).0 += 1;
    }

    pub(crate) fn serve(&mut self, arrived: Duration, waited: Duration, tenant: usize, class: Criticality) {
        self.classes[class.rank()].1 += 1;
        self.tenants[tenant].1 += 1;
        self.waits[tenant].push(waited.as_secs_f64() * 1e3);
        self.tenth(arrived).1 += 1;
    }

    fn tenth(&mut self, at: Duration) -> &mut (u64, u64) {
        let index = usize::try_from(at.as_millis() / 100).unwrap_or(usize::MAX);
        if self.tenths.len() <= index {
            self.tenths.resize(index + 1, (0, 0));
        }
        &mut self.tenths[index]
    }

    pub(crate) fn outcome(self, capacity: Duration) -> Outcome {
        let could = self.demand.min(capacity).as_secs_f64();
        Outcome {
            useful_share: self.useful.as_secs_f64() / could,
            admitted_then_missed: self.missed as f64 / self.admitted.max(1) as f64,
            tally: self,
        }
    }
}

impl Outcome {
    /// The wait that so large a share of a tenant's served jobs did not exceed, in milliseconds.
    pub(crate) fn wait(&self, tenant: usize, quantile: f64) -> f64 {
        let mut waits = self.tally.waits[tenant].clone();
        waits.sort_by(f64::total_cmp);
        let last = waits.len().saturating_sub(1);
        waits.get((last as f64 * quantile).round() as usize).copied().unwrap_or_default()
    }
}
