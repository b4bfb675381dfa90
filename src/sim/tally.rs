//! Counts the results of a simulated load.

use std::time::Duration;

use super::{
    bound::Bound,
    load::{Arrival, Load},
};

/// Of the jobs that arrive within a second, the share that is served where all is well.
const NORMAL: f64 = 0.95;

/// What became of the jobs that arrived while the load was on. What arrives once it has fallen counts in `tenths` alone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) arrived: u64,
    /// What the jobs asked for room: more than once where their callers retry.
    pub(crate) attempts: u64,
    /// Attempts that were refused.
    pub(crate) refused: u64,
    pub(crate) admitted: u64,
    pub(crate) missed: u64,
    /// Worker time of jobs that ended in time, and of the others.
    pub(crate) useful: Duration,
    pub(crate) wasted: Duration,
    bound: Bound,
    /// By class: arrived and served.
    pub(crate) classes: [(u64, u64); 4],
    /// By tenant: arrived and served.
    pub(crate) tenants: Vec<(u64, u64)>,
    /// Waits of those that were served, in milliseconds, by tenant.
    pub(crate) waits: Vec<Vec<f64>>,
    /// Jobs that arrived and were served, by tenth of a second of their arrival.
    pub(crate) tenths: Vec<(u64, u64)>,
}

/// The figures of one run.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    /// Useful worker time over what could have been had.
    pub(crate) useful_share: f64,
    pub(crate) admitted_then_missed: f64,
    /// How long after the last of what was out of the ordinary all was well again. `None` where nothing was, or where it
    /// never was.
    pub(crate) recovery: Option<Duration>,
    /// Share of the tenants' own service shares: Jain's index, 1 where all are served alike.
    pub(crate) fairness: f64,
}

impl Tally {
    pub(super) fn new(tenants: usize) -> Self {
        Self { tenants: vec![(0, 0); tenants], waits: vec![Vec::new(); tenants], ..Self::default() }
    }

    pub(super) fn arrive(&mut self, load: &Load, arrival: &Arrival) {
        self.tenth(arrival.at).0 += 1;
        if arrival.at < load.lasts {
            self.arrived += 1;
            self.classes[arrival.class.rank()].0 += 1;
            self.tenants[arrival.tenant].0 += 1;
            // Nobody has anything of a run that is stopped before its end.
            if !arrival.outruns_its_limit() {
                self.bound.ask(arrival.at, arrival.service, arrival.deadline);
            }
        }
    }

    /// A job ended in time that ran from `since` on.
    pub(super) fn serve(&mut self, load: &Load, arrival: &Arrival, since: Duration, until: Duration) {
        self.tenth(arrival.at).1 += 1;
        self.useful += within(load, since, until);
        if arrival.at < load.lasts {
            self.classes[arrival.class.rank()].1 += 1;
            self.tenants[arrival.tenant].1 += 1;
            self.waits[arrival.tenant].push((since - arrival.at).as_secs_f64() * 1e3);
        }
    }

    /// A job was accepted, and did not end in time.
    pub(super) fn miss(&mut self, load: &Load, arrival: &Arrival) {
        self.missed += u64::from(arrival.at < load.lasts);
    }

    /// Worker time went to a job that did not end in time.
    pub(super) fn waste(&mut self, load: &Load, since: Duration, until: Duration) {
        self.wasted += within(load, since, until);
    }

    fn tenth(&mut self, at: Duration) -> &mut (u64, u64) {
        let index = tenth(at);
        if self.tenths.len() <= index {
            self.tenths.resize(index + 1, (0, 0));
        }
        &mut self.tenths[index]
    }

    pub(super) fn outcome(self, load: &Load) -> Outcome {
        Outcome {
            useful_share: self.useful.as_secs_f64() / self.bound.could(load, load.lasts),
            admitted_then_missed: self.missed as f64 / self.admitted.max(1) as f64,
            recovery: load.calm_from().and_then(|from| self.recovery(from)),
            fairness: self.fairness(),
            tally: self,
        }
    }

    /// Time from `calm` on until, of those who arrive within a second, nearly all are served.
    fn recovery(&self, calm: Duration) -> Option<Duration> {
        let from = tenth(calm);
        let is_well = |second: &[(u64, u64)]| {
            let (arrived, served) = second.iter().fold((0, 0), |sum, tenth| (sum.0 + tenth.0, sum.1 + tenth.1));
            served as f64 >= NORMAL * arrived as f64
        };
        let tenths = self.tenths.get(from..)?.windows(10).position(is_well)?;
        Some(Duration::from_millis(100 * tenths as u64))
    }

    fn fairness(&self) -> f64 {
        let asked = self.tenants.iter().filter(|(arrived, _)| *arrived > 0);
        let shares: Vec<f64> = asked.map(|(arrived, served)| *served as f64 / *arrived as f64).collect();
        let (sum, squares) = shares.iter().fold((0.0, 0.0), |sums, share| (sums.0 + share, sums.1 + share * share));
        if squares > 0.0 { sum * sum / squares / shares.len() as f64 } else { 1.0 }
    }
}

impl Outcome {
    /// The wait that so large a share of a tenant's served jobs did not exceed, in milliseconds.
    pub(crate) fn wait(&self, tenant: usize, quantile: f64) -> f64 {
        quantile_of(self.tally.waits[tenant].clone(), quantile)
    }

    /// The same of all tenants together.
    pub(crate) fn wait_of_all(&self, quantile: f64) -> f64 {
        quantile_of(self.tally.waits.concat(), quantile)
    }

    /// Of all tenants but the first: the share of their jobs that was served, and the same wait.
    pub(crate) fn of_others(&self, quantile: f64) -> (f64, f64) {
        let (tenants, waits) = (&self.tally.tenants[1..], &self.tally.waits[1..]);
        let (arrived, served) = tenants.iter().fold((0, 0), |sum, tenant| (sum.0 + tenant.0, sum.1 + tenant.1));
        (served as f64 / arrived.max(1) as f64, quantile_of(waits.concat(), quantile))
    }
}

fn quantile_of(mut waits: Vec<f64>, quantile: f64) -> f64 {
    waits.sort_by(f64::total_cmp);
    let last = waits.len().saturating_sub(1);
    waits.get((last as f64 * quantile).round() as usize).copied().unwrap_or_default()
}

/// What of a run lies before the load falls.
fn within(load: &Load, since: Duration, until: Duration) -> Duration {
    until.min(load.lasts).saturating_sub(since)
}

fn tenth(at: Duration) -> usize {
    usize::try_from(at.as_millis() / 100).unwrap_or(usize::MAX - 1)
}
