//! What the pools and the store did in the last minutes, beside what is usual, and what is wrong.
//!
//! Once a second, [`Monitor::follow`] reads the counters of the pools into rings ([`series`]), compares them with the
//! rules ([`judge`]), and keeps what lasts ([`problem`]). `Stats`, `/metrics` and the log have the same sentences.

mod judge;
mod outlook;
mod problem;
mod sample;
mod series;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};

pub use self::{
    outlook::Outlook,
    problem::{Level, Problem},
    sample::Operator,
    series::Flow,
};
use self::{
    outlook::{Left, outlook},
    problem::Board,
    sample::{PoolSample, Sample},
    series::{AllSeries, HISTORY_STEP, KindSeries, MINUTE, PoolSeries, RECENT},
};
use crate::{
    detached::Detached,
    model::JobStage,
    pool::{Distribution, JobFilter, JobOrder, ListedJob, Pool, Pools},
    store::{StoreError, Suspended},
};

/// Time between two samples.
const TICK: Duration = Duration::from_secs(1);
/// Maximum number of jobs of a stage that an outlook counts.
const MAX_LEFT: usize = 1000;

/// Watches the pools and the store. Clones share the state.
#[derive(Clone)]
pub struct Monitor(Arc<Inner>);

struct Inner {
    pools: Pools,
    detached: Option<Detached>,
    store_kind: &'static str,
    state: Mutex<State>,
    /// What operators did last, by pool; the process has the empty name.
    operators: Mutex<BTreeMap<String, Operator>>,
}

#[derive(Default)]
struct State {
    series: AllSeries,
    board: Board,
    judged: Option<Instant>,
    /// Whether the store answers, and when that changed.
    store: Option<(StoreState, Instant)>,
}

/// Whether the store answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreState {
    /// It does.
    Ok,
    /// It does not.
    Away,
    /// It cannot be written.
    ReadOnly,
}

/// The store of detached jobs.
#[derive(Debug, Clone)]
pub struct StoreStats {
    /// What it is.
    pub kind: &'static str,
    /// Whether it answers.
    pub state: StoreState,
    /// When it came into that state; `None` if it has answered since the start.
    pub since: Option<Instant>,
    /// Why it does not answer.
    pub error: Option<Arc<StoreError>>,
}

/// What is wrong.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// The most harmful first.
    pub problems: Vec<Problem>,
    /// When it was found; `None` before the first look.
    pub judged: Option<Instant>,
}

/// The last minute of a pool.
#[derive(Debug, Clone, Default)]
pub struct RecentPool {
    /// The last ten seconds; `None` in the first second.
    pub recent: Option<Flow>,
    /// The last minute.
    pub minute: Option<Flow>,
    /// By kind.
    pub kinds: HashMap<Arc<str>, RecentKind>,
    /// Unexpected ends of processes, by program.
    pub crashes: HashMap<Arc<str>, u64>,
}

/// The last minute of a kind.
#[derive(Debug, Clone)]
pub struct RecentKind {
    /// Run times.
    pub run: Distribution,
    /// Run times before the last five minutes.
    pub usual_run: Option<Distribution>,
    /// From arrival to the start of the run.
    pub wait: Distribution,
    /// Jobs per second that failed.
    pub failures: f64,
}

/// The last 15 minutes of a pool: jobs that completed, failed, expired and were refused, in steps, the oldest first.
#[derive(Debug, Clone)]
pub struct History {
    /// Name of the pool.
    pub pool: Arc<str>,
    /// The columns.
    pub columns: [Vec<u32>; 4],
}

impl Monitor {
    /// Time between two points of the history.
    pub const HISTORY_STEP: Duration = Duration::from_secs(HISTORY_STEP as u64);

    /// Watches `pools`, and the store of `detached`, which is a `store_kind`.
    pub fn new(pools: Pools, detached: Option<Detached>, store_kind: &'static str) -> Self {
        Self(Arc::new(Inner { pools, detached, store_kind, state: Mutex::default(), operators: Mutex::default() }))
    }

    /// Looks once a second, for ever. In a drain, `drain` returns the jobs that will probably be stopped, and the time
    /// until then.
    pub async fn follow(self, drain: impl Fn() -> Option<(u64, Duration)> + Send) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = ticks.tick().await;
            let sample = Sample { drain: drain(), ..self.sample() };
            self.0.state.lock().take(now, sample);
        }
    }

    fn sample(&self) -> Sample {
        let Inner { pools, detached, state, operators: _, store_kind: _ } = &*self.0;
        let with_spreads = state.lock().series.wants_spreads();
        let depths = detached.as_ref().and_then(Detached::depths).map(HashMap::from_iter);
        let of = |pool| PoolSample::of(pool, depths.as_ref(), with_spreads);
        let mut pools: Vec<_> = pools.all().iter().map(of).collect();
        for pool in &mut pools {
            pool.operator = self.operator(&pool.name);
        }
        Sample { pools, away: detached.as_ref().and_then(Detached::away), drain: None }
    }

    /// Notes who pauses or drains a pool, or the process if the name is empty.
    pub fn note(&self, pool: &str, operator: Operator) {
        self.0.operators.lock().insert(pool.to_owned(), operator);
    }

    /// Who did that last.
    pub fn operator(&self, pool: &str) -> Operator {
        let Inner { detached, operators, .. } = &*self.0;
        let stored = detached.as_ref().and_then(|detached| detached.suspended(pool));
        let stored = stored.map(|Suspended { principal, reason, .. }| Operator { principal, reason });
        stored.or_else(|| operators.lock().get(pool).cloned()).unwrap_or_default()
    }

    /// When the jobs of a pool will have ended, and how many of them will not within `allowed`. It looks at the first
    /// thousand running jobs, and as many queued ones.
    pub fn outlook(&self, pool: &Pool, allowed: Duration) -> Outlook {
        let usual: HashMap<_, _> = pool.stats().kinds.into_iter().map(|kind| (kind.name, kind.run_time)).collect();
        let recent = self.recent(pool.name()).kinds;
        let left = |listed: ListedJob| Left {
            usual: recent
                .get(&listed.kind)
                .and_then(|kind| kind.usual_run)
                .or(usual.get(&listed.kind).copied())
                .filter(|usual| usual.count > 0),
            ran: listed.run.map_or(Duration::ZERO, |run| run.run),
            deadline: listed.left,
        };
        let of = |stage| {
            let filter = JobFilter { stages: vec![stage], order: JobOrder::Oldest, ..JobFilter::default() };
            pool.list(&filter, MAX_LEFT).jobs.into_iter().map(left).collect::<Vec<_>>()
        };
        let [running, queued] = [JobStage::Running, JobStage::Queued].map(of);
        let mut outlook = outlook(pool.worker_count(), &running, &queued, allowed);
        if running.iter().chain(&queued).any(|job| job.usual.is_none()) {
            outlook.expected = outlook.expected.max(pool.expected_end());
        }
        outlook
    }

    /// What is wrong.
    pub fn verdict(&self) -> Verdict {
        let state = self.0.state.lock();
        Verdict { problems: state.board.reported(), judged: state.judged }
    }

    /// The store; `None` without one.
    pub fn store(&self) -> Option<StoreStats> {
        let detached = self.0.detached.as_ref()?;
        let error = detached.away();
        let state = StoreState::of(error.as_deref());
        let seen = self.0.state.lock().store;
        let since = seen.filter(|(seen, _)| *seen == state).map(|(_, since)| since);
        let since = since.or((state != StoreState::Ok).then(Instant::now));
        Some(StoreStats { kind: self.0.store_kind, state, since, error })
    }

    /// The last minute of a pool.
    pub fn recent(&self, pool: &str) -> RecentPool {
        let state = self.0.state.lock();
        state.series.pools.get(pool).map_or_else(RecentPool::default, RecentPool::of)
    }

    /// The last 15 minutes of the named pool, or of all if the name is empty; and the end of the newest point.
    pub fn history(&self, pool: &str) -> (Vec<History>, Option<Instant>) {
        let state = self.0.state.lock();
        let shown = state.series.pools.iter().filter(|(name, _)| pool.is_empty() || ***name == *pool);
        let column = |series: &PoolSeries, at: usize| series.history.iter().map(|point| point[at]).collect();
        let history = |(pool, series): (&Arc<str>, &PoolSeries)| History {
            pool: Arc::clone(pool),
            columns: [0, 1, 2, 3].map(|at| column(series, at)),
        };
        (shown.map(history).collect(), state.series.history_end)
    }
}

impl State {
    fn take(&mut self, now: Instant, mut sample: Sample) {
        self.series.add(now, std::mem::take(&mut sample.pools));
        let store = StoreState::of(sample.away.as_deref());
        let (known, _) = self.store.map_or((StoreState::Ok, now), |it| it);
        if known != store {
            self.store = Some((store, now));
        }
        self.board.update(now, judge::judge(now, &sample, &self.series));
        self.judged = Some(now);
    }
}

impl StoreState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Ok, Self::Away, Self::ReadOnly];

    /// Name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Away => "away",
            Self::ReadOnly => "read_only",
        }
    }

    fn of(error: Option<&StoreError>) -> Self {
        match error {
            None => Self::Ok,
            Some(error) if judge::refuses_writes(error) => Self::ReadOnly,
            Some(_) => Self::Away,
        }
    }
}

impl RecentPool {
    fn of(pool: &PoolSeries) -> Self {
        let kinds = pool.kinds.iter().map(|(name, kind)| (Arc::clone(name), RecentKind::of(kind, pool.minute())));
        let programs = pool.last.programs.iter();
        Self {
            recent: pool.flow(RECENT),
            minute: pool.flow(MINUTE),
            kinds: kinds.collect(),
            crashes: programs.map(|program| (Arc::clone(&program.name), pool.ends(&program.name, MINUTE))).collect(),
        }
    }
}

impl RecentKind {
    fn of(kind: &KindSeries, minute: Duration) -> Self {
        let [wait, run] = kind.spreads(MINUTE).map(|spread| spread.distribution());
        let [failed, _, _] = kind.sums(MINUTE);
        let failures = failed as f64 / minute.as_secs_f64().max(1.0);
        Self { run, usual_run: kind.usual_run(), wait, failures }
    }
}

#[cfg(test)]
mod tests;
