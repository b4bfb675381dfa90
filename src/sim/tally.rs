//! Counts the results of a simulated load, and compares them with the best possible results.

use std::{iter::Sum, time::Duration};

use super::load::{Arrival, Load};

/// Share of the jobs in one second that must be served for normal operation.
const NORMAL: f64 = 0.95;

/// Results of the jobs that arrived during the main load. Later jobs count only in `tenths`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) arrived: u64,
    /// Submissions. A job whose caller retries has several.
    pub(crate) attempts: u64,
    /// Refused submissions.
    pub(crate) refused: u64,
    pub(crate) admitted: u64,
    pub(crate) missed: u64,
    /// Worker time of jobs that ended in time, and of the others.
    pub(crate) useful: Duration,
    pub(crate) wasted: Duration,
    bound: Bound,
    /// By class, the most important first.
    pub(crate) classes: [Served; 4],
    pub(crate) tenants: Vec<Served>,
    /// Waits of served jobs, in milliseconds, by tenant.
    pub(crate) waits: Vec<Vec<f64>>,
    pub(crate) kinds: Vec<KindTally>,
    /// By tenth of a second of the arrival.
    tenths: Vec<Served>,
}

/// What became of the jobs of a kind.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct KindTally {
    pub(crate) arrived: u64,
    /// Jobs that were refused for good.
    pub(crate) refused: u64,
    pub(crate) missed: u64,
    /// Waits of served jobs, in milliseconds.
    pub(crate) waits: Vec<f64>,
}

/// How many of some jobs were served.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Served {
    pub(crate) arrived: u64,
    pub(crate) served: u64,
}

/// The figures of one run.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    /// Useful worker time as a share of the maximum.
    pub(crate) useful_share: f64,
    pub(crate) admitted_then_missed: f64,
    /// Time from the end of the last disturbance to normal operation. `None` without a disturbance or a recovery.
    pub(crate) recovery: Option<Duration>,
    /// Jain's index of the tenants' served shares: 1 if all are equal.
    pub(crate) fairness: f64,
}

impl Served {
    /// The share of the jobs that were served; `None` without jobs.
    pub(crate) fn share(self) -> Option<f64> {
        (self.arrived > 0).then(|| self.served as f64 / self.arrived as f64)
    }
}

impl<'a> Sum<&'a Self> for Served {
    fn sum<I: Iterator<Item = &'a Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |sum, part| Self {
            arrived: sum.arrived + part.arrived,
            served: sum.served + part.served,
        })
    }
}

impl Tally {
    pub(super) fn new(tenants: usize, kinds: usize) -> Self {
        Self {
            tenants: vec![Served::default(); tenants],
            waits: vec![Vec::new(); tenants],
            kinds: vec![KindTally::default(); kinds],
            ..Self::default()
        }
    }

    pub(super) fn arrive(&mut self, load: &Load, arrival: &Arrival) {
        self.tenth(arrival.at).arrived += 1;
        if arrival.at < load.lasts {
            self.arrived += 1;
            self.classes[arrival.class.rank()].arrived += 1;
            self.tenants[arrival.tenant].arrived += 1;
            self.kinds[arrival.kind].arrived += 1;
            // A run that is stopped before its end is not useful.
            if !arrival.outruns_its_limit() {
                self.bound.ask(arrival.at, arrival.service, arrival.deadline);
            }
        }
    }

    /// A job that started at `since` ended in time, at `until`.
    pub(super) fn serve(&mut self, load: &Load, arrival: &Arrival, since: Duration, until: Duration) {
        self.tenth(arrival.at).served += 1;
        self.useful += within(load, since, until);
        if arrival.at < load.lasts {
            self.classes[arrival.class.rank()].served += 1;
            self.tenants[arrival.tenant].served += 1;
            let wait = (since - arrival.at).as_secs_f64() * 1e3;
            self.waits[arrival.tenant].push(wait);
            self.kinds[arrival.kind].waits.push(wait);
        }
    }

    /// A job was accepted, but did not end in time.
    pub(super) fn miss(&mut self, load: &Load, arrival: &Arrival) {
        let weight = u64::from(arrival.at < load.lasts);
        self.missed += weight;
        self.kinds[arrival.kind].missed += weight;
    }

    /// A job that did not end in time used worker time.
    pub(super) fn waste(&mut self, load: &Load, since: Duration, until: Duration) {
        self.wasted += within(load, since, until);
    }

    fn tenth(&mut self, at: Duration) -> &mut Served {
        let index = tenth(at);
        self.tenths.resize(self.tenths.len().max(index + 1), Served::default());
        &mut self.tenths[index]
    }

    pub(super) fn outcome(self, load: &Load) -> Outcome {
        Outcome {
            useful_share: self.useful.as_secs_f64() / self.bound.could(load, load.lasts),
            admitted_then_missed: self.missed as f64 / self.admitted.max(1) as f64,
            recovery: load.disturbed_until().and_then(|from| self.recovery(from)),
            fairness: self.fairness(),
            tally: self,
        }
    }

    /// Time from `end`, the end of a disturbance, until nearly all jobs of a second are served.
    fn recovery(&self, end: Duration) -> Option<Duration> {
        let from = tenth(end);
        let is_normal = |second: &[Served]| second.iter().sum::<Served>().share().is_none_or(|share| share >= NORMAL);
        let tenths = self.tenths.get(from..)?.windows(10).position(is_normal)?;
        Some(Duration::from_millis(100 * tenths as u64))
    }

    fn fairness(&self) -> f64 {
        let shares: Vec<f64> = self.tenants.iter().filter_map(|tenant| tenant.share()).collect();
        let (sum, squares) = shares.iter().fold((0.0, 0.0), |sums, share| (sums.0 + share, sums.1 + share * share));
        if squares > 0.0 { sum * sum / squares / shares.len() as f64 } else { 1.0 }
    }
}

/// A quantile of the waits of some tenants, in milliseconds; 0 without waits.
pub(crate) fn quantile_of(waits: &[Vec<f64>], quantile: f64) -> f64 {
    let mut waits = waits.concat();
    waits.sort_by(f64::total_cmp);
    let last = waits.len().saturating_sub(1);
    waits.get((last as f64 * quantile).round() as usize).copied().unwrap_or_default()
}

/// The part of a run within the main load.
fn within(load: &Load, since: Duration, until: Duration) -> Duration {
    until.min(load.lasts).saturating_sub(since)
}

fn tenth(at: Duration) -> usize {
    usize::try_from(at.as_millis() / 100).unwrap_or(usize::MAX - 1)
}

/// Time step of the bound.
const STEP: Duration = Duration::from_millis(100);

/// The largest useful worker time that any policy could reach under a load.
///
/// It treats work as a fluid. Each tenth of a second serves what has arrived. Work beyond what the workers can do
/// within the longest deadline is lost. So under a steady load, the bound is `min(demand, capacity)`. Under a varying
/// load, a lull cannot serve work that has missed its deadline.
#[derive(Debug, Clone, Default)]
struct Bound {
    /// Demanded worker seconds, by step of arrival.
    demand: Vec<f64>,
    /// The longest deadline, in whole steps.
    longest: Duration,
}

impl Bound {
    fn ask(&mut self, at: Duration, service: Duration, deadline: Duration) {
        let step = tenth(at);
        self.demand.resize(self.demand.len().max(step + 1), 0.0);
        // A job that takes longer than its deadline is not useful.
        self.demand[step] += if service < deadline { service.as_secs_f64() } else { 0.0 };
        self.longest = self.longest.max(Duration::from_millis(100 * (tenth(deadline) as u64 + 1)));
    }

    /// Useful worker seconds that were possible until `end`.
    fn could(&self, load: &Load, end: Duration) -> f64 {
        let (mut waiting, mut used, mut at) = (0.0, 0.0, Duration::ZERO);
        while at < end {
            let workers = load.workers_at(at) as f64;
            waiting += self.demand.get(tenth(at)).copied().unwrap_or_default();
            let done = f64::min(waiting, workers * STEP.min(end - at).as_secs_f64());
            used += done;
            waiting = f64::min(waiting - done, workers * self.longest.as_secs_f64());
            at += STEP;
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::load::Service;

    /// Eight workers, asked for so many seconds of work in each of the given tenths; deadlines of half a second.
    fn could(demand: &[f64], tenths: u32) -> f64 {
        let mut bound = Bound::default();
        for (step, demand) in demand.iter().enumerate() {
            for _ in 0..(demand * 100.0).round() as usize {
                let at = STEP * u32::try_from(step).unwrap();
                bound.ask(at, Duration::from_millis(10), Duration::from_millis(500));
            }
        }
        bound.could(&Load::steady(1.0, 10, Service::Exponential, 0), STEP * tenths)
    }

    #[test]
    fn a_steady_load_could_have_what_it_asks_for_or_all_workers() {
        assert!((could(&[0.4; 20], 20) - 8.0).abs() < 1e-6, "half of the capacity");
        assert!((could(&[4.0; 20], 20) - 16.0).abs() < 1e-6, "five times the capacity");
    }

    #[test]
    fn a_lull_makes_up_for_the_last_rush_alone() {
        assert!((could(&[2.4, 0.0, 0.0], 3) - 2.4).abs() < 1e-6, "within the deadline");
        // Of 20 seconds, 0.8 fit into the tenth in which they come and into each of the six until they are too late.
        let rush = could(&[20.0], 40);
        assert!((rush - 0.8 * 7.0).abs() < 1e-6, "{rush}");
    }

    #[test]
    fn a_job_that_takes_longer_than_it_may_is_of_no_use_to_anybody() {
        let mut bound = Bound::default();
        bound.ask(Duration::ZERO, Duration::from_secs(60), Duration::from_millis(500));
        bound.ask(Duration::ZERO, Duration::from_millis(400), Duration::from_millis(500));
        let could = bound.could(&Load::steady(1.0, 10, Service::Exponential, 0), Duration::from_secs(10));
        assert!((could - 0.4).abs() < 1e-6, "{could}");
    }
}
