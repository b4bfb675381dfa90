//! The samples of the last minutes, in rings.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::sample::{KindSample, PoolSample, ProgramSample};
use crate::{
    model::Reason,
    pool::{Counts, Distribution, Spread},
};

/// Seconds of the window for rates, and for judgements.
pub(super) const RECENT: usize = 10;
/// Seconds of the window for figures in sentences.
pub(super) const MINUTE: usize = 60;
/// Seconds between two samples of durations.
pub(super) const STEP: usize = 5;
/// Seconds between two points of the history, and their number.
pub(super) const HISTORY_STEP: usize = 10;
pub(super) const HISTORY: usize = 90;
/// Samples of earlier minutes: what is usual is older than five minutes.
const EARLIER: usize = 6;

/// The sums of the last minute, and one for each of the minutes before.
#[derive(Debug)]
struct Series<T> {
    /// The newest first.
    last: VecDeque<T>,
    /// Steps in a minute.
    steps: usize,
    /// The oldest first.
    minutes: VecDeque<T>,
}

impl<T: Clone> Series<T> {
    /// A series in steps of so many seconds.
    fn new(step: usize) -> Self {
        Self { last: VecDeque::new(), steps: MINUTE / step, minutes: VecDeque::new() }
    }

    fn push(&mut self, sum: T, ends_minute: bool) {
        if ends_minute {
            self.minutes.push_back(sum.clone());
            self.minutes.drain(..self.minutes.len().saturating_sub(EARLIER));
        }
        self.last.push_front(sum);
        self.last.truncate(self.steps + 1);
    }

    /// The newest sum, and the one so many steps before, or the oldest. `None` before the second sum.
    fn over(&self, steps: usize) -> Option<[&T; 2]> {
        let earlier = self.last.get(steps).or(self.last.back()).filter(|_| self.last.len() > 1)?;
        Some([self.last.front()?, earlier])
    }

    /// The sum of about six minutes ago; after a younger start, that of the first minute. `None` during the first two.
    fn usual(&self) -> Option<&T> {
        self.minutes.front().filter(|_| self.minutes.len() > 1)
    }
}

/// What a pool did in a time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Flow {
    /// Length of the time.
    pub time: Duration,
    /// Jobs that arrived.
    pub arrivals: u64,
    /// Jobs that completed.
    pub completed: u64,
    /// Jobs that failed.
    pub failed: u64,
    /// Jobs that expired.
    pub expired: u64,
    /// Refused and evicted jobs by reason, the most frequent first, without zeros.
    pub refused: Vec<(Reason, u64)>,
}

impl Flow {
    fn between([now, before]: [&Counts; 2], time: Duration) -> Self {
        let rejected = now.rejected.iter().zip(before.rejected).map(|(now, before)| now - before);
        let mut refused: Vec<_> = Reason::REFUSALS.into_iter().zip(rejected).collect();
        let arrivals = now.accepted - before.accepted + refused.iter().map(|(_, count)| count).sum::<u64>();
        refused.push((Reason::Shed, now.shed - before.shed));
        refused.retain(|(_, count)| *count > 0);
        refused.sort_by_key(|(_, count)| Reverse(*count));
        Self {
            time,
            arrivals,
            completed: now.completed - before.completed,
            failed: now.failed + now.panicked - before.failed - before.panicked,
            expired: now.expired - before.expired,
            refused,
        }
    }

    /// Jobs per second.
    pub fn per_second(&self, jobs: u64) -> f64 {
        jobs as f64 / self.time.as_secs_f64().max(1.0)
    }
}

/// One point of the history: jobs that completed, failed, expired, and were refused.
pub(super) type Point = [u32; 4];

/// The series of all pools, by name.
#[derive(Debug)]
pub(super) struct AllSeries {
    times: Series<Instant>,
    ticks: usize,
    pub(super) pools: BTreeMap<Arc<str>, PoolSeries>,
    /// End of the newest point of the history.
    pub(super) history_end: Option<Instant>,
}

/// The series of a pool.
#[derive(Debug)]
pub(super) struct PoolSeries {
    pub(super) last: PoolSample,
    counts: Series<Counts>,
    pub(super) kinds: BTreeMap<Arc<str>, KindSeries>,
    /// Unexpected ends of the processes of each program.
    programs: BTreeMap<Arc<str>, Series<u64>>,
    pub(super) history: VecDeque<Point>,
    /// The sums at the end of the newest point.
    counted: Counts,
    times: [Duration; 2],
}

/// The series of a kind.
#[derive(Debug)]
pub(super) struct KindSeries {
    sums: Series<[u64; 3]>,
    spreads: Series<[Spread; 2]>,
}

impl Default for AllSeries {
    fn default() -> Self {
        Self { times: Series::new(1), ticks: 0, pools: BTreeMap::new(), history_end: None }
    }
}

impl AllSeries {
    /// Whether the next sample has durations.
    pub(super) fn wants_spreads(&self) -> bool {
        self.ticks.is_multiple_of(STEP)
    }

    /// Adds the samples of a second. Pools and kinds that are not in it are forgotten.
    pub(super) fn add(&mut self, now: Instant, pools: Vec<PoolSample>) {
        let ends = |seconds: usize| self.ticks > 0 && self.ticks.is_multiple_of(seconds);
        let (ends_minute, ends_point) = (ends(MINUTE), ends(HISTORY_STEP));
        self.ticks += 1;
        self.times.push(now, false);
        let passed = |steps| self.times.over(steps).map_or(Duration::ZERO, |[now, before]| *now - *before);
        let times = [RECENT, MINUTE].map(passed);
        if ends_point {
            self.history_end = Some(now);
        }
        let mut before = std::mem::take(&mut self.pools);
        for sample in pools {
            let mut pool = before.remove(&sample.name).unwrap_or_else(|| PoolSeries::new(sample.counts));
            pool.times = times;
            pool.add(sample, ends_minute, ends_point);
            self.pools.insert(Arc::clone(&pool.last.name), pool);
        }
    }
}

impl PoolSeries {
    fn new(counted: Counts) -> Self {
        Self {
            last: PoolSample::default(),
            counts: Series::new(1),
            kinds: BTreeMap::new(),
            programs: BTreeMap::new(),
            history: VecDeque::new(),
            counted,
            times: [Duration::ZERO; 2],
        }
    }

    fn add(&mut self, mut sample: PoolSample, ends_minute: bool, ends_point: bool) {
        self.counts.push(sample.counts, ends_minute);
        if ends_point {
            let flow = Flow::between([&sample.counts, &self.counted], Duration::ZERO);
            self.counted = sample.counts;
            let refused = flow.refused.iter().map(|(_, count)| count).sum();
            let point = [flow.completed, flow.failed, flow.expired, refused];
            self.history.push_back(point.map(|jobs| u32::try_from(jobs).unwrap_or(u32::MAX)));
            self.history.drain(..self.history.len().saturating_sub(HISTORY));
        }
        let mut kinds = std::mem::take(&mut self.kinds);
        for kind in &mut sample.kinds {
            let mut series = kinds.remove(&kind.name).unwrap_or_else(KindSeries::new);
            series.add(kind, ends_minute);
            self.kinds.insert(Arc::clone(&kind.name), series);
        }
        let mut programs = std::mem::take(&mut self.programs);
        for ProgramSample { name, failures, .. } in &sample.programs {
            let mut series = programs.remove(name).unwrap_or_else(|| Series::new(1));
            series.push(*failures, ends_minute);
            self.programs.insert(Arc::clone(name), series);
        }
        self.last = sample;
    }

    /// What happened in the last seconds. `None` in the first one.
    pub(super) fn flow(&self, seconds: usize) -> Option<Flow> {
        let time = self.times[usize::from(seconds > RECENT)];
        Some(Flow::between(self.counts.over(seconds)?, time))
    }

    /// Usual share of arriving jobs that are refused for a reason.
    pub(super) fn usual_refusals(&self, reason: Reason) -> Option<f64> {
        let flow = Flow::between([self.counts.usual()?, &Counts::default()], Duration::ZERO);
        let refused = flow.refused.iter().find(|(known, _)| *known == reason).map_or(0, |(_, count)| *count);
        (flow.arrivals > 0).then(|| refused as f64 / flow.arrivals as f64)
    }

    /// Unexpected ends of a program's processes in the last seconds.
    pub(super) fn ends(&self, program: &str, seconds: usize) -> u64 {
        let sums = self.programs.get(program).and_then(|series| series.over(seconds));
        sums.map_or(0, |[now, before]| now.saturating_sub(*before))
    }

    /// Length of the minute.
    pub(super) fn minute(&self) -> Duration {
        self.times[1]
    }
}

impl KindSeries {
    fn new() -> Self {
        Self { sums: Series::new(1), spreads: Series::new(STEP) }
    }

    fn add(&mut self, kind: &mut KindSample, ends_minute: bool) {
        // Until they are counted, none is new; while they are not, none is added.
        let dead = kind.dead.or(self.sums.last.front().map(|[_, _, dead]| *dead)).unwrap_or(u64::MAX);
        let [failed, runs] = kind.sums;
        self.sums.push([failed, runs, dead], ends_minute);
        if let Some(spreads) = kind.spreads.take() {
            self.spreads.push(spreads, ends_minute);
        }
    }

    /// Jobs of the last seconds that failed, that ran, and stored ones that failed for good.
    pub(super) fn sums(&self, seconds: usize) -> [u64; 3] {
        let sums = self.sums.over(seconds);
        sums.map_or([0; 3], |[now, before]| std::array::from_fn(|at| now[at].saturating_sub(before[at])))
    }

    /// Usual share of failed jobs.
    pub(super) fn usual_failures(&self) -> Option<f64> {
        let all = |[failed, runs, _]: &[u64; 3]| (*failed, (*runs).max(*failed));
        self.sums.usual().map(all).filter(|(_, runs)| *runs > 0).map(|(failed, runs)| failed as f64 / runs as f64)
    }

    /// Queue waits and run times of the last seconds.
    pub(super) fn spreads(&self, seconds: usize) -> [Spread; 2] {
        let spreads = self.spreads.over(seconds / STEP);
        spreads.map_or_else(Default::default, |[now, before]| std::array::from_fn(|at| now[at].since(&before[at])))
    }

    /// Usual run times.
    pub(super) fn usual_run(&self) -> Option<Distribution> {
        self.spreads.usual().map(|[_, run]| run.distribution()).filter(|usual| usual.count > 0)
    }
}
