//! Replays the recorded jobs of a pool under given settings, and looks for the fewest workers.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    load::{Arrival, Load, Retry, Source},
    policy::Plan,
    recording::{Recorded, Recording, Run},
    tally::{KindTally, Tally, quantile_of},
    world::run_under,
};
use crate::{
    model::{RecordedEnd, RecordedJob, Traits},
    scheduler::Bounds,
};

/// Most workers that the search tries, if there are no more already.
const MOST_WORKERS: usize = 1024;
/// The share of refused and missed jobs that the search allows.
const GOAL: f64 = 0.01;

/// Figures of the jobs of a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct KindFigures {
    pub(crate) jobs: u64,
    pub(crate) refused: u64,
    pub(crate) missed: u64,
    pub(crate) wait_p99: Duration,
}

/// The recorded jobs of a pool, for replays under one plan with different numbers of workers.
pub(crate) struct Replay {
    plan: Plan,
    load: Load,
    /// By number of workers.
    replayed: HashMap<usize, (KindFigures, f64)>,
}

impl Replay {
    /// Prepares the jobs of the served kinds. `None` if none of their runs came to its end.
    pub(crate) fn new(jobs: &[RecordedJob], plan: Plan) -> Option<Self> {
        let mut tenants = HashMap::new();
        let recorded: Vec<_> = jobs.iter().filter_map(|job| recorded(job, &plan, &mut tenants)).collect();
        let recording = Recording::of(recorded, tenants.len(), plan.kinds.len(), 0)?;
        let load = Load {
            workers: plan.bounds.max,
            times: 1.0,
            lasts: recording.lasts(),
            then: None,
            deadline: Duration::ZERO,
            tenants: Vec::new(),
            retry: Retry::Never,
            queue: plan.caps.jobs,
            slow: None,
            lost: None,
            seed: 0,
            source: Source::Recorded(Arc::new(recording)),
        };
        Some(Self { plan, load, replayed: HashMap::new() })
    }

    /// The figures of each kind under the plan.
    pub(crate) fn figures(&self) -> Vec<KindFigures> {
        run_under(&self.plan, &self.load).tally.kinds.into_iter().map(KindFigures::from).collect()
    }

    /// The smallest fixed number of workers with which few jobs are refused or missed. `None` if more workers do not
    /// help, or `go_on` ends the search.
    pub(crate) fn fewest_workers(&mut self, go_on: &dyn Fn() -> bool) -> Option<usize> {
        let in_use = self.plan.bounds.max.max(1);
        let (mut too_few, mut enough) = (0, MOST_WORKERS.max(in_use));
        if !self.is_enough(enough) {
            return None;
        }
        while enough - too_few > 1 {
            if !go_on() {
                return None;
            }
            // The number is seldom far from that in use.
            let middle = usize::midpoint(too_few, enough).min((2 * too_few).max(in_use));
            if self.is_enough(middle) {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        Some(enough)
    }

    fn is_enough(&mut self, workers: usize) -> bool {
        let (all, _) = self.with_workers(workers);
        (all.refused + all.missed) as f64 <= GOAL * all.jobs as f64
    }

    /// The figures of all jobs with a fixed number of workers, and the share of the time for which these are busy.
    pub(crate) fn with_workers(&mut self, workers: usize) -> (KindFigures, f64) {
        if let Some(replayed) = self.replayed.get(&workers) {
            return *replayed;
        }
        self.plan.bounds = Bounds { min: workers, max: workers };
        let Tally { kinds, useful, wasted, .. } = run_under(&self.plan, &self.load).tally;
        let all = kinds.into_iter().fold(KindTally::default(), |mut all, kind| {
            all.arrived += kind.arrived;
            all.refused += kind.refused;
            all.missed += kind.missed;
            all.waits.extend(kind.waits);
            all
        });
        let time = self.load.lasts.as_secs_f64() * workers.max(1) as f64;
        let replayed = (all.into(), (useful + wasted).as_secs_f64() / time);
        self.replayed.insert(workers, replayed);
        replayed
    }
}

/// `None` if its kind is not served.
fn recorded(job: &RecordedJob, plan: &Plan, tenants: &mut HashMap<u16, usize>) -> Option<Recorded> {
    let RecordedJob { at, budget, wait: _, held, traits, kind, end, is_stored } = *job;
    let Traits { class, when_full, tenant, ordering_key, limit_key } = traits;
    let next = tenants.len();
    let seconds = |seconds: f32| Duration::try_from_secs_f32(seconds).unwrap_or_default();
    let key = |key: u16| (key > 0).then_some(usize::from(key));
    let arrival = Arrival {
        at: Duration::from_micros(at),
        service: Duration::ZERO,
        deadline: seconds(budget),
        kind: usize::from(kind),
        run_timeout: plan.kinds.get(usize::from(kind)).copied().flatten()?.run_timeout,
        tenant: *tenants.entry(tenant).or_insert(next),
        class,
        ordering_key: key(ordering_key),
        limit_key: key(limit_key),
        when_full: when_full.unwrap_or(plan.when_full),
        is_stored,
    };
    let run = if end == RecordedEnd::Ran { Run::Took(seconds(held)) } else { Run::MoreThan(seconds(held)) };
    Some(Recorded { arrival, run })
}

/// What the server itself made of the jobs, by kind.
pub(crate) fn measured(jobs: &[RecordedJob], kinds: usize) -> Vec<KindFigures> {
    let mut tallies = vec![KindTally::default(); kinds];
    for job in jobs {
        let tally = &mut tallies[usize::from(job.kind)];
        tally.arrived += 1;
        match job.end {
            RecordedEnd::Ran => tally.waits.push(f64::from(job.wait) * 1e3),
            RecordedEnd::Refused => tally.refused += 1,
            RecordedEnd::Missed => tally.missed += 1,
            RecordedEnd::Cut => {}
        }
    }
    tallies.into_iter().map(KindFigures::from).collect()
}

impl From<KindTally> for KindFigures {
    fn from(KindTally { arrived: jobs, refused, missed, waits }: KindTally) -> Self {
        let wait_p99 = Duration::from_secs_f64(quantile_of(&[waits], 0.99) / 1e3);
        Self { jobs, refused, missed, wait_p99 }
    }
}
